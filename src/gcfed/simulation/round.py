"""One round as a pure function: broadcast, train, receive, aggregate, update."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.func import vmap

from gcfed.core import keys, tree
from gcfed.core.batches import Batches, BatchPlan
from gcfed.core.client import Client, Job, Trained
from gcfed.core.tree import State, Tree
from gcfed.core.types import ServerContext, Upload
from gcfed.engines import arithmetic
from gcfed.errors import DivergedError
from gcfed.simulation.setup import Setup
from gcfed.simulation.snapshot import Clients, RoundResult, Server

T = TypeVar("T", Tree, State)


class NonFiniteUpdateError(DivergedError):
    """Some clients sent an update that is not finite."""

    def __init__(self, t: int, clients: Sequence[int]) -> None:
        super().__init__(t, f"the updates of clients {list(clients)} are not finite")
        self.clients = list(clients)


def run_round(
    setup: Setup,
    server: Server,
    clients: Clients,
    t: int,
    ids: Sequence[int],
    plans: Sequence[BatchPlan] | None = None,
    *,
    keep_uploads: bool = True,
) -> RoundResult:
    """Round ``t`` with the clients ``ids``, on ``plans`` if given; changes nothing it is given."""
    job = prepare(setup, server, clients, t, ids, plans)
    with keys.untouched(), setup.arithmetic():
        (trained,) = setup.chosen.engine([job])
    block, clients = receive(
        setup, server, clients, t, ids, job, trained, keep_uploads=keep_uploads
    )
    return conclude(setup, server, clients, t, [block])


def prepare(
    setup: Setup,
    server: Server,
    clients: Clients,
    t: int,
    ids: Sequence[int],
    plans: Sequence[BatchPlan] | None = None,
) -> Job:
    """The first half of a round: what each client of the cohort is given to do."""
    algorithm, like = setup.algorithm, next(iter(server.params.values()))
    device, counts = like.device, torch.promote_types(like.dtype, torch.float32)
    plans = plans or [setup.plan(t, i) for i in ids]
    anchor, message = algorithm.broadcast(server.params, server.state)
    cohort = Client(
        anchor=tree.expand(anchor, len(ids)),
        message=tree.expand(message, len(ids)),
        lr=torch.tensor(setup.lr(t), dtype=counts, device=device).expand(len(ids)),
        round=torch.tensor(t, device=device).expand(len(ids)),
        memory=clients.memory.gather(ids, lambda: algorithm.init_client(anchor), device),
        buffers=clients.buffers.gather(ids, lambda: server.buffers, device),
        label_counts=setup.data.label_counts(ids).to(device, counts),
        num_examples=setup.data.num_examples(ids).to(device, counts),
        num_steps=torch.tensor([len(plan) for plan in plans]).to(device, counts),
        key=setup.keys(t, ids).to(device),
    )
    return Job(setup.task, cohort, Batches(setup.data.examples, plans), max(setup.room, len(ids)))


class PartialMean(NamedTuple):
    """What the server made of some clients of a cohort: their mean, and how much it counts.

    ``uploads`` and ``losses`` are of all of them, ``delta``, ``message`` and ``buffers`` the means
    over those that were not ``dropped``.
    """

    ids: list[int]
    dropped: list[int]
    weight: float
    delta: Tree
    message: State
    buffers: Tree
    uploads: Upload | None
    losses: Tensor
    bytes_up: int
    bytes_down: int


@arithmetic("float32")  # whatever clients train in, the server is strict
def receive(
    setup: Setup,
    server: Server,
    clients: Clients,
    t: int,
    ids: Sequence[int],
    job: Job,
    trained: Trained,
    *,
    keep_uploads: bool = True,
) -> tuple[PartialMean, Clients]:
    """The server takes in what some clients of a cohort send; what is kept of each is replaced."""
    keys = job.cohort.key
    trained = _as_received(setup, t, ids, keys, trained)
    kept = _finite(trained)
    dropped = [i for k, i in enumerate(ids) if k not in kept]
    if dropped and setup.schedule.on_nonfinite == "fail":
        raise NonFiniteUpdateError(t, dropped)
    survivors, keys = tree.take((trained, keys), kept) if dropped else (trained, keys)
    upload, cohort, averaged = trained.upload, job.cohort, setup.buffers == "average"
    sent = (upload.delta, upload.message, trained.buffers if averaged else {})
    given = (cohort.anchor, cohort.message, cohort.buffers if averaged else {})
    block = PartialMean(
        ids=list(ids),
        dropped=dropped,
        weight=setup.sizes([ids[k] for k in kept]).sum().item(),
        delta={},
        message={},
        buffers={},
        uploads=tree.map(torch.clone, upload) if keep_uploads else None,
        losses=trained.loss.clone(),
        bytes_up=tree.num_bytes(sent),
        bytes_down=tree.num_bytes(given),
    )
    if kept:
        kept_ids = [ids[k] for k in kept]
        return _take_in(setup, server, clients, t, kept_ids, keys, survivors, block)
    return block, clients


def _as_received(
    setup: Setup, t: int, ids: Sequence[int], keys: Tensor, trained: Trained
) -> Trained:
    """What arrives: some updates are not what was sent."""
    hit = [k for k, i in enumerate(ids) if setup.fate(t, i).corrupted]
    if not hit:
        return trained
    uploads = [tree.take(trained.upload, k) for k in range(len(ids))]
    for k in hit:
        uploads[k] = setup.faults.corrupt(uploads[k], keys[k])
    return trained._replace(upload=tree.stack(uploads))


def _take_in(
    setup: Setup,
    server: Server,
    clients: Clients,
    t: int,
    ids: list[int],
    keys: Tensor,
    trained: Trained,
    block: PartialMean,
) -> tuple[PartialMean, Clients]:
    """Receive from the clients whose work is finite, one by one, and take their mean."""
    algorithm, upload, device = setup.algorithm, trained.upload, trained.loss.device
    ctx = _context(setup, server, t, setup.schedule.cohort_size)

    def hear(upload: Upload, row: State, key: Tensor) -> tuple[Upload, State]:
        return algorithm.receive(upload, row, replace(ctx, key=key))

    rows = clients.rows.gather(ids, lambda: algorithm.init_row(server.params), device)
    received, rows = vmap(hear)(upload._replace(memory={}), rows, keys)
    weights = setup.weights(ids).to(trained.loss)
    delta, message = tree.map(torch.clone, algorithm.aggregate(received, weights, ctx))
    clients = Clients(
        memory=clients.memory.scatter(ids, upload.memory),
        buffers=clients.buffers,
        rows=clients.rows.scatter(ids, rows),
    )
    if setup.buffers == "local":
        clients = clients._replace(buffers=clients.buffers.scatter(ids, trained.buffers))
        return block._replace(delta=delta, message=message), clients
    buffers = _average(server.buffers, trained.buffers, weights)
    return block._replace(delta=delta, message=message, buffers=buffers), clients


@arithmetic("float32")
def conclude(
    setup: Setup,
    server: Server,
    clients: Clients,
    t: int,
    blocks: Sequence[PartialMean],
    absent: Sequence[int] = (),
) -> RoundResult:
    """The end of a round: one step of the global weights along the mean of all blocks."""
    wasted = _sent_in_vain(setup, server, absent)
    ids = [i for block in blocks for i in block.ids]
    before, heard = server.params, [block for block in blocks if block.weight]
    dropped = [i for block in blocks for i in block.dropped]
    if heard:
        server = _step(setup, server, t, heard)
    norm = _length(tree.sub(server.params, before)).item()
    if not math.isfinite(norm):
        raise DivergedError(t, "the step of the global weights is not finite")
    uploads = [block.uploads for block in blocks if block.uploads is not None]
    return RoundResult(
        round=t,
        ids=ids,
        dropped=dropped,
        uploads=tree.concat(uploads) if uploads else None,
        losses=tree.concat([block.losses for block in blocks]) if blocks else torch.zeros(0),
        server=server,
        clients=clients,
        update_norm=norm,
        bytes_up=sum(block.bytes_up for block in blocks),
        bytes_down=sum(block.bytes_down for block in blocks) + wasted,
        absent=list(absent),
        late=[i for i in ids if setup.fate(t, i).late],
        corrupted=[i for i in ids if setup.fate(t, i).corrupted],
        chunk=setup.chunk,
    )


def _sent_in_vain(setup: Setup, server: Server, absent: Sequence[int]) -> int:
    """The bytes of what was received by clients that never answered."""
    if not absent:
        return 0
    given = setup.algorithm.broadcast(server.params, server.state)
    averaged = server.buffers if setup.buffers == "average" else {}
    return len(absent) * tree.num_bytes((*given, averaged))


def _step(setup: Setup, server: Server, t: int, blocks: Sequence[PartialMean]) -> Server:
    """The server's update, from the blocks' means summed in their order."""
    shares = [block.weight / sum(b.weight for b in blocks) for block in blocks]
    delta = _blend([block.delta for block in blocks], shares)
    message = _blend([block.message for block in blocks], shares)
    heard = sum(len(block.ids) - len(block.dropped) for block in blocks)
    ctx = replace(_context(setup, server, t, heard), message=message)
    step, state = setup.algorithm.update(delta, ctx)
    params = tree.add(server.params, step, alpha=setup.schedule.server_lr)
    if setup.buffers == "local":
        return Server(params, state, server.buffers)
    return Server(params, state, _blend([block.buffers for block in blocks], shares))


def _blend(values: Sequence[T], shares: Sequence[float]) -> T:
    """The weighted sum of the blocks' means; counters, which have none, are the largest."""
    if len(values) == 1:
        return values[0]

    def combine(*xs: Tensor) -> Tensor:
        if not xs[0].is_floating_point():
            return torch.stack(xs).amax(0)
        return sum((s * x for s, x in zip(shares, xs, strict=True)), torch.zeros_like(xs[0]))

    return tree.map(combine, *values)


def _length(a: Tree) -> Tensor:
    """The norm, summed in double precision."""
    each = [torch.linalg.vector_norm(x, dtype=torch.float64) for x in a.values()]
    return torch.stack(each).square().sum().sqrt()


def _context(setup: Setup, server: Server, t: int, cohort_size: int) -> ServerContext:
    device = next(iter(server.params.values())).device
    return ServerContext(
        params=server.params,
        state=server.state,
        message={},
        round=t,
        key=setup.keys(t, [setup.data.num_clients])[0].to(device),  # an id no client has
        cohort_size=cohort_size,
        num_clients=setup.data.num_clients,
    )


def _finite(trained: Trained) -> list[int]:
    """Which rows of the cohort hold finite numbers only, in all that travels."""
    message = trained.upload.message.values()
    sent = [x for part in (trained.upload.delta, *message, trained.buffers) for x in part.values()]
    rows = [x.reshape(len(x), x[0].numel()) for x in sent if x.is_floating_point()]
    sums = sum((x.sum(1).double() for x in rows), torch.zeros_like(trained.loss).double())
    if sums.isfinite().all():  # and so is everything that was added
        return list(range(len(trained.loss)))
    finite = torch.stack([x.isfinite().all(1) for x in rows]).all(0)
    return [k for k, good in enumerate(finite.tolist()) if good]


def _average(before: Tree, after: Tree, weights: Tensor) -> Tree:
    """The cohort's mean buffers; counters, which have none, are the largest."""
    return tree.map(
        lambda b, x: b + tree.mean(x - b, weights) if x.is_floating_point() else x.amax(0),
        before,
        after,
    )
