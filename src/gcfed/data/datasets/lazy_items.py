"""Data sets of people's own that are read example by example, whenever a batch needs one."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from torch.utils.data import Subset

from gcfed.core.lazy import LazyInputs, ReadRequest
from gcfed.data.datasets.arrays import Collected, as_array
from gcfed.data.item_reader import ItemReader, Items
from gcfed.errors import InputError
from gcfed.values import check_range, checked

RANDOM = "their transforms are random"
"""Why examples are read anew for every batch, where nobody asked for it."""

COMPARED = 8  # examples of which the label is compared with what the data set says beforehand


@dataclass(frozen=True, eq=False)
class Lazy:
    """A map-style dataset of (image, label) that is read while training and not before.

    So it need not fit in memory.  ``labels`` are those of all examples; without them they are the
    dataset's ``targets``, as torchvision's datasets have them, or else every example is read once
    before training to learn its label.  ``processes`` read the next batches ahead: as many as there
    are cores, but at most 8; with 0, batches are read where they are needed.

    >>> from torch.utils.data import TensorDataset
    >>> import torch
    >>> from gcfed.data import dataset_from
    >>> lazy = Lazy(TensorDataset(torch.zeros(50, 3), torch.arange(50) % 5), processes=0)
    >>> dataset_from(lazy).train.x.shape
    torch.Size([40, 3])
    """

    dataset: Any
    labels: Any = None
    processes: int | None = None

    def __post_init__(self) -> None:
        if not hasattr(self.dataset, "__getitem__") or not hasattr(self.dataset, "__len__"):
            kind = type(self.dataset).__name__
            raise InputError(f"Lazy takes a dataset with __getitem__ and __len__; not {kind}")
        if self.processes is not None:
            check_range("processes", checked("processes", self.processes, int), "at least 0")

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, i: int) -> Any:
        return self.dataset[i]


def lazily(source: Any, items: Items, stated: np.ndarray | None, why: str) -> Collected:
    """The examples of ``items``, which read ``source``, to be read when they are needed.

    The labels are those that were given, or ``stated`` if a few examples have these, or else those
    of the examples, which are then read once.
    """
    if not items.size:
        raise InputError(f"{items.where}: there are no examples")
    asked = source if isinstance(source, Lazy) else Lazy(source)
    reader = ItemReader(items, asked.processes, why)
    labels = asked.labels
    if labels is None and stated is not None and _holds(stated, items):
        labels = stated
    if labels is None:
        labels = [as_array(label, items.where) for label in reader.labels()]
    return Collected(LazyInputs(reader, np.arange(items.size)), as_array(labels, items.where))


def _holds(stated: np.ndarray, items: Items) -> bool:
    """Whether there is a label for each example, and some that are compared are theirs."""
    if len(stated) != items.size:
        return False
    some = np.unique(np.linspace(0, items.size - 1, COMPARED).astype(np.int64))
    read = items.labels(ReadRequest(some, some.astype(np.uint64)))
    return all(np.array_equal(label, stated[i]) for i, label in zip(some, read, strict=True))


def targets(source: Any) -> np.ndarray | None:
    """The labels as torchvision's datasets state them, if this one does."""
    if isinstance(source, Lazy):
        return targets(source.dataset)
    if isinstance(source, Subset):
        whole = targets(source.dataset)
        return None if whole is None else whole[np.asarray(source.indices)]
    stated = getattr(source, "targets", None)
    return None if stated is None else np.asarray(stated)


@dataclass(frozen=True)
class _Joined:
    """Reads an example of several data sets, which are counted through."""

    parts: Sequence[Items]
    ends: Sequence[int]

    def __call__(self, i: int) -> tuple[np.ndarray, Any]:
        k = bisect_right(self.ends, i)
        return self.parts[k].read(i - self.ends[k] + self.parts[k].size)


def joined_lazily(inputs: Sequence[LazyInputs | np.ndarray]) -> LazyInputs:
    """The inputs of several clients as those of one data set."""
    found = [x.reader for x in inputs if isinstance(x, LazyInputs)]
    readers = [reader for reader in found if isinstance(reader, ItemReader)]
    if len(readers) < len(inputs):
        raise InputError(
            "some clients hold data to be read when they are needed (Lazy, or with random "
            "transforms) and some do not: give a map-style dataset for every client, or for none"
        )
    parts = [reader.items for reader in readers]
    ends = list(accumulate(part.size for part in parts))
    items = Items(_Joined(parts, ends), ends[-1], "clients'")
    reader = ItemReader(items, readers[0].processes, readers[0].why)
    return LazyInputs(reader, np.arange(items.size))
