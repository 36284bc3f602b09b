"""What laws compare: numbers that ought to be equal, and arguments before and after a hook."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gcfed.core import tree


class LawBroken(AssertionError):  # noqa: N818 (a law is broken; nothing erred)
    """Which law an algorithm breaks, and by how much."""


def shapes(value: Any) -> dict[str, str]:
    """The dtype and the shape of every tensor, by its path."""
    return {path: f"{x.dtype} {list(x.shape)}" for path, x in tree.leaves(value)}


def compare(broken: str, a: Any, b: Any, tolerance: float = 1e-9) -> None:
    """Raise that something is ``broken`` where two values differ by more than ``tolerance``."""
    if shapes(a) != shapes(b):
        raise LawBroken(f"{broken}: {shapes(a)} is not {shapes(b)}")
    for (path, x), (_, y) in zip(tree.leaves(a), tree.leaves(b), strict=True):
        if (gap := _gap(x, y)) > tolerance:
            raise LawBroken(f"{broken}: by {gap:.1e} in {path}")


def watch(hook: Callable[..., Any], changes: list[str]) -> Callable[..., Any]:
    """A hook that adds to ``changes`` what it does to its arguments, in words."""

    def call(*args: Any) -> Any:
        before = [(path, x.clone()) for path, x in tree.leaves(args)]
        out = hook(*args)
        after = list(tree.leaves(args))
        if [path for path, _ in before] != [path for path, _ in after]:
            changes.append(f"{hook.__name__} adds to an argument or takes from it")
            return out
        for (path, old), (_, new) in zip(before, after, strict=True):
            if not _same(old, new).all():
                gap = _gap(old, new)
                changes.append(f"{hook.__name__} changes an argument, {path}, by {gap:.1e}")
        return out

    return call


def _same(x: Tensor, y: Tensor) -> Tensor:
    """Which numbers are the same; what is no number is the same as itself."""
    return (x == y) | (x.isnan() & y.isnan())


def _gap(x: Tensor, y: Tensor) -> float:
    """By how much two tensors differ where they do most."""
    if not x.numel():
        return 0.0
    gaps = (x.double() - y.double()).abs().nan_to_num(torch.inf)
    return gaps.masked_fill(_same(x, y), 0.0).max().item()
