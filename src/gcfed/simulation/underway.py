"""A round of several runs, from what an engine is told of it to what comes of it."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gcfed.core import keys
from gcfed.core.client import Facts, Trained
from gcfed.engines import Engine
from gcfed.errors import DivergedError
from gcfed.population.population import Drawn
from gcfed.simulation.ahead import Trusted, begin_trusting
from gcfed.simulation.round import Received, Sent, conclude, prepare, receive
from gcfed.simulation.server_half import ServerHalf
from gcfed.simulation.setup import Setup
from gcfed.simulation.snapshot import Beginning, RoundResult, Snapshot

Position = RoundResult | Snapshot | Beginning
"""Where a run stands between two rounds."""

Ending = RoundResult | DivergedError
"""What a round of a run comes to."""


class Known(NamedTuple):
    """What can be known of a round before it begins: who takes part, and the facts of these."""

    drawn: Drawn
    facts: Facts | None


class Underway:
    """Round ``t`` of every run that goes on; `finish` waits for it.

    Making it trains the clients, or the first chunk of them; on a GPU it only starts that.  If the
    engine is to train others before `finish`, set ``is_overtaken``: what these clients sent is then
    lost.
    """

    def __init__(
        self,
        engine: Engine,
        halves: Sequence[ServerHalf],
        setups: Sequence[Setup],
        states: Mapping[int, Position],
        t: int,
        known: Mapping[int, Known],
    ) -> None:
        self._engine, self._setups, self._states, self._known = engine, setups, states, known
        self.t, self.is_overtaken = t, False
        self._chunks = {i: setups[i].chunks(list(known[i].drawn.plans)) for i in states}
        self._clients = {i: at.clients for i, at in states.items()}
        self._outcomes: dict[int, Ending] = {}
        self._trained = self._train(0)
        self._begun: dict[int, Trusted | None] = {}
        if self._count == 1:
            plans = [plan for each in known.values() for plan in each.drawn.plans.values()]
            is_even = len({len(plan) for plan in plans}) == 1
            for i, (sent, work) in self._trained.items():
                at, drawn = states[i], known[i].drawn
                self._begun[i] = begin_trusting(
                    setups[i],
                    halves[i],
                    at.server,
                    at.clients,
                    t,
                    sent,
                    work,
                    drawn,
                    is_even=is_even,
                )

    @property
    def expected(self) -> dict[int, Snapshot] | None:
        """Where runs will stand if all is finite; None where that is not known of all."""
        at = {i: each.at for i, each in self._begun.items() if each is not None and each.is_pure}
        return at if len(at) == len(self._states) else None

    def is_as_expected(self) -> bool:
        """Whether, once finished, all runs stand where they were expected."""
        expected = self.expected or {}
        return all(
            i in expected and isinstance(found, RoundResult) and found.server is expected[i].server
            for i, found in self._outcomes.items()
        )

    def finish(self) -> dict[int, Ending]:
        """What became of the round, chunk by chunk of the cohorts."""
        received: dict[int, list[Received]] = {i: [] for i in self._states}
        for c in range(self._count):
            if c > 0:
                self._trained = self._train(c)
            for i in self._trained:
                try:
                    self._take(i, c, received[i])
                except DivergedError as error:
                    self._outcomes[i] = error
        for i in self._states.keys() - self._outcomes.keys():
            try:
                run = (self._setups[i], self._states[i].server, self._clients[i], self.t)
                absent = self._known[i].drawn.absent
                self._outcomes[i] = conclude(*run, received[i], absent)
            except DivergedError as error:
                self._outcomes[i] = error
        return {i: self._outcomes[i] for i in self._states}

    @property
    def _count(self) -> int:
        return max(map(len, self._chunks.values()))

    def _take(self, i: int, c: int, received: list[Received]) -> None:
        """Take in what a chunk of a run's clients sent, unless the round was concluded ahead."""
        begun = self._begun.get(i)
        result = None if begun is None else begun.finish()
        if result is not None:
            self._outcomes[i] = result
            return
        if self.is_overtaken:  # what clients sent is no longer where the engine left it
            self._trained, self.is_overtaken = self._train(c), False
        run = (self._setups[i], self._states[i].server, self._clients[i], self.t)
        part, self._clients[i] = receive(*run, self._chunks[i][c], *self._trained[i])
        received.append(part)

    def _train(self, c: int) -> dict[int, tuple[Sent, Trained]]:
        """What was sent to the clients of a chunk, and what became of them, by run."""
        there = [i for i, parts in self._chunks.items() if c < len(parts)]
        # a first chunk is trained again as it was, by the same program, with all that were in it
        going = [i for i in there if c == 0 or i not in self._outcomes]
        jobs = []
        for i in going:
            ids, (drawn, facts) = self._chunks[i][c], self._known[i]
            run = (self._setups[i], self._states[i].server, self._clients[i], self.t)
            plans = [drawn.plans[k] for k in ids]
            jobs.append(prepare(*run, ids, plans, facts if len(self._chunks[i]) == 1 else None))
        with keys.untouched(), self._setups[0].arithmetic():
            trained = self._engine(jobs) if jobs else []
        return {i: (Sent.by(job), work) for i, job, work in zip(going, jobs, trained, strict=True)}
