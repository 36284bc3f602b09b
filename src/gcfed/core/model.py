"""A user's `nn.Module` as a pure function of its parameters, its buffers and a key."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from gcfed.core import keys, tree
from gcfed.core.calling import arguments, output
from gcfed.core.centralization import centralized_names
from gcfed.core.description import Description, described
from gcfed.core.dropout import KeyedDropout, key_dropout
from gcfed.core.keyed_run import KeyedRun
from gcfed.core.module_checks import check_module, copied
from gcfed.core.passes import Pass, keep_weights_apart
from gcfed.core.roles import (
    Role,
    declared_head,
    layers_with_weights,
    module_called_head,
    roles_of,
    tie_buffers,
    ties_of,
)
from gcfed.core.tree import Tree
from gcfed.core.types import Inputs, Output
from gcfed.errors import InputError, unknown
from gcfed.registry import Registry

MODELS: Registry[Callable[..., nn.Module]] = Registry("model")
"""Functions of (shape of an example, number of classes) and hyper-parameters that make a module."""

DROPOUT = 0x64726F70  # keeps dropout's keys apart from those an algorithm folds
DRAWS = 0x64726177  # likewise, for what else a model draws
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class Model:
    """Wraps a copy of ``module``, which reads a batch's x and returns logits or an `Output`.

    Several inputs come by name where its ``forward`` takes their names, else as one dict.  Logits
    may also come as ``returned.logits``, as ``returned["logits"]`` or first in a tuple.

    - ``params``, ``buffers``: its values at the start; parameters that need no gradient stay fixed,
      tied ones go by the first of their names.
    - ``head``: the names of its head's parameters.  The head is the modules named by ``head`` here,
      or by the attribute ``module.head`` (which may be the module itself); else the last
      `nn.Linear`, unless `trace_head` finds by an example where the logits come from.
    - ``roles``: what each parameter is, as `roles_of` says; ``layers``: the modules with weights.
    - ``cross_batch``: the modules that look across a batch, as BatchNorm does, or what else
      `note_mixing` found that does, such as the whole model.
    - ``convolutions``: what an engine is chosen by.
    - ``replaced``: the modules in whose place others stand, dropout's and those of `rewritten`.
    - ``uncast``: the parameters of modules that take their weights in the dtype they are kept in,
      whatever dtype the model computes in.

    Features, where a module returns logits alone, are the input of the module that ``features``
    names here, or the attribute ``module.feature_reader``; else of the head's last `nn.Linear`.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        head: str | Sequence[str] | None = None,
        features: str | None = None,
    ) -> None:
        check_module(module)
        if not isinstance(head, str | Sequence | None):
            raise InputError(f"the head is named by a text, or several; not {head!r:.200}")
        self.original = copied(module)
        module = copy.deepcopy(self.original)
        module, self.replaced = key_dropout(module)
        keep_weights_apart(module)
        modules, weights = dict(module.named_modules()), dict(module.named_parameters())
        self._keys = [f"{n}.key" for n, m in modules.items() if isinstance(m, KeyedDropout)]
        self.params: Tree = {n: p.detach().clone() for n, p in weights.items() if p.requires_grad}
        self.buffers: Tree = {
            n: b.clone() for n, b in module.named_buffers() if n not in self._keys
        }
        self.cross_batch = [shown(n, m) for n, m in modules.items() if _looks_across_a_batch(m)]
        self.convolutions = [m for m in modules.values() if isinstance(m, CONVOLUTIONS)]

        self._features = features or getattr(module, "feature_reader", None)
        if self._features is not None and self._features not in modules:
            known = ", ".join(modules)
            raise InputError(f"no module is named {self._features!r}; there are {known}")
        declared = [head] if isinstance(head, str) else list(head or declared_head(module))
        self.declares_head, self.layers = bool(declared), layers_with_weights(module)
        owned = [] if declared else module_called_head(module)
        self._set_head(module, declared or owned or _linears(module)[-1:])
        self.uncast = _uncast(module) & self.params.keys()
        self._shells = {True: copy.deepcopy(module).train(), False: module.eval()}
        self._ties = ties_of(module)
        device = next((w.device for w in weights.values() if not w.is_meta), None)
        self.evaluation_key = keys.key(0).to(device)  # by which it draws when it is judged

    def _set_head(self, module: nn.Module, layers: Sequence[str]) -> None:
        """Note which parameters are the head's, their roles, and what reads the features."""
        first = {w: n for n, w in module.named_parameters()}
        every = dict(module.named_parameters(remove_duplicate=False))
        under = tree.under(layers, every)
        self.head = frozenset(first[every[n]] for n in under) & self.params.keys()
        roles = roles_of(module, self.head)
        self.roles: dict[str, Role] = {n: roles[n] for n in self.params}
        last = [n for n in _linears(module) if tree.under([n], every) & under][-1:]
        self.watched = last if self._features is None else [self._features]

    def with_head(self, layers: Sequence[str]) -> "Model":
        """A copy of the model whose head is these modules, and the one called ``head`` if any."""
        twin, module = copy.copy(self), self._shells[False]
        twin._set_head(module, list(dict.fromkeys([*module_called_head(module), *layers])))
        return twin

    def with_mixing(self, name: str) -> "Model":
        """A copy of the model that cannot be trained on padded batches, for what is so named."""
        twin = copy.copy(self)
        twin.cross_batch = [name]
        return twin

    def __call__(
        self, params: Tree, x: Inputs, *, buffers: Tree, train: bool, key: Tensor | None = None
    ) -> tuple[Output, Tree]:
        """Run the model: its output, and its buffers as the run leaves them."""
        dropout: Tree = {}
        if train:
            buffers = tree.map(torch.clone, buffers)  # modules write into them
            dropout = self._dropout_keys(key)
            key = None if key is None else keys.fold(key, DRAWS)
        shell, values = self._shells[train], {**params, **buffers, **dropout}
        values |= {other: values[name] for other, name in self._ties.items() if name in values}
        drawing = KeyedRun(key) if train or key is not None else nullcontext()
        with self._watch(train) as seen, drawing:
            # what the module replaces is replaced in these values too; torch's own search for what
            # is tied does not restore a module that stands in two places
            out = output(functional_call(shell, values, *arguments(shell, x), tie_weights=False))
        if train:
            buffers = _left(buffers, values)
        if out.features is None and seen:
            out = out._replace(features=seen[-1])
        return out, buffers

    def submodules(self) -> list[tuple[str, nn.Module]]:
        """The modules that runs go through, those in training and those in evaluation, by name."""
        return [named for shell in self._shells.values() for named in shell.named_modules()]

    def check_numbers(self) -> None:
        """Refuse parameters on the device 'meta', which have a shape and no numbers."""
        for name, weight in self.params.items():
            if weight.is_meta:
                raise InputError(f"the parameter {name} is on the device 'meta': it has no numbers")

    def to(self, device: torch.device) -> "Model":
        """A copy of the model on ``device``; the model itself if it is there."""
        self.check_numbers()
        there = torch.empty(0, device=device).device  # "cuda" is one of several
        tensors = (x for m in self._shells.values() for x in (*m.parameters(), *m.buffers()))
        if all(x.device == there for x in tensors):
            return self
        twin = copy.deepcopy(self)
        twin.params, twin.buffers = (
            tree.map(lambda w: w.to(device), values) for values in (self.params, self.buffers)
        )
        twin.evaluation_key = self.evaluation_key.to(device)
        for shell in twin._shells.values():
            shell.to(device)
            tie_buffers(shell, self._ties)  # torch moves each by itself, which unties them
        return twin

    def rewritten(self, change: Pass) -> "Model":
        """A copy of the model whose module went through ``change``; its parameters are the same."""
        twin = copy.copy(self)
        twin._shells = copy.deepcopy(self._shells)
        for mode, shell in list(twin._shells.items()):
            before = {name for name, _ in shell.named_parameters()}
            shell, changed = change(shell)
            if before != {name for name, _ in shell.named_parameters()}:
                raise InputError(f"a pass keeps the names of parameters; {change!r} changes them")
            twin._shells[mode] = shell.train(mode)
        twin.replaced, twin._ties = [*self.replaced, *changed], ties_of(shell)
        twin.uncast = _uncast(shell) & self.params.keys()
        return twin

    def fixed(self) -> Tree:
        """What the module had at the start beside the weights that are trained."""
        state = self.original.state_dict()
        return {name: value for name, value in state.items() if name not in self.params}

    def module(self, params: Tree, buffers: Tree) -> nn.Module:
        """A copy of the module that was wrapped, on the host and in evaluation mode, with these."""
        module = copy.deepcopy(self.original).cpu()
        values = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        with torch.no_grad():
            for name, value in {**params, **buffers}.items():
                values[name].copy_(value)
        return module.eval()

    def describe(self) -> Description:
        """A table of what each parameter is, and what GC-Fed at its defaults does to it."""
        names = centralized_names(self.params, self.roles)
        local = [name for name in names if name not in self.head]
        return described(self.params, self.roles, local, names)

    @contextmanager
    def outputs(self, layers: Mapping[str, str]) -> Iterator[Tree]:
        """Inside, what modules return in evaluation mode, by the names that ``layers`` gives them.

        ``layers`` are paths of modules by name; the empty path is the whole module.  Of several
        tensors that a module returns, it is the first.  Each run of the model replaces what there
        was, and so does each run of a module within one.
        """
        found: Tree = {}

        def keep(name: str, module: nn.Module, args: Any, out: Any) -> None:
            if module is whole:
                out = output(out).logits
            for _, tensor in islice(tree.leaves(out), 1):
                found[name] = tensor.clone()  # the next module may write into it

        whole = self._shells[False]
        modules = dict(whole.named_modules())
        with ExitStack() as hooks:
            for name, path in layers.items():
                if path not in modules:
                    raise unknown("module", path, filter(None, modules))
                hook = modules[path].register_forward_hook(partial(keep, name))
                hooks.callback(hook.remove)
            yield found

    @contextmanager
    def _watch(self, train: bool) -> Iterator[list[Tensor]]:
        """What the reader of the features reads."""
        seen: list[Tensor] = []
        with ExitStack() as hooks:
            for name in self.watched:
                reader = self._shells[train].get_submodule(name)
                hook = reader.register_forward_pre_hook(lambda _, args: seen.extend(args[:1]))
                hooks.callback(hook.remove)
            yield seen

    def _dropout_keys(self, key: Tensor | None) -> Tree:
        if not self._keys:
            return {}
        if key is None:
            raise InputError("a model with dropout needs a key to train")
        stream = keys.fold(key, DROPOUT)
        return {name: keys.fold(stream, i) for i, name in enumerate(self._keys)}


def _left(buffers: Tree, values: Mapping[str, Any]) -> Tree:
    """The buffers as a run of the module leaves them: written into, or replaced by others."""
    for name, old in buffers.items():
        new = values[name]
        if not isinstance(new, Tensor) or new.shape != old.shape or new.dtype != old.dtype:
            kind = f"{new.dtype} of shape {list(new.shape)}" if isinstance(new, Tensor) else new
            raise InputError(
                f"forward replaces the buffer {name}, {old.dtype} of shape {list(old.shape)}, by "
                f"{kind}: a buffer keeps its shape and its dtype"
            )
    return {name: values[name] for name in buffers}


def shown(name: str, module: nn.Module) -> str:
    """A module inside a model as messages name it: by its path and its class."""
    return f"{name or 'the model'} ({type(module).__name__})"


def _linears(module: nn.Module) -> list[str]:
    return [n for n, m in module.named_modules() if isinstance(m, nn.Linear)]


def _uncast(module: nn.Module) -> set[str]:
    return {
        f"{path}.{name}".strip(".")
        for path, part in module.named_modules()
        if getattr(part, "keeps_precision", False)
        for name, _ in part.named_parameters(recurse=False)
    }


def _looks_across_a_batch(module: nn.Module) -> bool:
    return isinstance(module, BATCH_NORMS) or getattr(module, "track_running_stats", False)
