"""Steps captured once and replayed: what CUDA graphs need, whatever is in them."""

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch

from gcfed import tree
from gcfed.context import Batch
from gcfed.engines.common import Lineup, is_shared
from gcfed.local import Client, Progress, Task


class Program(ABC):
    """A cohort's step as CUDA graphs over memory of fixed place.

    There is one graph for each of a few numbers of clients (`buckets`), made when it is first
    needed; the clients that still have steps to take are rounded up to one of these.
    """

    def __init__(self, lineup: Lineup) -> None:
        self.task: Task = lineup.task
        self.cohort: Client = tree.map(lambda x: _own(x), lineup.cohort)
        self.at: Progress = lineup.begin()
        self.batch: Batch = tree.map(torch.clone, next(lineup.batches()))
        self.data = [job.batches.data.x for job in lineup.jobs]
        self._sizes = buckets(len(lineup.steps))
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}

    @abstractmethod
    def body(self, n: int) -> Callable[[], None]:
        """A function that takes the first ``n`` clients one step further, in place."""

    def fits(self, lineup: Lineup) -> bool:
        """Whether this is the same work, in another round."""
        mine, theirs = (
            [(p, x.shape, x.dtype, is_shared(x)) for p, x in tree.leaves(cohort)]
            for cohort in (self.cohort, lineup.cohort)
        )
        return (
            lineup.task == self.task and mine == theirs and lineup.width == self.batch.mask.shape[1]
        )

    def run(self, lineup: Lineup) -> Progress:
        """Take every client through all its steps."""
        tree.map(lambda to, x: _compact(to).copy_(_compact(x)), self.cohort, lineup.cohort)
        tree.map(lambda to, x: to.copy_(x), self.at, lineup.begin())
        for t, batch in enumerate(lineup.batches()):
            tree.map(lambda to, x: to.copy_(x), self.batch, batch)
            active = lineup.active(t)
            self._graph(next(n for n in self._sizes if n >= active)).replay()
        return tree.map(torch.clone, self.at)

    def _graph(self, n: int) -> torch.cuda.CUDAGraph:
        if n not in self._graphs:
            self._graphs[n] = self._capture(self.body(n))
        return self._graphs[n]

    def _capture(self, body: Callable[[], None]) -> torch.cuda.CUDAGraph:
        before = tree.map(torch.clone, self.at)
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):  # libraries choose and allocate at the first calls
                body()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            body()
        tree.map(lambda to, x: to.copy_(x), self.at, before)
        return graph


def buckets(clients: int) -> list[int]:
    """The numbers of clients that are compiled: all, half of them and an eighth."""
    return sorted({clients, -(-clients // 2), -(-clients // 8)})


def _compact(x: torch.Tensor) -> torch.Tensor:
    return x[:1] if x.stride(0) == 0 else x


def _own(x: torch.Tensor) -> torch.Tensor:
    """A copy in memory of its own; what is shared stays one."""
    return _compact(x).clone().expand_as(x)
