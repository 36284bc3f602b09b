"""Who holds which examples."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gcfed.errors import InputError


class Pool(NamedTuple):
    """What a partition may look at of the examples to divide.

    ``labels`` is the class of each, or None where a task has none; ``keys`` holds whatever else
    distinguishes them (writer, domain), by name.
    """

    labels: np.ndarray | None
    keys: Mapping[str, np.ndarray]
    size: int


@dataclass(frozen=True, eq=False)
class Partition:
    """Examples by client: client ``k`` holds ``indices[offsets[k] : offsets[k + 1]]``.

    ``moved`` counts the examples that a repair took from one client to give to another.
    """

    indices: Tensor
    offsets: Tensor
    moved: int = 0

    def __post_init__(self) -> None:
        empty = torch.nonzero(self.sizes == 0).flatten().tolist()
        if empty:
            some = f"{empty[:5]}" if len(empty) <= 5 else f"{empty[:5]} and {len(empty) - 5} more"
            raise InputError(f"clients {some} hold no examples")

    @classmethod
    def of(cls, parts: Sequence[Tensor]) -> "Partition":
        """From the indices of each client."""
        if not parts or not all(isinstance(part, Tensor) for part in parts):
            raise InputError("a partition is a list of one tensor of indices for each client")
        sizes = torch.tensor([0, *map(len, parts)])
        return cls(torch.cat(list(parts)), sizes.cumsum(0))

    @classmethod
    def by_owner(cls, owner: np.ndarray, num_clients: int, moved: int = 0) -> "Partition":
        """From the client of each example; a client's indices ascend."""
        _, order = stable_sort(owner)
        sizes = np.bincount(owner, minlength=num_clients)
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        return cls(torch.from_numpy(order), torch.from_numpy(offsets), moved)

    def __len__(self) -> int:
        """The number of clients."""
        return len(self.offsets) - 1

    def __getitem__(self, client: int) -> Tensor:
        """The indices of a client's examples."""
        return torch.from_numpy(self.of_client(client))

    def of_client(self, client: int) -> np.ndarray:
        """`__getitem__` as numpy has it."""
        indices, offsets = self._arrays
        if not 0 <= client < len(offsets) - 1:
            raise IndexError(f"client {client} of {len(self)}")
        return indices[offsets[client] : offsets[client + 1]]

    def sizes_of(self, clients: Sequence[int]) -> np.ndarray:
        """How many examples each of some clients holds; never all, which may be millions."""
        _, offsets = self._arrays
        of = np.array(clients, np.int64)
        sizes: np.ndarray = offsets[of + 1] - offsets[of]
        return sizes

    def of_clients(
        self, clients: Sequence[int], multiple: int = 1
    ) -> tuple[np.ndarray, np.ndarray]:
        """The indices of some clients' examples, one client after the other, and how many each has.

        A client's first examples are repeated until there is a ``multiple`` of so many.
        """
        indices, offsets = self._arrays
        held = self.sizes_of(clients)
        sizes = -(-held // multiple) * multiple
        place = np.arange(sizes.sum()) - np.repeat(sizes.cumsum() - sizes, sizes)
        starts = offsets[np.array(clients, np.int64)]
        return indices[np.repeat(starts, sizes) + place % np.repeat(held, sizes)], sizes

    @cached_property
    def _arrays(self) -> tuple[np.ndarray, np.ndarray]:
        return self.indices.numpy(), self.offsets.numpy()

    @property
    def sizes(self) -> Tensor:
        """How many examples each client holds."""
        return self.offsets.diff()

    @cached_property
    def largest(self) -> int:
        """How many examples the client holds that holds the most."""
        return int(self.sizes.max())


def stable_sort(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Integers below 2^31 in ascending order, and where each stood; equal ones keep their order."""
    # torch has a radix sort for these, several times as fast as numpy, whose own stops at 16 bits.
    whole = torch.from_numpy(np.require(values, np.int32, ["C", "W"]))
    ordered, order = torch.sort(whole, stable=True)
    return ordered.numpy(), order.numpy()


def top_up(owner: np.ndarray, num_clients: int, min_size: int, rng: np.random.Generator) -> int:
    """Raise every client to ``min_size`` examples, in place; the number of examples moved.

    They come from clients with more than that, in lots of ``min_size`` where there are such: a
    client given the examples of a single other has a label mixture as skewed as this partition
    makes them, and one given some of everyone's has not.
    """
    sizes = np.bincount(owner, minlength=num_clients)
    short, surplus = np.maximum(min_size - sizes, 0), np.maximum(sizes - min_size, 0)
    moved = int(short.sum())
    if not moved:
        return 0
    lots = surplus // min_size
    num_lots = min(moved // min_size, int(lots.sum()))
    given = min_size * rng.multivariate_hypergeometric(lots, num_lots, method="marginals")
    rest = moved - int(given.sum())
    given += rng.multivariate_hypergeometric(surplus - given, rest, method="marginals")

    examples = np.flatnonzero(given[owner] > 0)
    rng.shuffle(examples)
    givers, order = stable_sort(owner[examples])
    held = sizes[given > 0]
    rank = np.arange(len(givers)) - np.repeat(held.cumsum() - held, held)
    receivers = rng.permutation(np.flatnonzero(short))
    owner[examples[order[rank < given[givers]]]] = np.repeat(receivers, short[receivers])
    return moved
