"""Arrays of people's own examples: of which types they are, and where the channels stand."""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gcfed.core.lazy import LazyInputs
from gcfed.errors import InputError

_CHANNELS = (1, 3, 4)


class Collected(NamedTuple):
    """``x`` on its first axis by example; ``y`` numbers or words; ``client`` who holds which.

    Several inputs are arrays by name.  ``note`` says what of a table was left out.
    """

    x: np.ndarray | LazyInputs | dict[str, np.ndarray]
    y: np.ndarray
    class_names: tuple[str, ...] = ()
    client: np.ndarray | None = None
    note: str = ""


def from_arrays(pair: tuple[Any, Any], where: str) -> Collected:
    """A pair of arrays or tensors, inputs and labels."""
    x, y = (as_array(v, where) for v in pair)
    if x.ndim == 0 or y.ndim == 0:
        raise InputError(f"{where}: x and y have an axis of examples; not one number alone")
    x = channels_first(x, isinstance(pair[0], Tensor))
    if y.ndim == 2 and y.shape[1] == 1 and y.dtype.kind in "iu":
        y = y[:, 0]
    return Collected(narrowed(x, where), y)


def channels_first(x: np.ndarray, is_tensor: bool) -> np.ndarray:
    """[n, rows, columns] of bytes and [n, rows, columns, channels] as [n, channels, rows, columns].

    Tensors have their channels first by custom; arrays only if nothing else makes sense.
    """
    if x.ndim == 3:
        return x[:, None] if x.dtype == np.uint8 else x
    last = x.ndim == 4 and x.shape[3] in _CHANNELS and x.shape[1] not in _CHANNELS
    return x.transpose(0, 3, 1, 2) if last and not is_tensor else x


def as_array(value: Any, where: str) -> np.ndarray:
    """A value as an array of numbers or words."""
    if isinstance(value, Tensor) and value.dtype == torch.bfloat16:
        value = value.float()  # numpy has none
    if np.ma.is_masked(value):
        raise InputError(f"{where}: values are masked: give value.filled(...), or leave them out")
    try:
        array = value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:  # it may be sparse, or hold nothing
        said = str(error).splitlines()[0]
        if isinstance(value, Tensor) and (value.is_nested or value.is_quantized):
            said = "a tensor that is nested or quantized: give to_padded_tensor(0) or dequantize()"
        raise InputError(f"{where}: {said}") from None
    if array.dtype.kind == "O" and array.size and all(isinstance(v, str) for v in array.flat):
        array = array.astype(str)  # as pandas holds words
    if array.dtype.kind not in "biufU":
        raise InputError(f"{where}: neither numbers nor words, but {array.dtype}: give either")
    if array.dtype == np.uint64 and (array > np.iinfo(np.int64).max).any():
        raise InputError(f"{where}: whole numbers are below 2^63; not {array.max()}")
    return array


def narrowed(x: np.ndarray, where: str) -> np.ndarray:
    """Bytes and float64 stay so, other whole numbers (tokens) become int64, all else float32."""
    if x.dtype.kind == "U":
        raise InputError(f"{where}: inputs are words; turn them into numbers first")
    if x.dtype.kind == "f":
        return x if x.dtype == np.float64 else x.astype(np.float32, copy=False)
    return x if x.dtype == np.uint8 else x.astype(np.int64, copy=False)
