"""Tensors on their way to another machine: as bytes, which a Ray object store shares."""

import warnings
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gcfed.core import tree
from gcfed.engines.shared_memory import shape


class Parcel(NamedTuple):
    """A value, its tensors without memory, and the bytes of these in the order of `tree.leaves`."""

    value: Any
    contents: list[np.ndarray]


def pack(value: Any) -> Parcel:
    """Make a parcel of a value whose tensors may be on any device."""
    return Parcel(tree.map(shape, value), [_bytes(x) for _, x in tree.leaves(value)])


def unpack(parcel: Parcel) -> Any:
    """The value again, on the host.

    Its tensors lie where the bytes do, in memory that may be read by many processes and written by
    none: whoever gets them copies what is not only read.
    """
    shapes = (x for _, x in tree.leaves(parcel.value))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given buffer is not writable")
        tensors = [_tensor(data, x) for data, x in zip(parcel.contents, shapes, strict=True)]
    return tree.unflatten(parcel.value, tensors)


def _bytes(x: Tensor) -> np.ndarray:
    flat: np.ndarray = x.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return flat


def _tensor(data: np.ndarray, like: Tensor) -> Tensor:
    if like.numel() == 0:
        return torch.empty(like.shape, dtype=like.dtype)
    return torch.frombuffer(data, dtype=like.dtype).view(like.shape)
