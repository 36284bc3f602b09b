"""What engines share: the clients of several jobs as one line, the longest plan first."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import TypeVar

import torch
from torch import Tensor
from torch.func import vmap

from gcfed.core import tree
from gcfed.core.batches import Batches
from gcfed.core.client import RECEIVED, Client, ClientTask, Job, Progress, Trained
from gcfed.core.lazy import LazyInputs
from gcfed.core.transfer import on_device
from gcfed.core.types import Batch, Examples
from gcfed.errors import InputError

T = TypeVar("T")


@dataclass(frozen=True)
class Lineup:
    """The clients of jobs, stacked and sorted by their number of steps.

    Those that still have a step to take are then a prefix.
    """

    task: ClientTask
    cohort: Client
    steps: list[int]
    width: int
    jobs: Sequence[Job]
    order: list[int]

    @classmethod
    def of(cls, jobs: Sequence[Job]) -> "Lineup":
        task = common_task(jobs)
        steps = [n for job in jobs for n in job.batches.num_steps]
        order = sorted(range(len(steps)), key=lambda k: -steps[k])
        cohort = tree.concat([job.cohort for job in jobs])
        if order != sorted(order):
            rows = on_device(torch.tensor(order), cohort.key.device)
            cohort = tree.map(lambda x: x if is_shared(x) else x[rows], cohort)
        width = max(job.batches.width for job in jobs)
        return cls(task, cohort, [steps[k] for k in order], width, jobs, order)

    def filled(self) -> "Lineup":
        """The lineup filled up to its room with copies of the first client, which do nothing."""
        missing = sum(job.room for job in self.jobs) - len(self.order)
        if not missing:
            return self
        cohort = tree.map(lambda x: _repeat_first(x, missing), self.cohort)
        if len(self.order) == 1:  # `is_shared` cannot tell for a single client
            room, first = 1 + missing, tree.take(self.cohort, 0)
            cohort = cohort._replace(**{f: tree.expand(getattr(first, f), room) for f in RECEIVED})
        idle = [self.order[0]] * missing
        return replace(
            self, cohort=cohort, steps=self.steps + [0] * missing, order=self.order + idle
        )

    def active(self, t: int) -> int:
        """How many clients take step ``t``."""
        return sum(n > t for n in self.steps)

    def batches(self) -> Iterator[Batch]:
        """The batches of all clients, step by step; a client that has finished gets padding."""
        for batch in self._batches():
            batch.mask[self._busy :] = False
            yield batch

    def _batches(self) -> Iterator[Batch]:
        width, steps = self.width, self.steps[0]
        if self.examples is not None:
            yield from self._together().stacked(width, steps)
            return
        for parts in zip(*(job.batches.stacked(width, steps) for job in self.jobs), strict=True):
            yield tree.take(tree.concat(parts), self.order)

    @property
    def _busy(self) -> int:
        return sum(n > 0 for n in self.steps)

    @property
    def examples(self) -> Examples | None:
        """Where all clients' examples lie, if that is one place."""
        first = self.jobs[0].batches.data.examples
        same = all(are_same(job.batches.data.examples, first) for job in self.jobs)
        return first if same else None

    @property
    def in_memory(self) -> Examples | None:
        """`examples`, if they lie in memory, where a recorded step can fetch them."""
        here = self.examples is not None and not isinstance(self.examples.x, LazyInputs)
        return self.examples if here else None

    def rows(self) -> tuple[Tensor, Tensor]:
        """`batches` by the numbers of their `examples`, and which of these are no padding."""
        index, mask = self._together().rows(self.width, self.steps[0])
        mask[:, self._busy :] = False
        return index, mask

    def _together(self) -> Batches:
        plans = [plan for job in self.jobs for plan in job.batches.plans]
        return Batches(self.jobs[0].batches.data, [plans[k] for k in self.order])

    def begin(self) -> Progress:
        """All clients before their first step, in memory of their own."""
        return tree.map(lambda x: x.clone(), over_clients(self.task.begin, self.cohort))

    def finish(self, at: Progress) -> list[Trained]:
        """What became of each job's clients, in the order of the job."""
        return self.by_job(over_clients(self.task.finish, self.cohort, at))

    def by_job(self, trained: Trained) -> list[Trained]:
        """What became of the clients of this line, given to their jobs."""
        busy = range(sum(job.num_clients for job in self.jobs))
        if self.order != list(busy):
            places = torch.tensor(sorted(busy, key=self.order.__getitem__))
            rows = on_device(places, self.cohort.key.device)
            trained = tree.map(lambda x: x[rows], trained)
        return tree.split(trained, [job.num_clients for job in self.jobs])


def are_same(one: Examples | None, other: Examples | None) -> bool:
    """Whether both are the same inputs and labels, in the same memory, or both None."""
    if one is None or other is None:
        return one is other
    return one.x is other.x and one.y is other.y


def _repeat_first(x: Tensor, times: int) -> Tensor:
    if is_shared(x):
        return x[0].expand(len(x) + times, *x.shape[1:])
    return torch.cat([x, x[:1].expand(times, *x.shape[1:])])


def common_task(jobs: Sequence[Job]) -> ClientTask:
    """The task of all jobs; those that are trained together cannot differ in it."""
    first, *others = (job.task for job in jobs)
    for field in fields(ClientTask):
        if any(getattr(task, field.name) != getattr(first, field.name) for task in others):
            raise InputError(f"runs that are trained together must share their {field.name}")
    return first


def is_shared(x: Tensor) -> bool:
    """Whether all clients have the same, expanded along the client axis."""
    return len(x) > 1 and x.stride(0) == 0


def over_clients(fn: Callable[..., T], cohort: Client, *args: object) -> T:
    """Map ``fn(*args, client)`` over clients; what the cohort shares is not mapped but captured.

    A teacher's weights are then one operand of a large product, and not one of many small ones.
    """
    one = tree.map(lambda x: x[0] if is_shared(x) else x, cohort)
    return over_mapped(fn, axes(cohort), one, *args)


def axes(cohort: Client) -> Client:
    """The client axis of each tensor, None where it is shared."""
    return tree.map(lambda x: None if is_shared(x) else 0, cohort)


def over_mapped(fn: Callable[..., T], axes: Client, one: Client, *args: object) -> T:
    """`over_clients` for a cohort whose shared tensors have lost the client axis."""
    return vmap(fn, (*(0 for _ in args), axes))(*args, one)


def advance(task: ClientTask, at: Progress, batch: Batch, client: Client) -> Progress:
    """One client's step; a client without a batch stands still."""
    return tree.where(batch.mask.any(), task.step(at, batch, client), at)


def copy(to: object, source: object) -> None:
    """Write the tensors of one value over those of another."""
    tree.map(lambda a, b: a.copy_(b), to, source)


def compact(x: Tensor) -> Tensor:
    """The first row of a tensor whose rows are all the same; any other tensor as it is."""
    return x[:1] if x.stride(0) == 0 else x


def own(x: Tensor) -> Tensor:
    """A copy in memory of its own; rows that are all the same are copied once."""
    return compact(x).clone().expand_as(x)
