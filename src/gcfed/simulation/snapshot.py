"""Where a run stands between rounds, and what a round comes to."""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from gcfed.core.client import LocalModel
from gcfed.core.memory import HostStore, Store
from gcfed.core.server import Server
from gcfed.core.tree import State, Tree
from gcfed.core.types import Upload
from gcfed.simulation.setup import Setup


class Clients(NamedTuple):
    """What is kept of each client between rounds: by itself, and (``rows``) by the server."""

    memory: Store[State]
    buffers: Store[Tree]
    rows: Store[State]


@dataclass(frozen=True)
class RoundResult:
    """A round's outcome; ``uploads`` (as sent), ``models`` (the clients' own) and ``losses`` are
    stacked in the order of ids.

    A client's loss is the mean of the task's over its steps, at the points where gradients were
    taken, through the algorithm's logits and without its penalty.  ``update_norm`` is the length of
    the step of the global weights.  Bytes are what travelled, buffers included where they are
    averaged.  ``absent`` clients were drawn and never answered, so they are not among the
    ids; those that were ``late`` or ``corrupted`` are.  ``chunk`` is how many were trained at once.
    """

    round: int
    ids: list[int]
    dropped: list[int]
    uploads: Upload | None
    models: LocalModel | None
    losses: Tensor
    server: Server
    clients: Clients
    update_norm: float
    bytes_up: int
    bytes_down: int
    absent: list[int]
    late: list[int]
    corrupted: list[int]
    chunk: int | None

    @property
    def survivors(self) -> list[int]:
        """The clients whose work entered the round."""
        return [i for i in self.ids if i not in self.dropped]


class Beginning(NamedTuple):
    """What the first round of a run finds."""

    server: Server
    clients: Clients


class Snapshot(NamedTuple):
    """Where a run stands after ``round`` (-1: before the first): all that the next one needs."""

    round: int
    server: Server
    clients: Clients


def start(setup: Setup) -> Beginning:
    """Where a run begins."""
    params = setup.model.params if setup.initial is None else setup.initial
    server = setup.server_task.start(params, setup.model.buffers)
    return Beginning(server, Clients(HostStore(), HostStore(), HostStore()))
