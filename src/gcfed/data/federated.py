"""Clients' examples, held as tensors."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gcfed.core import tree
from gcfed.core.batches import DataHandle
from gcfed.core.ignored import IGNORED, all_ignored
from gcfed.core.types import Examples, Stored
from gcfed.data.partitions.partition import Partition
from gcfed.errors import InputError


@dataclass(frozen=True)
class FederatedData:
    """All examples, and who holds which: a `Partition`, or a list of each client's indices.

    ``x`` is a tensor or a dict of tensors, or `LazyInputs`.  ``y`` is a class per example, or any
    other target (numbers, token ids), which has no label counts.
    """

    x: Stored
    y: Tensor
    parts: Partition
    num_classes: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.parts, Partition):
            object.__setattr__(self, "parts", Partition.of(self.parts))
        first, last = self.parts.indices.min(), self.parts.indices.max()
        if not 0 <= first <= last < len(self.y):
            raise InputError(f"a client's indices, {first} to {last}, leave {len(self.y)} examples")
        if self.has_classes and not 0 <= self.y.min() <= self.y.max() < self.num_classes:
            found = f"{self.y.min()} to {self.y.max()}"
            raise InputError(f"labels from {found} are not of {self.num_classes} classes")
        if all_ignored(self.y):
            raise InputError(
                f"every train label is {IGNORED}, which does not count, so there is nothing to "
                "train on: give the labels of the tokens that are to be learnt"
            )

    def __getstate__(self) -> dict[str, Any]:
        """What a copy is made of: no handle, as that would stand for the examples it has here."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def has_classes(self) -> bool:
        """Whether y is one class per example."""
        return self.num_classes > 0 and self.y.ndim == 1 and self.y.dtype == torch.int64

    @cached_property
    def handle(self) -> DataHandle:
        """The handle by which jobs refer to these examples."""
        return DataHandle(Examples(self.x, self.y))

    @property
    def num_clients(self) -> int:
        return len(self.parts)

    def num_examples(self, ids: Sequence[int]) -> Tensor:
        return torch.from_numpy(self.parts.sizes_of(ids))

    def label_counts(self, ids: Sequence[int], multiple: int = 1) -> Tensor:
        """How many examples of each class a client holds; of width 0 where there are none.

        Its first examples are repeated until their number is a ``multiple`` of this.
        """
        if not self.has_classes:
            return torch.zeros(len(ids), 0)
        held, sizes = self.parts.of_clients(ids, multiple)
        client = np.repeat(np.arange(len(sizes)), sizes)
        cell = client * self.num_classes + self._host_labels[held]
        counts = np.bincount(cell, minlength=len(sizes) * self.num_classes)
        return torch.from_numpy(counts.reshape(len(sizes), self.num_classes))

    @cached_property
    def _host_labels(self) -> np.ndarray:
        return self.y.cpu().numpy()

    def to(self, device: torch.device) -> "FederatedData":
        """The same with its examples on ``device``; who holds which stays with the host."""
        x = tree.map(lambda v: v.to(device), self.x)
        return replace(self, x=x, y=self.y.to(device))
