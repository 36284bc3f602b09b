"""One round as a pure function: broadcast, train, receive, aggregate, update."""

import math
from collections.abc import Sequence
from contextlib import ExitStack
from typing import NamedTuple

import torch
from torch import Tensor

from gcfed.core import keys, tree
from gcfed.core.batches import Batches, BatchPlan
from gcfed.core.client import Facts, Job, LocalModel, Trained, cohort_of
from gcfed.core.hook_checks import naming_hooks
from gcfed.core.server import Arrived, PartialMean, Server, distance
from gcfed.core.tree import State, Tree
from gcfed.core.types import Upload
from gcfed.engines import Engine
from gcfed.errors import DivergedError
from gcfed.simulation.setup import Setup
from gcfed.simulation.side_stream import wait_for
from gcfed.simulation.snapshot import Clients, RoundResult, Snapshot


def run_round(
    setup: Setup,
    server: Server,
    clients: Clients,
    t: int,
    ids: Sequence[int],
    plans: Sequence[BatchPlan] | None = None,
    *,
    engine: Engine | None = None,
) -> RoundResult:
    """Round ``t`` with the clients ``ids``, on ``plans`` if given; changes nothing it is given.

    It is trained by ``engine``, which stays open, or else by one that is opened for this round.
    """
    with ExitStack() as stack:
        stack.enter_context(naming_hooks(setup.algorithm))
        job = prepare(setup, server, clients, t, ids, plans)
        engine = engine or stack.enter_context(setup.chosen.make())
        stack.enter_context(engine.beside())
        with keys.untouched(), setup.arithmetic():
            (trained,) = engine([job])
        received, clients = receive(setup, server, clients, t, ids, Sent.by(job), trained)
        return conclude(setup, server, clients, t, [received])


def prepare(
    setup: Setup,
    server: Server,
    clients: Clients,
    t: int,
    ids: Sequence[int],
    plans: Sequence[BatchPlan] | None = None,
    facts: Facts | None = None,
) -> Job:
    """The first half of a round: what each client of the cohort is given to do."""
    plans = plans or [setup.population.plan(t, i) for i in ids]
    anchor, message = setup.server_task.broadcast(server)
    device = setup.device
    cohort = cohort_of(
        anchor,
        message,
        lr=setup.lr(t),
        t=t,
        memory=clients.memory.gather(ids, lambda: setup.algorithm.init_client(anchor), device),
        buffers=clients.buffers.gather(ids, lambda: server.buffers, device),
        facts=facts or facts_of(setup, t, ids, plans),
    )
    batches = Batches(setup.data.handle, plans)
    return Job(setup.client_task, cohort, batches, max(setup.room, len(ids)))


def facts_of(setup: Setup, t: int, ids: Sequence[int], plans: Sequence[BatchPlan]) -> Facts:
    """What is known of clients before round ``t`` begins."""
    return Facts.of(
        label_counts=setup.data.label_counts(ids),
        filled_counts=setup.population.filled_counts(ids),
        num_examples=setup.data.num_examples(ids),
        plans=plans,
        key=keys.of_clients(setup.schedule.seed, t, ids),
        like=next(iter(setup.model.params.values())),
    )


class Sent(NamedTuple):
    """What the server sent to the clients of a cohort, stacked, and their random keys."""

    anchor: Tree
    message: State
    buffers: Tree
    key: Tensor

    @classmethod
    def by(cls, job: Job) -> "Sent":
        """What was sent to the clients of a job."""
        cohort = job.cohort
        return cls(cohort.anchor, cohort.message, cohort.buffers, cohort.key)


class Received(NamedTuple):
    """What came of some clients of a cohort: the mean of those that count, and what is kept."""

    ids: list[int]
    dropped: list[int]
    mean: PartialMean | None
    uploads: Upload | None
    models: LocalModel | None
    losses: Tensor
    bytes_up: int
    bytes_down: int


def receive(
    setup: Setup,
    server: Server,
    clients: Clients,
    t: int,
    ids: Sequence[int],
    sent: Sent,
    trained: Trained,
) -> tuple[Received, Clients]:
    """The server takes in what some clients of a cohort send; what is kept of each is replaced."""
    arrived, upload = arrive(setup, t, ids, sent, trained)
    kept = setup.server_task.accept(t, arrived)
    received = taken(setup, ids, kept, sent, trained, upload)
    if not kept:
        return received, clients
    memory, buffers = upload.memory, trained.buffers
    if received.dropped:
        arrived, (memory, buffers) = arrived.take(kept), tree.take((memory, buffers), kept)
    mean, rows = setup.server_task.receive(server, clients.rows, t, arrived)
    clients = Clients(clients.memory.scatter(arrived.ids, memory), clients.buffers, rows)
    if not setup.server_task.is_averaging:
        clients = clients._replace(buffers=clients.buffers.scatter(arrived.ids, buffers))
    return received._replace(mean=mean), clients


def arrive(
    setup: Setup, t: int, ids: Sequence[int], sent: Sent, trained: Trained
) -> tuple[Arrived, Upload]:
    """What the server gets from clients: what they sent, some of it corrupted by faults."""
    upload = _as_received(setup, t, ids, sent.key, trained.upload)
    arrived = Arrived(
        ids=list(ids),
        num_examples=setup.data.num_examples(ids),
        key=sent.key,
        delta=upload.delta,
        message=upload.message,
        buffers=trained.buffers,
    )
    return arrived, upload


def taken(
    setup: Setup,
    ids: Sequence[int],
    kept: Sequence[int],
    sent: Sent,
    trained: Trained,
    upload: Upload,
) -> Received:
    """What was received from clients, as yet without a mean; ``kept`` are the rows that count."""
    travels, keep = setup.server_task.is_averaging, setup.keep
    up = (upload.delta, upload.message, trained.buffers if travels else {})
    down = (sent.anchor, sent.message, sent.buffers if travels else {})
    return Received(
        ids=list(ids),
        dropped=[i for k, i in enumerate(ids) if k not in kept],
        mean=None,
        uploads=tree.map(torch.clone, upload) if "uploads" in keep else None,
        models=tree.map(torch.clone, LocalModel(trained.params, trained.buffers))
        if "models" in keep
        else None,
        losses=trained.loss.clone(),
        bytes_up=tree.num_bytes(up),
        bytes_down=tree.num_bytes(down),
    )


def _as_received(setup: Setup, t: int, ids: Sequence[int], key: Tensor, upload: Upload) -> Upload:
    """Updates as they arrive: faults corrupt those of some clients."""
    population = setup.population
    hit = [ids.index(i) for i, fate in population.struck(t, ids).items() if fate.corrupted]
    if not hit:
        return upload
    uploads = [tree.take(upload, k) for k in range(len(ids))]
    for k in hit:
        uploads[k] = population.faults.corrupt(uploads[k], key[k])
    return tree.stack(uploads)


def conclude(
    setup: Setup,
    server: Server,
    clients: Clients,
    t: int,
    received: Sequence[Received],
    absent: Sequence[int] = (),
) -> RoundResult:
    """The end of a round: one step of the global weights along the mean of all clients."""
    before, means = server.params, [part.mean for part in received if part.mean is not None]
    after = setup.server_task.update(server, t, means) if means else server
    length = distance(after.params, before).item()
    wasted = sent_in_vain(setup, server, absent)
    result = result_of(setup, Snapshot(t, after, clients), received, absent, length, wasted)
    wait_for(setup.device)  # a result is there as a whole
    return result


def result_of(
    setup: Setup,
    at: Snapshot,
    received: Sequence[Received],
    absent: Sequence[int],
    length: float,
    wasted: int,
) -> RoundResult:
    """A round's result, from the state after it and what was received; ``length`` is its step's."""
    if not math.isfinite(length):
        raise DivergedError(at.round, "the step of the global weights is not finite")
    ids = [i for part in received for i in part.ids]
    uploads = [part.uploads for part in received if part.uploads is not None]
    models = [part.models for part in received if part.models is not None]
    struck = setup.population.struck(at.round, ids)
    return RoundResult(
        round=at.round,
        ids=ids,
        dropped=[i for part in received for i in part.dropped],
        uploads=tree.concat(uploads) if uploads else None,
        models=tree.concat(models) if models else None,
        losses=tree.concat([part.losses for part in received]) if received else torch.zeros(0),
        server=at.server,
        clients=at.clients,
        update_norm=length,
        bytes_up=sum(part.bytes_up for part in received),
        bytes_down=sum(part.bytes_down for part in received) + wasted,
        absent=list(absent),
        late=[i for i, fate in struck.items() if fate.late],
        corrupted=[i for i, fate in struck.items() if fate.corrupted],
        chunk=setup.chunk,
    )


def sent_in_vain(setup: Setup, server: Server, absent: Sequence[int]) -> int:
    """The bytes of what was received by clients that never answered."""
    if not absent:
        return 0
    task = setup.server_task
    averaged = server.buffers if task.is_averaging else {}
    return len(absent) * tree.num_bytes((*task.broadcast(server), averaged))
