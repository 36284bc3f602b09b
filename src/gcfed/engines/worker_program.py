"""What a worker process does: it trains one client at a time, in memory that all share."""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import Graph

from gcfed.core import keys, tree
from gcfed.core.batches import Batches, BatchPlan, DataHandle
from gcfed.core.client import RECEIVED, Client, ClientTask, Progress, Trained
from gcfed.core.hook_checks import naming_hooks
from gcfed.core.types import Batch, Examples
from gcfed.engines.shared_memory import shape
from gcfed.engines.tracing import Traced
from gcfed.kernels.inplace import reuse_memory
from gcfed.kernels.layout import channels_last, lay_out_pooling
from gcfed.kernels.onednn import multiply_by_onednn
from gcfed.kernels.simplifying import simplify

CHANGING = Progress._fields.index("buffers")
"""Fields of `Progress` from here on are new tensors after a step; weights are written into."""

Gradients = Traced[tuple[Any, Tensor, Any]]
"""`ClientTask.gradients` as a trace."""


class SharedTensors(NamedTuple):
    """What processes share: each job's cohort, what becomes of it, and the examples of the runs.

    A forked process has the examples anyhow, and then they are not here.
    """

    cohorts: tuple[Client, ...]
    trained: tuple[Trained, ...]
    examples: tuple[Examples, ...] = ()


@dataclass(frozen=True)
class WorkerBrief:
    """What a process must know to train the clients of several jobs.

    ``client`` and ``trained`` are the shapes of one client as a round finds and leaves it, and
    ``rooms`` how many clients each job has at most.  If ``traced``, a step runs as a trace, and all
    batches have ``width`` examples.
    """

    task: ClientTask
    client: Client
    trained: Trained
    rooms: list[int]
    width: int
    traced: bool

    def shapes(self, *examples: Examples) -> SharedTensors:
        """The shapes of what processes share."""
        return SharedTensors(
            tuple(_cohort(self.client, room) for room in self.rooms),
            tuple(tree.map(partial(shape, count=room), self.trained) for room in self.rooms),
            tree.map(shape, examples),
        )


class ClientTrainer:
    """Trains clients whose place is shared memory."""

    def __init__(
        self,
        brief: WorkerBrief,
        shared: SharedTensors,
        data: list[DataHandle],
        gradients: Gradients | None = None,
    ) -> None:
        self.brief, self.shared, self._data = brief, shared, data
        self._gradients = gradients

    def train(self, j: int, k: int, plan: BatchPlan) -> None:
        """Train client ``k`` of job ``j``; what comes of it goes into shared memory."""
        client, batches = self._client(j, k), Batches(self._data[j], [plan])
        if self.brief.traced and self._gradients is None:
            first = next(batches.padded(0, self.brief.width))
            self._gradients = trace(self.brief.task, client, first)
        with naming_hooks(self.brief.task.algorithm), keys.untouched(), torch.no_grad():
            at = self._steps(self.brief.task.begin(client), batches, client)
            trained = self.brief.task.finish(at, client)
        tree.map(lambda to, x: to[k].copy_(x), self.shared.trained[j], trained)

    def _client(self, j: int, k: int) -> Client:
        cohort = self.shared.cohorts[j]._asdict().items()
        each = {field: tree.take(x, 0 if field in RECEIVED else k) for field, x in cohort}
        return Client(**each)

    def _steps(self, at: Progress, batches: Batches, client: Client) -> Progress:
        if self._gradients is None:
            for batch in batches.of(0):
                at = self.brief.task.step(at, batch, client)
            return at
        at = _laid_out(at)
        params = list(at.params.values())
        same, fixed = (tree.tensors(each) for each in (at[:CHANGING], client))
        step = self.brief.task.optimizer.in_place(params, client.lr.item())
        for batch in batches.padded(0, self.brief.width):
            changed = tree.tensors((at[CHANGING:], batch))
            grads, loss, buffers = self._gradients.on_leaves([*same, *changed, *fixed])
            step([_laid_as(p, grads[name]) for name, p in at.params.items()])
            del grads  # their memory serves the next ones
            at = at._replace(buffers=buffers, steps=at.steps + 1, loss=at.loss + loss)
        return at


def trace(task: ClientTask, client: Client, batch: Batch) -> Gradients:
    """The gradients of any client's step, as a CPU computes them fastest."""
    return Traced(task.gradients, _laid_out(task.begin(client)), batch, client, change=_for_a_cpu)


def _cohort(client: Client, room: int) -> Client:
    """Shapes for so many clients; what all of them receive is there once."""
    counts = {field: 1 if field in RECEIVED else room for field in Client._fields}
    fields = client._asdict().items()
    return Client(**{f: tree.map(partial(shape, count=counts[f]), value) for f, value in fields})


def _for_a_cpu(graph: Graph) -> None:
    multiply_by_onednn(graph)
    simplify(graph)
    lay_out_pooling(graph)
    reuse_memory(graph)


def _laid_as(p: Tensor, g: Tensor) -> Tensor:
    return g if g.stride() == p.stride() else torch.empty_like(p).copy_(g)


def _laid_out(at: Progress) -> Progress:
    """Progress with its own copy of the weights, channels-last, to be changed in place."""
    return at._replace(params=tree.map(lambda w: channels_last(w.clone()), at.params))
