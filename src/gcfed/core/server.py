"""The server's half of a round: it needs neither the clients' data nor their engine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

from gcfed.core import keys, tree
from gcfed.core.algorithm import Algorithm
from gcfed.core.chain import acting_at
from gcfed.core.client import counting_dtype
from gcfed.core.hook_checks import with_checked_hooks
from gcfed.core.memory import Store
from gcfed.core.precision import arithmetic
from gcfed.core.roles import Role
from gcfed.core.schedule import Schedule
from gcfed.core.torch_internals import differences, lengths
from gcfed.core.transfer import on_device
from gcfed.core.tree import State, Tree
from gcfed.core.types import ServerContext, Upload
from gcfed.errors import DivergedError

BufferPolicy = Literal["average", "local"]


class NonFiniteUpdateError(DivergedError):
    """Some clients sent an update that is not finite."""

    def __init__(self, t: int, clients: Sequence[int]) -> None:
        super().__init__(t, f"the updates of clients {list(clients)} are not finite")
        self.clients = list(clients)


class Server(NamedTuple):
    """The global model, and what the algorithm keeps beside it."""

    params: Tree
    state: State
    buffers: Tree


class Arrived(NamedTuple):
    """What the server got from some clients, stacked in the order of ``ids``.

    ``num_examples`` is what each of them trained on, ``key`` its random key of this round.
    """

    ids: list[int]
    num_examples: Tensor
    key: Tensor
    delta: Tree
    message: State
    buffers: Tree

    def take(self, rows: list[int]) -> "Arrived":
        """What came from some of the clients."""
        stacked = tree.take(self[1:], rows)
        return Arrived([self.ids[k] for k in rows], *stacked)


class Mean(NamedTuple):
    """The mean of what clients sent."""

    delta: Tree
    message: State
    buffers: Tree


class PartialMean(NamedTuple):
    """The mean over some clients of a cohort, and how much it counts beside those of others."""

    num_clients: int
    weight: float
    mean: Mean


class Concluded(NamedTuple):
    """The server after a round, how far it stepped, and whether all that had come was finite."""

    server: Server
    length: Tensor
    finite: Tensor


@dataclass(frozen=True)
class ServerTask:
    """What the server of a run does: broadcast, receive from clients, and step.

    ``buffers`` says what becomes of those that training changes, such as BatchNorm's statistics:
    averaged over the cohort like weights, or each client's own.  ``roles`` are the model's, which
    say what each parameter is.
    """

    algorithm: Algorithm
    schedule: Schedule
    num_clients: int
    buffers: BufferPolicy = "average"
    roles: Mapping[str, Role] = field(default_factory=dict)

    def start(self, params: Tree, buffers: Tree) -> Server:
        """The server before the first round."""
        return Server(params, with_checked_hooks(self.algorithm).init_server(params), buffers)

    def broadcast(self, server: Server) -> tuple[Tree, State]:
        """What every client of a round receives: the weights to start from, and a message."""
        return self.algorithm.broadcast(server.params, server.state)

    def accept(self, t: int, arrived: Arrived) -> list[int]:
        """The rows of ``arrived`` that are finite; others are an error, if the schedule says so."""
        kept = finite_rows(arrived)
        dropped = [i for k, i in enumerate(arrived.ids) if k not in kept]
        if dropped and self.schedule.on_nonfinite == "fail":
            raise NonFiniteUpdateError(t, dropped)
        return kept

    @arithmetic("float32")  # whatever clients train in, the server is strict
    def receive(
        self, server: Server, rows: Store[State], t: int, arrived: Arrived
    ) -> tuple[PartialMean, Store[State]]:
        """Hear clients one by one, with the row that is held of each, and take their mean."""
        ctx, device = self._context(server, t, self.schedule.cohort_size), arrived.key.device

        def hear(upload: Upload, row: State, key: Tensor) -> tuple[Upload, State]:
            return self.algorithm.receive(upload, row, replace(ctx, key=key))

        if self.hears_each:  # mapping over nothing takes its time
            held = rows.gather(arrived.ids, lambda: self.algorithm.init_row(server.params), device)
            came = Upload(arrived.delta, arrived.message, {})
            came, held = vmap(hear)(came, held, arrived.key)
            arrived = arrived._replace(delta=came.delta, message=came.message)
            rows = rows.scatter(arrived.ids, held)
        mean = self._mean(server, arrived, self.weights(server, arrived.num_examples), ctx)
        weight = self.sizes(arrived.num_examples).sum().item()
        return PartialMean(len(arrived.ids), weight, mean), rows

    @arithmetic("float32")
    def update(self, server: Server, t: int, means: Sequence[PartialMean]) -> Server:
        """One step of the global weights, along the means summed in their order."""
        shares = [part.weight / sum(p.weight for p in means) for part in means]
        ctx = self._context(server, t, sum(part.num_clients for part in means))
        return self._stepped(server, _blend([part.mean for part in means], shares), ctx)

    @arithmetic("float32")
    def conclude(
        self, server: Server, t: int, arrived: Arrived, weights: Tensor, key: Tensor
    ) -> Concluded:
        """`receive` and `update` of a whole cohort of which nobody is heard apart.

        No number is read out of a tensor, so a GPU need not be waited for, and may record it.
        ``weights`` and ``key`` are what the methods of these names give.
        """
        ctx = self._context(server, t, self.schedule.cohort_size, key)
        mean = self._mean(server, arrived, weights, ctx)
        after = self._stepped(server, mean, replace(ctx, cohort_size=len(arrived.ids)))
        # what is not finite makes the plain mean so too, and that has fewer numbers to look at
        told_by = arrived if acting_at(self.algorithm, "aggregate") else mean
        return Concluded(after, distance(after.params, server.params), are_finite(told_by))

    @property
    def hears_each(self) -> bool:
        """Whether the algorithm does something with each client's upload by itself."""
        return bool(acting_at(self.algorithm, "init_row", "receive"))

    def weights(self, server: Server, num_examples: Tensor) -> Tensor:
        """The share of each client in the mean."""
        like, sizes = next(iter(server.params.values())), self.sizes(num_examples)
        return on_device((sizes / sizes.sum()).to(counting_dtype(like)), like.device)

    def key(self, t: int, device: torch.device) -> Tensor:
        """The server's random key of a round."""
        nobody = self.num_clients  # an id that no client has
        return _key(self.schedule.seed, t, nobody, device)

    def _mean(self, server: Server, arrived: Arrived, weights: Tensor, ctx: ServerContext) -> Mean:
        came = Upload(arrived.delta, arrived.message, {})
        mean = tree.in_own_memory(self.algorithm.aggregate(came, weights, ctx), came)
        averaged = _average(server.buffers, arrived.buffers, weights) if self.is_averaging else {}
        return Mean(*mean, averaged)

    def _stepped(self, server: Server, mean: Mean, ctx: ServerContext) -> Server:
        delta, message = self.algorithm.release(mean.delta, mean.message, ctx)
        step, state = self.algorithm.update(delta, replace(ctx, message=message))
        params = tree.add(server.params, step, alpha=self.schedule.server_lr)
        return Server(params, state, mean.buffers if self.is_averaging else server.buffers)

    @property
    def is_averaging(self) -> bool:
        """Whether buffers travel and are averaged."""
        return self.buffers == "average"

    def sizes(self, num_examples: Tensor) -> Tensor:
        """How much each client counts: its examples, or one."""
        counts = num_examples.double()
        return counts if self.schedule.weighting == "examples" else torch.ones_like(counts)

    def _context(
        self, server: Server, t: int, cohort_size: int, key: Tensor | None = None
    ) -> ServerContext:
        device = next(iter(server.params.values())).device
        return ServerContext(
            params=server.params,
            state=server.state,
            message={},
            round=t,
            key=self.key(t, device).clone() if key is None else key,
            cohort_size=cohort_size,
            num_clients=self.num_clients,
            roles=self.roles,
            upload_norm=self.algorithm.upload_norm,
        )


@lru_cache(maxsize=8)  # a round asks more than once, and a copy to a device takes its time
def _key(seed: int, t: int, client: int, device: torch.device) -> Tensor:
    return on_device(keys.key(seed, t, client), device)


def are_finite(came: Arrived | Mean) -> Tensor:
    """Whether all that travelled, or its mean, is finite, by the sums of its numbers.

    Finite numbers whose sum is too large for their dtype are taken as not finite; `finite_rows`
    then looks at each of them.
    """
    sums = [x.sum() for x in _numbers(came)]
    if not sums:
        return torch.ones((), dtype=torch.bool)
    return torch.stack(sums).isfinite().all()


def finite_rows(arrived: Arrived) -> list[int]:
    """Which rows hold finite numbers only, in all that travelled."""
    if are_finite(arrived):
        return list(range(len(arrived.ids)))
    rows = [x.flatten(1) if x.ndim > 1 else x[:, None] for x in _numbers(arrived)]
    finite = torch.stack([x.isfinite().all(1) for x in rows]).all(0)
    return [k for k, good in enumerate(finite.tolist()) if good]


def _numbers(came: Arrived | Mean) -> list[Tensor]:
    """All real numbers that travelled: counters are left out."""
    sent = tree.tensors((came.delta, came.message, came.buffers))
    return [x for x in sent if x.is_floating_point()]


def distance(a: Tree, b: Tree) -> Tensor:
    """How far two are apart, summed in double precision."""
    each = lengths(differences(list(a.values()), list(b.values())), torch.float64)
    return torch.stack(each).square().sum().sqrt()


def _blend(means: Sequence[Mean], shares: Sequence[float]) -> Mean:
    """The weighted sum of means; counters, which have none, are the largest."""
    if len(means) == 1:
        return means[0]

    def combine(*xs: Tensor) -> Tensor:
        if not xs[0].is_floating_point():
            return torch.stack(xs).amax(0)
        return sum((s * x for s, x in zip(shares, xs, strict=True)), torch.zeros_like(xs[0]))

    return tree.map(combine, *means)


def _average(before: Tree, after: Tree, weights: Tensor) -> Tree:
    """The cohort's mean buffers; counters, which have none, are the largest."""
    return tree.map(
        lambda b, x: b + tree.mean(x - b, weights) if x.is_floating_point() else x.amax(0),
        before,
        after,
    )
