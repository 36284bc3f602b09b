"""Which examples a client sees at which step, and the batches made of them."""

import math
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from itertools import tee
from typing import Literal
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor

from gcfed.core import tree
from gcfed.core.lazy import LazyInputs, Stored, in_turn
from gcfed.core.transfer import on_device
from gcfed.core.types import Batch, Examples
from gcfed.errors import InputError

Fill = Literal["repeat", "none"]
"""Whether a client's first examples are repeated until every batch is full."""


@dataclass(frozen=True, eq=False)
class BatchPlan:
    """What a client trains on: row t of ``index`` is step t's, its first ``sizes[t]`` examples.

    The rest of a row is padding: it repeats an example of the client's own, whose loss is finite
    under any algorithm.  ``seed`` is for what is random in examples as they are read.
    """

    index: np.ndarray
    sizes: np.ndarray
    seed: int = 0

    @classmethod
    def of(cls, steps: Sequence[Tensor]) -> "BatchPlan":
        """From the indices of each step."""
        sizes = np.array([len(step) for step in steps])
        index = np.full((len(steps), sizes.max()), int(steps[0][0]))
        for row, step in zip(index, steps, strict=True):
            row[: len(step)] = step.numpy()
        return cls(index, sizes)

    def first(self, steps: int) -> "BatchPlan":
        """The first of its steps."""
        return replace(self, index=self.index[:steps], sizes=self.sizes[:steps])

    def seeds(self, step: int, width: int) -> np.ndarray:
        """A seed for each place of a step's batch, whatever the width."""
        return np.random.SeedSequence((self.seed, step)).generate_state(width, np.uint64)

    def __len__(self) -> int:
        """The number of steps."""
        return len(self.sizes)

    def __iter__(self) -> Iterator[Tensor]:
        """The examples of each step, without padding."""
        for row, size in zip(self.index, self.sizes, strict=True):
            yield torch.from_numpy(row[:size])


def plan(
    own: np.ndarray,
    batch_size: int,
    *,
    epochs: int | None,
    steps: int | None,
    rng: np.random.Generator,
    fill: Fill = "repeat",
) -> BatchPlan:
    """Pass over a client's own examples in a new order each time, for so many epochs or steps."""
    passes, batches, width = _extent(len(own), batch_size, epochs, steps, fill)
    if fill == "repeat":
        own = repeated(own, batch_size)
    missing = batches * width - len(own)
    own = own.astype(np.int64, copy=False)
    orders = [rng.permutation(own) for _ in range(passes)]
    if missing:
        orders = [np.append(order, np.full(missing, own[0])) for order in orders]
    index = orders[0] if passes == 1 else np.concatenate(orders)
    seed = rng.bit_generator.random_raw() >> 1  # which is rng.integers(2**63), in less time
    sizes = _sizes(passes, batches, width, missing)
    return BatchPlan(index.reshape(-1, width)[:steps], sizes[:steps], seed)


@lru_cache(maxsize=1024)  # clients that hold equally many have the same
def _sizes(passes: int, batches: int, width: int, missing: int) -> np.ndarray:
    """How many examples each batch of a plan has."""
    sizes = np.full((passes, batches), width)
    sizes[:, -1] -= missing
    sizes.flags.writeable = False
    return sizes.reshape(-1)


def repeated(part: np.ndarray, multiple: int) -> np.ndarray:
    """A client's examples, the first of them repeated until ``multiple`` divides their number."""
    if len(part) % multiple == 0:
        return part
    return part[np.arange(-(-len(part) // multiple) * multiple) % len(part)]


def plan_size(
    num_examples: int, batch_size: int, *, epochs: int | None, steps: int | None, fill: Fill
) -> int:
    """How many bytes the plan of a client with so many examples takes."""
    item: int = np.dtype(np.int64).itemsize
    return item * math.prod(_extent(num_examples, batch_size, epochs, steps, fill))


def _extent(
    num_examples: int, batch_size: int, epochs: int | None, steps: int | None, fill: Fill
) -> tuple[int, int, int]:
    """How many passes a client takes, how many batches a pass has and how wide these are."""
    batches = -(-num_examples // batch_size)
    width = min(batch_size, num_examples) if fill == "none" else batch_size
    passes = -(-steps // batches) if steps is not None else epochs or 1
    return passes, batches, width


class DataHandle:
    """Refers to examples by a name: pickled, it is the name alone.

    The process that made a handle finds the examples at once.  Another process that is sent one
    must have made a handle of its own copy, under the same name, and keep it.
    """

    def __init__(self, examples: Examples, name: str | None = None) -> None:
        self.examples, self.name = examples, name or secrets.token_hex(8)
        _HANDLES[self.name] = self

    def __reduce__(self) -> tuple[Callable[[str], "DataHandle"], tuple[str]]:
        return find_handle, (self.name,)


_HANDLES: "WeakValueDictionary[str, DataHandle]" = WeakValueDictionary()


def find_handle(name: str) -> DataHandle:
    """The handle of this process that has a name."""
    if name not in _HANDLES:
        raise InputError(
            f"this process does not hold the examples {name}: before it is given work, it makes "
            f"DataHandle(examples, {name!r}) and keeps it"
        )
    return _HANDLES[name]


@dataclass(frozen=True)
class Batches:
    """The batches of a cohort, client by client or all clients at once."""

    data: DataHandle
    plans: Sequence[BatchPlan]

    @property
    def width(self) -> int:
        """The size of the largest batch."""
        return max(int(plan.index.shape[1]) for plan in self.plans)

    @cached_property
    def num_steps(self) -> list[int]:
        """The length of each plan."""
        return [len(plan) for plan in self.plans]

    def of(self, client: int) -> Iterator[Batch]:
        """One client's batches, without padding."""
        steps = ((index, torch.ones_like(index, dtype=torch.bool)) for index in self.plans[client])
        return Batches(self.data, [self.plans[client]])._of_steps(steps)

    def padded(self, client: int, width: int) -> Iterator[Batch]:
        """One client's batches, all of ``width`` examples."""
        one, (x, y) = Batches(self.data, [self.plans[client]]), self.data.examples
        if isinstance(x, LazyInputs):
            for batch in one.stacked(width, self.num_steps[client]):
                yield tree.take(batch, 0)
            return
        index, mask = (each[:, 0] for each in one.rows(width, self.num_steps[client]))
        for rows, labels, real in zip(index, y[index], mask, strict=True):
            # whole rows are copied at once, where x[rows] goes number by number
            yield Batch(tree.map(partial(torch.index_select, dim=0, index=rows), x), labels, real)

    def stacked(self, width: int, num_steps: int) -> Iterator[Batch]:
        """Everyone's, stacked on a leading client axis, short batches and short plans padded."""
        index, mask = self.rows(width, num_steps)
        return self._of_steps(zip(index, mask, strict=True))

    def rows(self, width: int, num_steps: int) -> tuple[Tensor, Tensor]:
        """The examples of `stacked`, by their numbers, and which of them are no padding.

        Both are [steps, clients, width], where the examples lie.
        """
        index = np.empty((num_steps, len(self.plans), width), np.int64)
        sizes = np.zeros((num_steps, len(self.plans)), np.int64)
        for k, plan in enumerate(self.plans):
            index[:, k] = plan.index[0, 0]
            index[: len(plan), k, : plan.index.shape[1]] = plan.index[:num_steps]
            sizes[: len(plan), k] = plan.sizes[:num_steps]
        device = self.data.examples.y.device
        mask = torch.arange(width) < torch.from_numpy(sizes)[..., None]
        return on_device(torch.from_numpy(index), device), on_device(mask, device)

    def _of_steps(self, steps: Iterable[tuple[Tensor, Tensor]]) -> Iterator[Batch]:
        """The batches of steps, given by the numbers of examples and which are no padding."""
        x, y = self.data.examples
        rows, masks = tee((index.to(y.device), mask.to(y.device)) for index, mask in steps)
        inputs = in_turn(self._inputs(t, x, *step) for t, step in enumerate(rows))
        for (index, mask), values in zip(masks, inputs, strict=True):
            yield Batch(values, y[index], mask)

    def _inputs(self, t: int, x: Stored, index: Tensor, mask: Tensor) -> Stored:
        if not isinstance(x, LazyInputs):
            return tree.map(lambda v: v[index], x)
        width = index.shape[-1]
        seeds = np.stack([plan.seeds(t, width) for plan in self.plans]).reshape(index.shape)
        return x[index].seeded(seeds, mask)
