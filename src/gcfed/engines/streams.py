"""Every client on a branch of its own of one CUDA graph: for models whose mapped steps are slow."""

from collections.abc import Callable, Sequence

import torch

from gcfed import tree
from gcfed.engines.common import Lineup, advance, is_shared
from gcfed.engines.graphs import Program
from gcfed.engines.tracing import Traced
from gcfed.errors import InputError
from gcfed.local import Job, Progress, Trained


class Streams:
    """All clients side by side on a GPU, each by a compiled step of its own.

    One compilation serves any number of clients.
    """

    name = "streams"
    pads = True

    def __init__(self) -> None:
        self._program: StreamProgram | None = None

    def __call__(self, jobs: Sequence[Job]) -> list[Trained]:
        lineup = Lineup.of(jobs)
        if not lineup.cohort.key.is_cuda:
            raise InputError("the streams engine needs a CUDA device; on a CPU there is workers")
        if self._program is None or not self._program.fits(lineup):
            self._program = None  # its memory is needed
            self._program = StreamProgram(lineup)
        return lineup.finish(self._program.run(lineup))


class StreamProgram(Program):
    """Each of the first n clients' steps as a branch."""

    def __init__(self, lineup: Lineup) -> None:
        super().__init__(lineup)
        self._streams = [torch.cuda.Stream() for _ in lineup.steps]  # type: ignore[no-untyped-call]
        self._step: Traced[Progress] | None = None

    def body(self, n: int) -> Callable[[], None]:
        clients = [
            (tree.take(self.at, k), tree.take(self.batch, k), self._client(k)) for k in range(n)
        ]
        if self._step is None:
            task = self.task
            self._step = Traced(
                lambda at, batch, client: advance(task, at, batch, client),
                *clients[0],
                compiled=True,
            )
        step, streams = self._step, self._streams

        def branches() -> None:
            root = torch.cuda.current_stream()
            for (at, batch, client), stream in zip(clients, streams, strict=False):
                stream.wait_stream(root)
                with torch.cuda.stream(stream):
                    after = step(at, batch, client)
                    tree.map(lambda old, new: old.copy_(new), at, after)
            for stream, _ in zip(streams, clients, strict=False):
                root.wait_stream(stream)

        return branches

    def _client(self, k: int) -> object:
        return tree.map(lambda x: x[0] if is_shared(x) else x[k], self.cohort)


streams = Streams()
