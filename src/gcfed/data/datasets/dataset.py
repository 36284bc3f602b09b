"""A data set: train and test examples of one task, and how a model reads them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from gcfed.core import tree
from gcfed.core.lazy import LazyInputs
from gcfed.core.types import Examples, Transform
from gcfed.data.partitions.partition import Pool
from gcfed.errors import InputError
from gcfed.registry import Registry
from gcfed.values import check_range, checked


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """What a model is trained and tested on.

    ``transform`` is the first thing that x goes through (normalisation, augmentation).  ``keys``
    holds what else is known of each train example (its writer, its client), for partitions.
    ``note`` is a line for people, said before the first round: what was left out, say.
    """

    train: Examples
    test: Examples
    num_classes: int
    transform: Transform | None = None
    class_names: tuple[str, ...] = ()
    keys: Mapping[str, np.ndarray] = field(default_factory=dict)
    note: str = ""

    def __post_init__(self) -> None:
        for name, examples in (("train", self.train), ("test", self.test)):
            x, y = checked(f"Dataset({name}=...)", examples, Examples)
            for v in x.values() if isinstance(x, dict) else [x]:
                if len(v) != len(y):
                    raise InputError(f"{len(v)} {name} examples have {len(y)} labels")
                _refuse_nonfinite(v, f"{name} example", "holds")
            _refuse_nonfinite(y, f"{name} example", "has a label with")
            self._check_labels(name, y)
        one, other = self.train.y, self.test.y
        alike = one.is_floating_point() == other.is_floating_point()
        if one.shape[1:] != other.shape[1:] or not alike:
            kinds = " and ".join(f"{y.dtype} of shape {list(y.shape[1:])}" for y in (one, other))
            raise InputError(f"train and test labels are of different kinds: {kinds}")
        if self.class_names and len(self.class_names) != self.num_classes:
            raise InputError(f"{self.num_classes} classes have {len(self.class_names)} names")

    def _check_labels(self, name: str, y: Tensor) -> None:
        if self.num_classes > 0 and y.ndim == 1 and not y.is_floating_point():
            wrong = ((y < 0) | (y >= self.num_classes)).nonzero()
            if len(wrong):
                bad = int(wrong[0])
                raise InputError(
                    f"{name} example {bad} is of class {int(y[bad])}, and there are "
                    f"{self.num_classes}, counted from 0"
                )

    @property
    def has_classes(self) -> bool:
        return self.num_classes > 0 and self.train.y.ndim == 1

    @property
    def num_outputs(self) -> int:
        """How many numbers a model says of an example: one a class, or one a number of a label."""
        return self.num_classes or self.train.y[:1].numel()

    @property
    def pool(self) -> Pool:
        """The train examples, as a partition sees them."""
        labels = self.train.y.cpu().numpy() if self.has_classes else None
        return Pool(labels, self.keys, len(self.train.y))

    def to(self, device: torch.device) -> "Dataset":
        """The same with its examples on ``device``; itself, and not checked again, if they are."""
        here, there = (self.train, self.test), (self.train.to(device), self.test.to(device))
        pairs = zip(tree.leaves(here), tree.leaves(there), strict=True)
        if all(one is other for (_, one), (_, other) in pairs):
            return self
        return replace(self, train=there[0], test=there[1])


def _refuse_nonfinite(values: Tensor | LazyInputs, what: str, has: str) -> None:
    """Refuse numbers that are not finite; those still to be read are looked at then."""
    if isinstance(values, Tensor) and values.is_floating_point() and not values.isfinite().all():
        bad = int((~values.isfinite().reshape(len(values), -1).all(1)).nonzero()[0])
        raise InputError(f"{what} {bad} {has} a number that is not finite")


def seeded_generator(seed: int) -> np.random.Generator:
    """What draws the examples of a data set, or which of them are held out."""
    check_range("the seed of a data set", checked("seed", seed, int), "at least 0")
    return np.random.default_rng(seed)


def class_name(dataset: Dataset, label: int) -> str:
    """What a class is called, with its number where another is called the same."""
    names = dataset.class_names
    if not names:
        return str(label)
    return names[label] if names.count(names[label]) == 1 else f"{names[label]} ({label})"


DATASETS: Registry[Callable[..., Dataset]] = Registry("dataset")
"""Functions of a folder of data, which they may leave alone, that give a `Dataset`."""
