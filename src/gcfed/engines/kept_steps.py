"""Compiled steps, kept on the disk and found again without a trace and without torch's compiler.

A step is known by what it does: it is run once, for the first client, and the operations that reach
the device are written down.  So a changed hook, or a changed number in one, makes another step.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gcfed.caches import CompiledNote, hash_of_package
from gcfed.core import tree
from gcfed.core.compiled_code import CompiledStep, are_aligned, as_plain, from_plain, loaded
from gcfed.core.torch_compiler import compiler_settings
from gcfed.core.torch_internals import Listener, memory_of, tree_flatten, tree_leaves, tree_map_only
from gcfed.engines.any_number import InParts
from gcfed.kernels.launching import NAMESPACE

ASKED = ("TORCH_", "TORCHINDUCTOR_", "TORCHDYNAMO_", "TRITON_")
"""Prefixes of the environment variables that may change what is compiled."""

MOST = 1_000
"""The most numbers of a constant: compiled code with a larger one cannot be kept."""

TWICE = 2
"""How often the first client is repeated, so that the axis of clients is not one of length 1."""


class KeptStep:
    """The place on the disk of a step that writes into its arguments.

    ``mapped`` says of each tensor inside the arguments, in the order of `tree.leaves`, whether its
    first axis is the clients'.
    """

    def __init__(self, note: CompiledNote, device: torch.device, mapped: Sequence[bool]) -> None:
        self._note, self._device, self._mapped = note, device, mapped

    @classmethod
    def of(
        cls, step: Callable[..., object], arguments: tuple[Any, ...], mapped: Sequence[bool]
    ) -> "KeptStep | None":
        """The place of a step; None if tensors are not aligned for kernels or the step fails."""
        leaves = tree.tensors(arguments)
        if not are_aligned(leaves):
            return None
        with suppress(Exception):  # what is wrong with a step shows when it is compiled
            done, device = what_it_does(step, arguments, mapped), leaves[0].device
            kind = str(device), torch.cuda.get_device_name(device)
            known = done, kind, _settings(), torch.__version__, hash_of_package()
            return cls(CompiledNote(repr(known)), device, mapped)
        return None

    @property
    def is_new(self) -> bool:
        """Whether no process has compiled the step; one that could not be kept is not new."""
        return not self._note.is_there()

    def find(self, tensors: Sequence[Tensor]) -> InParts | None:
        """The kept step, or None; it is run once as a trial, which writes into ``tensors``."""
        with suppress(Exception):  # then it is compiled, as if it had not been kept
            plain = json.loads(self._note.read())
            step = loaded(from_plain(plain), self._device.index)
            found = InParts(step, self._mapped, plain["most"])
            with torch.no_grad():
                found(*tensors)
            return found
        return None

    def kept(self, step: InParts) -> InParts:
        """A compiled step, whose code is written to the disk when it runs for the second time.

        In the first run the compiler chooses kernels; the second runs the code to be kept.  Both
        only prepare for a recording, so it does not matter what a failure leaves in the arguments.
        """
        compiled = step.step
        if not isinstance(compiled, CompiledStep):
            self._note.write()
            return step
        tried = partial(self._tried, compiled, step.most)
        runs: Iterator[Callable[..., Any]] = iter([compiled, tried])
        return replace(step, step=lambda *tensors: next(runs, compiled)(*tensors))

    def _tried(self, compiled: CompiledStep, most: int, *tensors: Tensor) -> Any:
        try:
            code = compiled.code()
            made = loaded(code, self._device.index)(*tensors)
        except Exception:  # what the compiler's parts do not give is not kept
            self._note.write()
            return compiled(*tensors)
        self._note.write(json.dumps({"most": most, **as_plain(code)}))
        return made


def what_it_does(
    step: Callable[..., object], arguments: tuple[Any, ...], mapped: Sequence[bool]
) -> str:
    """A hash of the operations of a step for the first client, whose tensors are left alone."""
    own = iter(mapped)

    def first(x: Tensor) -> Tensor:
        return x[:1].expand(TWICE, *x.shape[1:]).clone() if next(own) else x.clone()

    copies = tree.map(first, arguments)
    heard = _Heard(tree.tensors(copies), mapped)
    with torch.no_grad(), heard:
        step(*copies)
    return heard.digest()


class _Heard(Listener):  # type: ignore[no-untyped-call]
    """Hashes every operation, with its numbers and by which memory its tensors lie in.

    What is neither given nor made here is a constant, known by its value.
    """

    def __init__(self, inputs: Sequence[Tensor], mapped: Sequence[bool]) -> None:
        super().__init__()
        self._hash = hashlib.sha256()
        self._places: dict[object, int | None] = {}  # none for the memory of constants
        self._note(*map(self._made, inputs), repr(list(mapped)))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        leaves, shape = tree_flatten((args, kwargs or {}))
        self._note(str(func), str(shape), *map(self._given, leaves))
        if func.namespace == NAMESPACE:
            made = _unfilled(func, args, kwargs or {})
        else:
            made = func(*args, **(kwargs or {}))
        self._note(*map(self._made, tree_leaves(made)))
        return made

    def digest(self) -> str:
        return self._hash.hexdigest()

    def _note(self, *words: str) -> None:
        self._hash.update("\0".join((*words, "\n")).encode())

    def _made(self, x: Any) -> str:
        if isinstance(x, Tensor):
            self._places.setdefault(memory_of(x), len(self._places))
        return self._given(x)

    def _given(self, x: Any) -> str:
        if not isinstance(x, Tensor):
            return repr(x)
        where: object = self._places.setdefault(memory_of(x), None)
        if where is None:
            where = _value(x)
        bits = x.is_conj(), x.is_neg()  # by which some operations read a tensor otherwise
        return repr((where, x.dtype, x.device, x.shape, x.stride(), x.storage_offset(), bits))


def _value(constant: Tensor) -> object:
    if constant.numel() > MOST:
        raise ValueError("a step that holds so many numbers is not kept")
    return constant.tolist()


def _unfilled(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What one of our operators gives, without its numbers: its kernel is not compiled for it."""
    device = next(x.device for x in args if isinstance(x, Tensor))
    shapes = func(*tree_map_only(Tensor, lambda x: x.to("meta"), args), **kwargs)
    # not empty_like, for which torch imports sympy
    return tree_map_only(
        Tensor,
        lambda x: torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device),
        shapes,
    )


def _settings() -> tuple[object, ...]:
    asked = sorted(f"{k}={v}" for k, v in os.environ.items() if k.startswith(ASKED))
    deterministic = torch.are_deterministic_algorithms_enabled()
    return deterministic, torch.get_float32_matmul_precision(), compiler_settings(), *asked
