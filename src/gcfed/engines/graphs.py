"""Steps compiled, captured once and replayed: what CUDA graphs need, whatever is in them."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial

import torch

from gcfed.core import tree
from gcfed.core.client import Client, ClientTask, Job, Progress, Trained
from gcfed.core.types import Batch
from gcfed.engines.lineup import Lineup, advance, compact, copy, is_shared, over_clients, own


class GraphEngine(ABC):
    """Trains all clients of a lineup at once, by a program that is made in the first round.

    What cannot be compiled is captured as it is, and what cannot be captured runs eagerly; either
    way with a sentence.
    """

    pads = True

    def __init__(self) -> None:
        self._program: GraphProgram | None = None
        self._eager: ClientTask | None = None  # the task that no graph could be made of

    @abstractmethod
    def program(self, lineup: Lineup) -> "GraphProgram": ...

    def __call__(self, jobs: Sequence[Job]) -> list[Trained]:
        lineup = Lineup.of(jobs)
        if not _is_on_gpu(lineup) or lineup.task == self._eager:
            return lineup.finish(eagerly(lineup))
        try:
            with torch.cuda.device(lineup.cohort.key.device):
                return self._replay(lineup.filled())
        except NoGraphError as error:
            warnings.warn(f"no CUDA graph, so rounds are slower: {error}", stacklevel=2)
            self.close()
            self._eager = lineup.task
            return lineup.finish(eagerly(lineup))

    def _replay(self, lineup: Lineup) -> list[Trained]:
        if self._program is None or not self._program.fits(lineup):
            self.close()
            self._program = self.program(lineup)
        return lineup.finish(self._program.run(lineup))

    def close(self) -> None:
        """Forget the program: its memory is needed."""
        self._program = None


def _is_on_gpu(lineup: Lineup) -> bool:
    return lineup.cohort.key.is_cuda


def eagerly(lineup: Lineup) -> Progress:
    """Take every client through all its steps, each step as it is written."""
    at, step = lineup.begin(), partial(advance, lineup.task)
    for t, batch in enumerate(lineup.batches()):
        n = slice(lineup.active(t))
        before = tree.take(at, n)
        after = over_clients(step, tree.take(lineup.cohort, n), before, tree.take(batch, n))
        copy(before, after)
    return at


class NoGraphError(RuntimeError):
    """A step that cannot be captured."""


class GraphProgram(ABC):
    """A cohort's step as CUDA graphs over memory of fixed place.

    There is one graph for each of a few numbers of clients (`sizes`), made when it is first needed;
    the clients that still have steps to take are rounded up to one of these.
    """

    def __init__(self, lineup: Lineup) -> None:
        self.task: ClientTask = lineup.task
        self.cohort: Client = tree.map(own, lineup.cohort)
        self.at: Progress = lineup.begin()
        self.batch: Batch = tree.map(torch.clone, next(lineup.batches()))
        self.sizes = self.choose_sizes(len(lineup.steps))
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._pool = torch.cuda.graph_pool_handle()
        self._compiled = True

    @abstractmethod
    def choose_sizes(self, clients: int) -> list[int]:
        """The numbers of clients for which there is a graph, from the smallest to all."""

    @abstractmethod
    def body(self, n: int, compiled: bool) -> Callable[[], object]:
        """A function that takes the first ``n`` clients one step further, in place."""

    def fits(self, lineup: Lineup) -> bool:
        """Whether this is the same work, in another round."""
        mine, theirs = (
            [(path, x.shape, x.dtype, is_shared(x)) for path, x in tree.leaves(cohort)]
            for cohort in (self.cohort, lineup.cohort)
        )
        width = self.batch.mask.shape[1]
        return lineup.task == self.task and mine == theirs and lineup.width == width

    def run(self, lineup: Lineup) -> Progress:
        """Take every client through all its steps."""
        self.load(lineup)
        for t, batch in enumerate(lineup.batches()):
            copy(self.batch, batch)
            active = lineup.active(t)
            self._graph(next(n for n in self.sizes if n >= active)).replay()
        return self.progress()

    def load(self, lineup: Lineup) -> None:
        """Put the clients of a round in their places, before the first step."""
        tree.map(lambda to, x: compact(to).copy_(compact(x)), self.cohort, lineup.cohort)
        self.restore(lineup.begin())

    def restore(self, at: Progress) -> None:
        """Put the clients where they were."""
        copy(self.at, at)

    def progress(self) -> Progress:
        """How far the clients are, in memory that the next round leaves alone."""
        return tree.map(torch.clone, self.at)

    def _graph(self, n: int) -> torch.cuda.CUDAGraph:
        if n not in self._graphs:
            before = self.progress()
            self._graphs[n] = self._make(n)
            self.restore(before)
        return self._graphs[n]

    def _make(self, n: int) -> torch.cuda.CUDAGraph:
        try:
            return self._capture(self.body(n, self._compiled))
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            if not self._compiled:
                raise NoGraphError(reason) from error
            warnings.warn(f"the step is not compiled, so it is slower: {reason}", stacklevel=2)
            self._compiled = False
            return self._make(n)

    def _capture(self, body: Callable[[], object]) -> torch.cuda.CUDAGraph:
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):  # libraries choose and allocate at the first calls
                body()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            body()
        return graph
