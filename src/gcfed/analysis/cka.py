"""How alike clients and the global model see the same examples, layer by layer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from gcfed.analysis import similarity
from gcfed.analysis.probe import PROBES, Observation, Probe, Sight
from gcfed.core import tree
from gcfed.core.client import LocalModel
from gcfed.core.model import Model
from gcfed.core.types import Inputs
from gcfed.errors import InputError
from gcfed.simulation.setup import Setup
from gcfed.values import check_range

GlobalModel = Literal["received", "new"]
Grams = Mapping[str, Sequence[Tensor]]
"""Matrices of similarities between examples, by layer: one of them all, or one a batch."""

LOGITS = "logits"
"""What the whole model puts out, among the names of layers."""


@PROBES.register("cka")
@dataclass(frozen=True)
class CKA(Probe):
    r"""How alike clients and the global model see the same examples, layer by layer: from 0 to 1.

    ``received.LAYER`` is the CKA between a client's model at the end of the round and the global
    model that it received; ``new.LAYER`` is the one between it and the global model that the round
    came to.  Both are means over the clients.  ``against`` chooses one of them.

    - ``kernel``: ``"linear"``, or ``"rbf"`` with a bandwidth of ``bandwidth`` times the median
      distance between two examples.
    - ``unbiased``: whether to take the mean of the unbiased estimate over batches, in place of the
      plain number of all examples at once.
    - ``examples``: how many test examples are looked at, the same ones in every round of every run;
      ``batch``: how many at a time.  No more activations are held than those of two batches.
    - ``layers``: modules by name, ``"logits"`` being what the whole model puts out; by default
      every layer with weights, of which the last gives the logits in most models.

    What a layer puts out is one row for each example.  A client in which a layer gives the same for
    every example does not count there.

    Kornblith et al., 2019, https://arxiv.org/abs/1905.00414; `gcfed.analysis.similarity` has the
    equations.
    """

    needs: ClassVar[frozenset[Sight]] = frozenset({"models", "batch"})

    kernel: Literal["linear", "rbf"] = "linear"
    unbiased: bool = False
    examples: int = 256
    batch: int = 256
    layers: tuple[str, ...] = ()
    against: tuple[GlobalModel, ...] = ("received", "new")
    bandwidth: float = 0.5

    def check(self, setup: Setup) -> None:
        for name in ("examples", "batch"):
            check_range(f"cka({name}=...)", getattr(self, name), "at least 1")
        check_range("cka(bandwidth=...)", self.bandwidth, "positive")
        least = self.examples // -(-self.examples // self.batch)  # batches are about equal
        if self.unbiased and least < 4:
            raise InputError("cka(unbiased=True) needs batches of at least 4 examples")
        if not self.against:
            raise InputError("cka(against=...) names a global model: 'received', 'new' or both")
        with setup.model.outputs(self._paths(setup.model)):
            pass  # a layer that is not there is refused

    def measure(self, seen: Observation) -> Mapping[str, float]:
        setup, models = seen.setup, seen.result.models
        if models is None or not seen.rows:
            layers = self._paths(setup.model)
            return {f"{which}.{layer}": torch.nan for which in self.against for layer in layers}
        batches = self._batches(seen)
        found: dict[str, list[Tensor]] = {}
        shared: dict[GlobalModel, Grams] = {}
        for k in seen.rows:
            local = tree.take(models, k)
            own = self._grams(setup, local, batches)
            if not shared or _has_own_buffers(seen):
                shared = {
                    which: self._grams(setup, _global(seen, which, local), batches)
                    for which in self.against
                }
            for which, grams in shared.items():
                for layer in own:
                    value = similarity.cka(own[layer], grams[layer], self._hsic)
                    found.setdefault(f"{which}.{layer}", []).append(value)
        return {name: torch.stack(values).nanmean().item() for name, values in found.items()}

    def _batches(self, seen: Observation) -> list[Inputs]:
        """The examples, in batches of about equal size."""
        x = seen.sample(self.examples)
        size = _num_examples(x)
        parts = torch.arange(size).tensor_split(-(-size // self.batch))
        return tree.split(x, [len(part) for part in parts])

    @property
    def _hsic(self) -> similarity.Hsic:
        return similarity.unbiased_hsic if self.unbiased else similarity.hsic

    def _paths(self, model: Model) -> dict[str, str]:
        """The paths of the modules that are looked at, by the name that their numbers go under."""
        weights = (name for name, role in model.roles.items() if role.is_weight)
        owners = dict.fromkeys(name.rpartition(".")[0] for name in weights)
        layers = self.layers or [owner or LOGITS for owner in owners] or [LOGITS]
        return {layer: "" if layer == LOGITS else layer for layer in layers}

    def _grams(self, setup: Setup, model: LocalModel, batches: Sequence[Inputs]) -> Grams:
        """What a model makes of the batches, as similarities between examples."""

        def activate(x: Inputs) -> dict[str, Tensor]:
            with setup.model.outputs(paths) as found:
                setup.client_task.forward(model.params, x, buffers=model.buffers, train=False)
            idle = [layer for layer in self.layers if layer not in found]
            if idle:
                raise InputError(f"cka: the model runs without {idle[0]}, so it has no activations")
            size = _num_examples(x)
            return {layer: _rows(layer, found[layer], size) for layer in paths if layer in found}

        paths = self._paths(setup.model)
        make = similarity.batch_grams if self.unbiased else similarity.whole_gram
        grams = make(activate, batches)
        if self.kernel == "linear":
            return grams
        return {
            layer: [similarity.rbf(gram, self.bandwidth) for gram in each]
            for layer, each in grams.items()
        }


def _global(seen: Observation, which: GlobalModel, local: LocalModel) -> LocalModel:
    """A global model, with the client's buffers where each client has its own."""
    if which == "received":
        server = seen.received
        params, _ = seen.setup.server_task.broadcast(server)
    else:
        server = seen.result.server
        params = server.params
    return LocalModel(params, local.buffers if _has_own_buffers(seen) else server.buffers)


def _has_own_buffers(seen: Observation) -> bool:
    return seen.setup.buffers == "local" and bool(seen.received.buffers)


def _num_examples(x: Inputs) -> int:
    return len(next(tree.leaves(x))[1])


def _rows(layer: str, output: Tensor, size: int) -> Tensor:
    """What a layer put out, as a matrix with a row for each example.

    Half precision becomes float32, in which the sums are taken.
    """
    if output.ndim == 0 or len(output) != size:
        raise InputError(
            f"cka: the layer {layer} puts out {list(output.shape)} for {size} examples, where the "
            "first axis must count them: name other layers, as in cka(layers=('fc1', 'logits'))"
        )
    dtype = torch.promote_types(output.dtype, torch.float32)
    return output.to(dtype).reshape(size, -1)
