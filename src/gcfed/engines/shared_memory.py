"""Memory that several processes see, and tensors in it."""

import mmap
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import Any, TypeVar

import torch
from torch import Tensor

from gcfed.core import tree

T = TypeVar("T")

NAME = "gcfed"  # of the memory, in /proc/PID/maps


def can_share_memory() -> bool:
    """Whether this system has files that lie in memory alone."""
    return sys.platform == "linux"


@contextmanager
def allocated(like: Any) -> Iterator[int]:
    """A new file in memory with room for tensors shaped as those of ``like``; its descriptor.

    The memory goes when the last tensor in it has gone, in whatever process.
    """
    file = os.memfd_create(NAME)
    try:
        os.ftruncate(file, sum(_room(x) for _, x in tree.leaves(like)))
        yield file
    finally:
        os.close(file)


def lay_into(file: int, like: T) -> T:
    """Tensors shaped as those of ``like``, one after the other in a file in memory.

    Two processes that call it with the same shapes see the same tensors.
    """
    memory = mmap.mmap(file, 0)
    shapes = tree.tensors(like)
    ends = accumulate(map(_room, shapes))
    tensors = [_tensor(memory, x, end - _room(x)) for x, end in zip(shapes, ends, strict=True)]
    return tree.unflatten(like, tensors)


def shape(x: Tensor, count: int | None = None) -> Tensor:
    """A tensor without memory, shaped as ``x``, or as so many of them stacked."""
    sizes = x.shape if count is None else (count, *x.shape)
    return torch.empty(sizes, dtype=x.dtype, device="meta")


def _room(x: Tensor) -> int:
    """The bytes of whole pages: as if every tensor had been allocated by itself."""
    return max(1, -(-x.numel() * x.element_size() // mmap.PAGESIZE)) * mmap.PAGESIZE


def _tensor(memory: mmap.mmap, like: Tensor, start: int) -> Tensor:
    if like.numel() == 0:
        return torch.empty(like.shape, dtype=like.dtype)
    flat = torch.frombuffer(memory, dtype=like.dtype, count=like.numel(), offset=start)
    return flat.view(like.shape)
