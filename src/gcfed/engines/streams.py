"""Every client on a branch of its own of one CUDA graph: for models whose mapped steps are slow."""

from collections.abc import Callable
from dataclasses import replace

import torch

from gcfed.core import tree
from gcfed.core.client import Client, Progress
from gcfed.core.types import Batch
from gcfed.engines.graphs import GraphEngine, GraphProgram
from gcfed.engines.lineup import Lineup, advance, copy, is_shared
from gcfed.engines.tracing import Traced
from gcfed.kernels.layout import ChannelsLast, channels_last


class Streams(GraphEngine):
    """All clients side by side on a GPU, each by a compiled step of its own.

    One compilation serves any number of clients.
    """

    name = "streams"
    needs_cuda = True

    def program(self, lineup: Lineup) -> GraphProgram:
        return StreamProgram(lineup)


class StreamProgram(GraphProgram):
    """Each of the first n clients' steps as a branch.

    A client's weights have memory of their own, which compiled code wants aligned, and lie as
    convolutions like them.
    """

    def __init__(self, lineup: Lineup) -> None:
        super().__init__(lineup)
        self._clients = [self._client(k) for k in range(len(lineup.steps))]
        self._at = [_laid_out(tree.take(self.at, k)) for k in range(len(lineup.steps))]
        self._streams = [torch.cuda.Stream() for _ in self._at]  # type: ignore[no-untyped-call]
        self._steps: dict[bool, Traced[tuple[()]]] = {}

    def choose_sizes(self, clients: int) -> list[int]:
        """Every number, or every second, third, ...: a graph costs a capture, no compilation."""
        return sorted(range(clients, 0, -max(1, clients // 16)))

    def load(self, lineup: Lineup) -> None:
        super().load(lineup)
        for k, mine in enumerate(self._clients):
            copy(mine, self._client(k))

    def restore(self, at: Progress) -> None:
        for k, mine in enumerate(self._at):
            copy(mine, tree.take(at, k))

    def progress(self) -> Progress:
        return tree.stack([tree.map(lambda x: x.contiguous(), at) for at in self._at])

    def body(self, n: int, compiled: bool) -> Callable[[], object]:
        batches = [tree.take(self.batch, k) for k in range(n)]
        clients = list(zip(self._at[:n], batches, self._clients[:n], strict=True))
        if compiled not in self._steps:
            self._steps[compiled] = Traced(self._step, *clients[0], compiled=compiled)
        step, streams = self._steps[compiled], self._streams[:n]

        def branches() -> None:
            root = torch.cuda.current_stream()
            for client, stream in zip(clients, streams, strict=True):
                stream.wait_stream(root)
                with torch.cuda.stream(stream):
                    step(*client)
            for stream in streams:
                root.wait_stream(stream)

        return branches

    def _step(self, at: Progress, batch: Batch, client: Client) -> tuple[()]:
        task = replace(self.task, transform=ChannelsLast(self.task.transform))
        copy(at, advance(task, at, batch, client))
        return ()

    def _client(self, k: int) -> Client:
        return tree.map(lambda x: x[0] if is_shared(x) else x[k].clone(), self.cohort)


def _laid_out(at: Progress) -> Progress:
    return tree.map(lambda x: channels_last(x.clone()), at)


streams = Streams()
