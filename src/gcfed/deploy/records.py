"""Trees of tensors as Flower's records: arrays and plain numbers, checked before they are used."""

import math
from typing import Any, TypeVar

import torch
from flwr.app import Array, ArrayRecord, RecordDict
from torch import Tensor

from gcfed.core import tree
from gcfed.errors import InputError

T = TypeVar("T")


class BadMessageError(InputError):
    """A message does not hold what belongs into it."""


def to_arrays(value: Any) -> ArrayRecord:
    """The tensors of a value, by their paths in it."""
    record = ArrayRecord()
    for path, x in tree.leaves(value):
        record[path] = _array(x)
    return record


def from_arrays(content: RecordDict, name: str, like: T) -> T:
    """The value in a record, if its names, shapes and dtypes are those of ``like``."""
    record = content.array_records.get(name)
    if record is None:
        raise BadMessageError(f"it holds no {name}")
    wanted = dict(tree.leaves(like))
    if wrong := sorted(record.keys() ^ wanted.keys()):
        fault = "lacks" if wrong[0] in wanted else "has an unknown"
        raise BadMessageError(f"its {name} {fault} {wrong[0]}")
    return tree.unflatten(
        like, [_tensor(record[path], x, f"{name}{path}") for path, x in wanted.items()]
    )


def refuse_nonfinite(value: Any, name: str) -> None:
    """Refuse a value with a number that is not finite."""
    for path, x in tree.leaves(value):
        if x.is_floating_point() and not x.isfinite().all():
            raise BadMessageError(f"its {name}{path} is not finite")


def whole_number(content: RecordDict, name: str, key: str) -> int:
    """A whole number of a record of settings or of metrics."""
    value = _plain(content, name, key)
    if not isinstance(value, int) or isinstance(value, bool):
        raise BadMessageError(f"its {name} has no whole number {key}")
    return value


def finite_number(content: RecordDict, name: str, key: str) -> float:
    """A finite number of a record of settings or of metrics."""
    value = _plain(content, name, key)
    if not isinstance(value, float) or not math.isfinite(value):
        raise BadMessageError(f"its {name} has no finite number {key}")
    return value


def text(content: RecordDict, name: str, key: str) -> str:
    """A text of a record of settings."""
    value = _plain(content, name, key)
    if not isinstance(value, str):
        raise BadMessageError(f"its {name} has no text {key}")
    return value


def _plain(content: RecordDict, name: str, key: str) -> Any:
    record = {**content.config_records, **content.metric_records}.get(name, {})
    return record.get(key)


def _array(x: Tensor) -> Array:
    return Array(x.detach().cpu().contiguous().numpy())


def _tensor(array: Array, like: Tensor, name: str) -> Tensor:
    """The numbers of an array that lies in memory exactly as ``like`` would.

    Its header is compared with the one that belongs there and never read, so that nobody can make
    us reserve memory for numbers that did not come.
    """
    model = _array(like).data
    header = len(model) - like.numel() * like.element_size()
    data = array.data
    if len(data) != len(model) or data[:header] != model[:header]:
        wanted = f"{list(like.shape)} of {like.dtype}".replace("torch.", "")
        raise BadMessageError(f"its {name} is {list(array.shape)} of {array.dtype}, not {wanted}")
    if like.numel() == 0:
        return torch.empty_like(like)
    numbers = torch.frombuffer(bytearray(data), dtype=torch.uint8)[header:]
    aligned = numbers.clone()  # as torch's own memory is: the order of sums may depend on it
    return aligned.view(like.dtype).reshape(like.shape).to(like.device)
