"""Every client on a branch of its own of one CUDA graph: for models whose mapped steps are slow."""

from dataclasses import replace
from functools import partial

from gcfed.core import tree
from gcfed.core.client import Client, Progress
from gcfed.core.types import Batch
from gcfed.engines.graphs import GraphEngine, GraphProgram
from gcfed.engines.lineup import Lineup, advance, copy, is_shared
from gcfed.engines.recorder import Body, Recorder
from gcfed.engines.tracing import Compiler, Traced
from gcfed.kernels.layout import ChannelsLast, channels_last


class Streams(GraphEngine):
    """All clients side by side on a GPU, each by a compiled step of its own.

    One compilation serves any number of clients.
    """

    name = "streams"
    needs_cuda = True

    def program(self, lineup: Lineup, recorder: Recorder) -> GraphProgram:
        return StreamProgram(lineup, recorder)


class StreamProgram(GraphProgram):
    """Each of the first n clients' steps as a branch.

    A client's weights have memory of their own, which compiled code wants aligned, and lie as
    convolutions like them.
    """

    def __init__(self, lineup: Lineup, recorder: Recorder) -> None:
        super().__init__(lineup, recorder)
        self._clients = [self._client(k) for k in range(len(lineup.steps))]
        self._at = [_laid_out(tree.take(self.at, k)) for k in range(len(lineup.steps))]
        self._side_by_side = recorder.branches(len(lineup.steps))
        self._steps: dict[Compiler | None, Traced[tuple[()]]] = {}

    def load(self, lineup: Lineup) -> None:
        super().load(lineup)
        for k, mine in enumerate(self._clients):
            copy(mine, self._client(k))

    def restore(self, at: Progress) -> None:
        for k, mine in enumerate(self._at):
            copy(mine, tree.take(at, k))

    def progress(self) -> Progress:
        return tree.stack([tree.map(lambda x: x.contiguous(), at) for at in self._at])

    def body(self, n: int, compiler: Compiler | None) -> Body:
        batches = [tree.take(self.batch, k) for k in range(n)]
        clients = list(zip(self._at[:n], batches, self._clients[:n], strict=True))
        if compiler not in self._steps:
            self._steps[compiler] = Traced(self._step, *clients[0], compiler=compiler)
        step = self._steps[compiler]
        return partial(self._side_by_side, [partial(step, *client) for client in clients])

    def _step(self, at: Progress, batch: Batch, client: Client) -> tuple[()]:
        task = replace(self.task, transform=ChannelsLast(self.task.transform))
        copy(at, advance(task, at, batch, client))
        return ()

    def _client(self, k: int) -> Client:
        return tree.map(lambda x: x[0] if is_shared(x) else x[k].clone(), self.cohort)


def _laid_out(at: Progress) -> Progress:
    return tree.map(lambda x: channels_last(x.clone()), at)
