"""How laws compare numbers that ought to be equal."""

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
        if (by := gap(x, y)) > tolerance:
            raise LawBroken(f"{broken}: by {by:.1e} in {path}")


def same(x: Tensor, y: Tensor) -> Tensor:
    """Which numbers are the same; what is no number is the same as itself."""
    return (x == y) | (x.isnan() & y.isnan())


def gap(x: Tensor, y: Tensor) -> float:
    """By how much two tensors differ where they do most."""
    if not x.numel():
        return 0.0
    gaps = (x.double() - y.double()).abs().nan_to_num(torch.inf)
    return gaps.masked_fill(same(x, y), 0.0).max().item()
