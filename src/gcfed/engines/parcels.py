"""Tensors and data sets on their way to another machine: as bytes, which Ray's store shares."""

import warnings
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gcfed.core import tree
from gcfed.core.types import Examples
from gcfed.engines.shared_memory import shape
from gcfed.errors import InputError, reason
from gcfed.pickling import by_value, unpacked


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


class ExamplesParcel(NamedTuple):
    """Examples: a parcel of their tensors, and the inputs still to be read, if any, as a pickle."""

    tensors: Parcel
    lazy: bytes


def pack_examples(examples: Examples) -> ExamplesParcel:
    """Make a parcel of examples; a data set that is read while training is sent as it is."""
    try:
        lazy = by_value(examples.lazy)
    except Exception as error:
        raise InputError(
            "the ray engine sends a data set that is read while training to its workers, and this "
            f"one cannot be pickled: {reason(error)}; have it open files and the like when an "
            "example is read, or take the engine workers or sequential"
        ) from error
    return ExamplesParcel(pack(examples.in_memory()), lazy)


def unpack_examples(parcel: ExamplesParcel) -> Examples:
    """The examples again, those in memory as `unpack` gives them."""
    tensors: Examples = unpack(parcel.tensors)
    return tensors.with_lazy(unpacked(parcel.lazy))


def _bytes(x: Tensor) -> np.ndarray:
    flat: np.ndarray = x.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return flat


def _tensor(data: np.ndarray, like: Tensor) -> Tensor:
    if like.numel() == 0:
        return torch.empty(like.shape, dtype=like.dtype)
    return torch.frombuffer(data, dtype=like.dtype).view(like.shape)
