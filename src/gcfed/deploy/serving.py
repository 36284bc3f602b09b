"""The rounds of a run whose clients are nodes."""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace

import torch
from flwr.app import ConfigRecord, RecordDict

from gcfed.core import keys, tree
from gcfed.core.client import Trained
from gcfed.core.hook_checks import naming_hooks
from gcfed.core.memory import HostStore
from gcfed.core.server import Server
from gcfed.core.tree import State
from gcfed.core.types import Upload
from gcfed.deploy.node_memory import NEVER
from gcfed.deploy.nodes import Answers, Nodes
from gcfed.deploy.records import (
    BadMessageError,
    finite_number,
    from_arrays,
    refuse_nonfinite,
    to_arrays,
    whole_number,
)
from gcfed.engines import Sequential
from gcfed.errors import DivergedError, InputError
from gcfed.simulation.rehearsal import rehearse
from gcfed.simulation.round import Sent, conclude, prepare, receive
from gcfed.simulation.setup import Setup
from gcfed.simulation.snapshot import Clients, RoundResult, Snapshot
from gcfed.values import check_range, checked


@dataclass(frozen=True)
class RoundTerms:
    """When a round counts: enough clients answered in time, or it is tried again.

    - ``timeout``: seconds that a client has to answer.
    - ``minimum``: answers that a round needs.
    - ``tries``: how often a round is tried before the run fails.
    """

    timeout: float = 600.0
    minimum: int = 1
    tries: int = 3

    def __post_init__(self) -> None:
        for name, kind in (("timeout", float), ("minimum", int), ("tries", int)):
            checked(f"deploy.{name}", getattr(self, name), kind)
            check_range(f"deploy.{name}", getattr(self, name), "positive")


class TooFewAnswersError(InputError):
    """A round was tried as often as it may be, and too few clients answered."""


NoteLeftOut = Callable[[int, dict[int, str]], None]
"""Told in which round clients were left out, and why each."""


@dataclass(frozen=True)
class Serving:
    """The rounds of one run, with clients that are nodes.

    In place of a client's memory, which stays with the node, the server keeps the round that the
    memory is of: the last one that the client's work entered.
    """

    nodes: Nodes
    terms: RoundTerms
    experiment: str
    note: NoteLeftOut

    def rounds(
        self,
        setups: Sequence[Setup],
        after: Sequence[Snapshot],
        *,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> Generator[dict[int, RoundResult | DivergedError]]:
        """Yield the rounds of one run, as `simulate_together` does."""
        (setup,), (place,) = setups, after
        at: Snapshot | RoundResult = place
        with naming_hooks(setup.algorithm):
            rehearse(replace(setup, engine=Sequential.name), at.server, at.round + 1)
            for t in range(at.round + 1, setup.schedule.rounds):
                try:
                    at = self._round(setup, at.server, at.clients, t)
                except DivergedError as error:
                    yield {0: error}
                    return
                yield {0: at}

    def _round(self, setup: Setup, server: Server, clients: Clients, t: int) -> RoundResult:
        """Round ``t``, tried until enough clients answer."""
        ids = setup.population.sample(t)
        if not ids:
            return conclude(setup, server, clients, t, [])
        for _ in range(self.terms.tries):
            trained, missing = self._ask(setup, server, clients, t, ids)
            if missing:
                self.note(t, missing)
            if len(trained) >= min(self.terms.minimum, len(ids)):
                break
        else:
            raise TooFewAnswersError(
                f"round {t + 1} was tried {self.terms.tries} times, and {len(trained)} of "
                f"{len(ids)} clients answered last, where {self.terms.minimum} are needed"
            )
        came = [i for i in ids if i in trained]  # in their order, whoever answered first
        anchor, message = setup.server_task.broadcast(server)
        shared = tree.expand((anchor, message, server.buffers), len(came))
        key = keys.of_clients(setup.schedule.seed, t, came).to(setup.device)
        work = tree.stack([trained[i] for i in came])
        received, clients = receive(setup, server, clients, t, came, Sent(*shared, key), work)
        return conclude(setup, server, clients, t, [received], sorted(missing))

    def _ask(
        self, setup: Setup, server: Server, clients: Clients, t: int, ids: Sequence[int]
    ) -> tuple[dict[int, Trained], dict[int, str]]:
        """Have clients train; what they learnt, and why some are left out."""
        anchor, message = setup.server_task.broadcast(server)
        arrays = {
            "anchor": to_arrays(anchor),
            "message": to_arrays(message),
            "buffers": to_arrays(server.buffers),
        }
        after = clients.memory.gather(ids, lambda: _version(NEVER), torch.device("cpu"))
        tasks = {
            i: {"experiment": self.experiment, "round": t, "after": int(accepted)}
            for i, accepted in zip(ids, after["version"]["round"], strict=True)
        }
        answers: Answers = self.nodes.ask(
            {i: RecordDict({**arrays, "task": ConfigRecord(task)}) for i, task in tasks.items()}
        )
        like, trained, missing = _expected(setup, server, t), {}, dict(answers.missing)
        for i, content in answers.replies.items():
            try:
                trained[i] = _read(content, t, like)
            except BadMessageError as error:
                missing[i] = f"its answer was refused: {error}"
        return trained, missing


def _version(t: int) -> State:
    return {"version": {"round": torch.tensor(t)}}


def _expected(setup: Setup, server: Server, t: int) -> Trained:
    """An answer as it should be, but for its numbers."""
    nobody = Clients(HostStore(), HostStore(), HostStore())
    client = tree.take(prepare(setup, server, nobody, t, [0]).cohort, 0)
    return setup.client_task.finish(setup.client_task.begin(client), client)


def _read(content: RecordDict, t: int, like: Trained) -> Trained:
    """What a client learnt in round ``t``; anything that is not in order is refused."""
    if (told := whole_number(content, "trained", "round")) != t:
        raise BadMessageError(f"it is of round {told + 1}")
    upload = Upload(
        from_arrays(content, "delta", like.upload.delta),
        from_arrays(content, "message", like.upload.message),
        _version(t),
    )
    buffers = from_arrays(content, "buffers", like.buffers)
    loss = torch.full_like(like.loss, finite_number(content, "trained", "loss"))
    for name, value in {
        "delta": upload.delta,
        "message": upload.message,
        "buffers": buffers,
    }.items():
        refuse_nonfinite(value, name)
    return Trained(upload, buffers, loss, {})
