"""Inputs that are read when a batch needs them: they may be random, or too many for the memory."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, overload

import numpy as np
import torch
from torch import Tensor

from gcfed.core import tree

CPU = torch.device("cpu")


class ReadRequest(NamedTuple):
    """Examples to read, by their numbers, and a seed for whatever is random in each."""

    numbers: np.ndarray
    seeds: np.ndarray


class Reader(Protocol):
    """Reads examples of one shape and dtype by their numbers; ``why`` says why not all at once."""

    shape: torch.Size
    dtype: torch.dtype
    why: str

    def stream(self, requests: Iterable[ReadRequest]) -> Iterator[Tensor]:
        """What each request asks for, in order, stacked; later ones may be read ahead."""

    def close(self) -> None:
        """End the processes that read ahead; when there is something to read, others begin."""


@dataclass(frozen=True, eq=False)
class LazyInputs(tree.Leaf):
    """Stands for a tensor of examples that are not read yet; ``index`` holds their numbers.

    To index it gives another one.  `loaded` and `in_turn` read.  What is random in an example is
    drawn by its seed; without ``seeds`` that is its number, so that it is read alike every time.
    """

    reader: Reader
    index: np.ndarray
    device: torch.device = CPU
    seeds: np.ndarray | None = None
    cast: torch.dtype | None = None

    @property
    def shape(self) -> torch.Size:
        return torch.Size((*self.index.shape, *self.reader.shape))

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def dtype(self) -> torch.dtype:
        return self.cast or self.reader.dtype

    def is_floating_point(self) -> bool:
        return self.dtype.is_floating_point

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, rows: Any) -> "LazyInputs":
        rows = rows.cpu().numpy() if isinstance(rows, Tensor) else rows
        return replace(self, index=self.index[rows])

    def to(self, target: torch.device | torch.dtype) -> "LazyInputs":
        """The same, to be put on a device, or cast, once it is read."""
        if isinstance(target, torch.dtype):
            return replace(self, cast=target)
        return replace(self, device=target)

    def seeded(self, seeds: np.ndarray, real: Tensor) -> "LazyInputs":
        """The same with a seed for each example.

        Where an example is not ``real`` but padding, it is the first real one again, which is then
        read once.
        """
        mask = real.cpu().numpy()
        first = np.unravel_index(mask.argmax(), mask.shape)
        index = np.where(mask, self.index, self.index[first])
        return replace(self, index=index, seeds=np.where(mask, seeds, seeds[first]))

    @property
    def request(self) -> ReadRequest:
        seeds = self.index.astype(np.uint64) if self.seeds is None else self.seeds
        return ReadRequest(self.index.reshape(-1), seeds.reshape(-1))


Inputs = Tensor | dict[str, Tensor]
"""What a model reads of a batch: a tensor, or several by name; examples on the first axis."""

Stored = Inputs | LazyInputs
"""Inputs in memory, or those that are still to be read."""


@overload
def loaded(x: Tensor | LazyInputs) -> Tensor: ...
@overload
def loaded(x: Stored) -> Inputs: ...
def loaded(x: Stored) -> Inputs:
    """Inputs in memory."""
    return next(in_turn([x]))


def in_turn(parts: Iterable[Stored]) -> Iterator[Inputs]:
    """Inputs in memory, one after the other; of those still to be read, the next are read ahead.

    All parts are of the same data.
    """
    rest = iter(parts)
    for first in rest:
        if isinstance(first, LazyInputs):
            yield from _read_ahead(first, rest)
        else:
            yield first


def _read_ahead(first: LazyInputs, rest: Iterator[Any]) -> Iterator[Tensor]:
    asked = [first.shape]

    def requests() -> Iterator[ReadRequest]:
        yield first.request
        for part in rest:
            asked.append(part.shape)
            yield part.request

    for read in first.reader.stream(requests()):
        yield read.view(asked.pop(0)).to(first.device, first.dtype)
