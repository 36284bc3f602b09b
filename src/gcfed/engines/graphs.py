"""Steps compiled, recorded once and replayed: what engines of an accelerator have in common."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property, partial

import torch

from gcfed.core import tree
from gcfed.core.client import Client, ClientTask, Job, Progress, Trained
from gcfed.core.torch_internals import copy_all
from gcfed.core.types import Batch
from gcfed.engines.engine import Engine
from gcfed.engines.lineup import (
    Lineup,
    advance,
    are_same,
    compact,
    copy,
    is_shared,
    over_clients,
    own,
)
from gcfed.engines.recorder import Body, CudaRecorder, Recorder, prepare_to_compile
from gcfed.engines.tracing import Compiler
from gcfed.garbage import unsearched
from gcfed.kernels.precompiling import hash_triton


class GraphEngine(Engine):
    """Trains all clients of a lineup at once, by a program that is made in the first round.

    A step that cannot be compiled is captured as it is, and one that cannot be captured runs
    eagerly; either way there is a warning.
    """

    pads = True

    def __init__(self) -> None:
        self._program: GraphProgram | None = None
        self._eager: ClientTask | None = None  # the task that no graph could be made of

    @abstractmethod
    def program(self, lineup: Lineup, recorder: Recorder) -> "GraphProgram":
        """What takes the clients of a lineup, and of those like it, through their steps."""

    def __call__(self, jobs: Sequence[Job]) -> list[Trained]:
        lineup = Lineup.of(jobs)
        recorder = self.recorder_on(lineup.cohort.key.device)
        if recorder is None or lineup.task == self._eager:
            return lineup.finish(eagerly(lineup))
        try:
            with recorder.guard():
                return self._replay(lineup.filled(), recorder)
        except NoGraphError as error:
            warnings.warn(f"no CUDA graph, so rounds are slower: {error}", stacklevel=2)
            self.close()
            self._eager = lineup.task
            return lineup.finish(eagerly(lineup))

    def prepare(self, device: torch.device) -> None:
        if device.type == "cuda":
            with suppress(ImportError):  # where there is no Triton
                hash_triton()
            prepare_to_compile(device)

    def recorder_on(self, device: torch.device) -> Recorder | None:
        if device.type != "cuda":
            return None
        self.prepare(device)
        return CudaRecorder(device)

    def _replay(self, lineup: Lineup, recorder: Recorder) -> list[Trained]:
        if self._program is None or not self._program.fits(lineup):
            self.close()
            with unsearched():
                self._program = self.program(lineup, recorder)
        return lineup.by_job(self._program.run(lineup))

    def recorded(self, clients: int) -> Callable[[], None]:
        """What replays the step of so many clients, after a round in which it was recorded."""
        assert self._program is not None
        return self._program.replay(clients)

    def close(self) -> None:
        """Forget the program, and with it its graphs and their memory."""
        self._program = self._eager = None


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
    """A cohort's step over memory of fixed place, recorded and replayed.

    There is one recording for each of a few numbers of clients (`sizes`), made when it is first
    needed; the clients that still have steps to take are rounded up to one of these.
    """

    def __init__(self, lineup: Lineup, recorder: Recorder) -> None:
        self.recorder = recorder
        self.task: ClientTask = lineup.task
        self.cohort: Client = tree.map(own, lineup.cohort)
        self.at: Progress = lineup.begin()
        self.batch: Batch = tree.map(torch.clone, next(lineup.batches()))
        self.examples = lineup.in_memory
        self.index = torch.zeros_like(self.batch.mask, dtype=torch.int64)
        self.sizes = many_sizes(len(lineup.steps))
        self._cohort_kind = _kind(self.cohort)
        self._places = [compact(x) for _, x in tree.leaves(self.cohort)]
        self._replays: dict[int, Callable[[], None]] = {}
        self._compiler: Compiler | None = recorder.compile

    @abstractmethod
    def body(self, n: int, compiler: Compiler | None) -> Body:
        """A function that takes the first ``n`` clients one step further, in place."""

    @property
    def is_compiled(self) -> bool:
        return self._compiler is not None

    def fits(self, lineup: Lineup) -> bool:
        """Whether this is the same work, in another round."""
        width = self.batch.mask.shape[1]
        same_data = are_same(lineup.in_memory, self.examples)
        same_task = lineup.task == self.task and lineup.width == width
        return same_task and same_data and _kind(lineup.cohort) == self._cohort_kind

    def run(self, lineup: Lineup) -> Trained:
        """Take every client through all its steps; the result is good until the next time."""
        self.load(lineup)
        for t, _ in enumerate(self._feed(lineup)):
            active = lineup.active(t)
            self.replay(next(n for n in self.sizes if n >= active))()
        return self._finish()

    def _feed(self, lineup: Lineup) -> Iterator[None]:
        """Put the batches of each step in their place, or the numbers of their examples."""
        if self.examples is None:
            for batch in lineup.batches():
                copy(self.batch, batch)
                yield
            return
        for index, mask in zip(*lineup.rows(), strict=True):
            self.index.copy_(index)
            self.batch.mask.copy_(mask)
            yield

    def _gather(self, n: int) -> None:
        """Fetch the examples of the first ``n`` clients' batches; a part of what is recorded."""
        if self.examples is not None:
            rows = self.index[:n].flatten()
            places = tree.leaves((self.batch.x, self.batch.y))
            for (_, to), (_, source) in zip(places, tree.leaves(self.examples), strict=True):
                torch.index_select(source, 0, rows, out=to[:n].flatten(0, 1))

    def load(self, lineup: Lineup) -> None:
        """Put the clients of a round in their places, before the first step."""
        copy_all(self._places, [compact(x) for _, x in tree.leaves(lineup.cohort)])
        self._begin()

    @cached_property
    def _begin(self) -> Body:
        return self._recorded(lambda: self.restore(over_clients(self.task.begin, self.cohort)))

    @cached_property
    def _finish(self) -> Callable[[], Trained]:
        made: list[Trained] = []

        def body() -> None:
            made[:] = [over_clients(self.task.finish, self.cohort, self.progress())]

        replay = self._recorded(body)

        def finish() -> Trained:
            replay()
            return made[0]

        return finish

    def _recorded(self, body: Body) -> Body:
        """What a round does once, recorded if it can be: of many small kernels one launch."""
        try:
            return self.recorder.capture(body)
        except torch.OutOfMemoryError:
            raise
        except Exception:  # it is done as it is written, which takes little longer
            return body

    def restore(self, at: Progress) -> None:
        """Put the clients where they were."""
        copy(self.at, at)

    def progress(self) -> Progress:
        """How far the clients are."""
        return self.at

    def replay(self, n: int) -> Callable[[], None]:
        """What takes the first ``n`` clients, one of the `sizes`, a step further."""
        if n not in self._replays:
            before = tree.map(torch.clone, self.progress())
            with unsearched():
                self._replays[n] = self._record(n)
            self.restore(before)
        return self._replays[n]

    def _record(self, n: int) -> Callable[[], None]:
        try:
            step = self.body(n, self._compiler)

            def body() -> None:
                self._gather(n)
                step()

            return self.recorder.capture(body)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            if self._compiler is None:
                raise NoGraphError(reason) from error
            warnings.warn(f"the step is not compiled, so it is slower: {reason}", stacklevel=2)
            self._compiler = None
            return self._record(n)


def _kind(cohort: Client) -> list[tuple[object, ...]]:
    """What two cohorts that are trained by one program have in common."""
    return [(path, x.shape, x.dtype, is_shared(x)) for path, x in tree.leaves(cohort)]


def many_sizes(clients: int) -> list[int]:
    """At most some thirty counts of clients, each of which a step is recorded for."""
    return sorted(range(clients, 0, -max(1, clients // 16)))
