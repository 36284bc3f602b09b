"""Hooks under watch: what they write into, and what they keep where nothing should be kept."""

import copy
import inspect
import io
import pickle
from collections.abc import Callable, Collection
from functools import wraps
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from gcfed.core import tree
from gcfed.core.algorithm import ARGUMENTS, Algorithm
from gcfed.core.chain import Chain
from gcfed.core.hook_checks import named
from gcfed.testing.comparing import gap, same


def watched(algorithm: Algorithm, changes: list[str], *, mapped: Collection[str] = ()) -> Algorithm:
    """The same algorithm, whose hooks add to ``changes`` what they change, in words.

    Those that are ``mapped`` run under ``vmap``, where the numbers they are given cannot be
    compared.
    """
    if isinstance(algorithm, Chain):
        return Chain(tuple(watched(p, changes, mapped=mapped) for p in algorithm.links))
    twin = copy.copy(algorithm)
    for name in ARGUMENTS:
        hook = _keeping(algorithm, name, getattr(algorithm, name), changes)
        if name not in mapped:
            hook = _writing(algorithm, name, hook, changes)
        object.__setattr__(twin, name, hook)
    return twin


def _writing(
    part: Algorithm, name: str, hook: Callable[..., Any], changes: list[str]
) -> Callable[..., Any]:
    """A hook that tells what it does to its arguments."""

    @wraps(hook)
    def call(*args: Any) -> Any:
        given = dict(zip(ARGUMENTS[name], args, strict=True))
        before = {path: x.clone() for path, x in tree.leaves(given)}
        out = hook(*args)
        after = dict(tree.leaves(given))
        told = f"{named(part, name)} changes what it is given"
        changes.extend(
            f"{told}: {path[1:]} comes or goes" for path in sorted(before.keys() ^ after)
        )
        for path, old in before.items():
            if path in after and not _equal(old, new := after[path]):
                changes.append(f"{told}: {path[1:]}{_change(old, new)}")
        return out

    return call


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool(same(a, b).all())


def _change(a: Tensor, b: Tensor) -> str:
    if a.shape != b.shape:
        return f", from shape {list(a.shape)} to {list(b.shape)}"
    return f", by {gap(a, b):.1e}"


def _keeping(
    part: Algorithm, name: str, hook: Callable[..., Any], changes: list[str]
) -> Callable[..., Any]:
    """A hook that tells what it keeps outside of state, memory and rows."""

    @wraps(hook)
    def call(*args: Any) -> Any:
        before = _reached(part, name)
        try:
            return hook(*args)
        finally:
            after = _reached(part, name)
            # an instance may gain what it had not, as by functools.cached_property
            new = {n for n in after.keys() - before.keys() if not n.startswith("self.")}
            kept = sorted(new | {n for n, was in before.items() if after.get(n) != was})
            if kept:
                changes.append(
                    f"{named(part, name)} keeps something in {', '.join(kept)}, which no other "
                    "process and no checkpoint has: keep it in the server's state, in a client's "
                    "memory or in a row"
                )

    return call


def _reached(part: Algorithm, name: str) -> dict[str, bytes]:
    """What a hook reaches beside its arguments, by name, as bytes by which a change is seen."""
    found: dict[str, Any] = {f"self.{n}": x for n, x in vars(part).items()}
    for cls in type(part).__mro__:
        if issubclass(cls, Algorithm) and cls is not Algorithm:
            found |= {f"{cls.__name__}.{n}": x for n, x in vars(cls).items() if n[:2] != "__"}
    hook = inspect.unwrap(getattr(part, name))
    if isinstance(code := getattr(hook, "__func__", hook), FunctionType):
        variables = inspect.getclosurevars(code)
        found |= {**variables.globals, **variables.nonlocals}
    return {n: pickled for n, x in found.items() if (pickled := _pickled(x))}


def _pickled(value: Any) -> bytes:
    """A value as bytes; none of code, which does not change, and of what cannot be pickled."""
    if isinstance(value, type) or callable(value):
        return b""
    written = io.BytesIO()
    try:
        _Pickler(written).dump(value)
    except Exception:  # whatever a class of others raises
        return b""
    return written.getvalue()


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, torch.Generator):  # torch's own way writes an address, which changes
            return bytes, (bytes(value.get_state().tolist()),)
        return NotImplemented
