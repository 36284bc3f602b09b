"""Runs as generators of rounds; whoever consumes them evaluates, logs and stops."""

import gc
import warnings
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace

import torch

from gcfed.capacity import is_device_shared
from gcfed.core.hook_checks import naming_hooks
from gcfed.engines import Engine
from gcfed.errors import DivergedError, InputError
from gcfed.simulation.rehearsal import rehearse
from gcfed.simulation.round import facts_of
from gcfed.simulation.server_half import ServerHalf
from gcfed.simulation.setup import Setup
from gcfed.simulation.side_stream import wait_for
from gcfed.simulation.snapshot import RoundResult, Snapshot, start
from gcfed.simulation.underway import Ending, Known, Position, Underway


class Draws:
    """What runs draw, round by round; the next round can be drawn while an accelerator works."""

    def __init__(self, setups: Sequence[Setup]) -> None:
        self._setups = setups
        self._ahead: dict[tuple[int, int], Known] = {}

    def of(self, run: int, t: int) -> Known:
        return self._ahead.pop((run, t), None) or self._draw(run, t)

    def look_ahead(self, runs: Iterable[int], t: int) -> None:
        if t < self._setups[0].schedule.rounds:
            self._ahead = {(i, t): self._draw(i, t) for i in runs}

    def _draw(self, run: int, t: int) -> Known:
        setup = self._setups[run]
        drawn = setup.population.draw(t)
        ids, plans = list(drawn.plans), list(drawn.plans.values())
        whole = 0 < len(ids) <= setup.room  # else they are trained part by part
        return Known(drawn, facts_of(setup, t, ids, plans) if whole else None)


def simulate(setup: Setup, after: RoundResult | Snapshot | None = None) -> Generator[RoundResult]:
    """Yield the rounds of a run, from the first or from the one that follows ``after``."""
    resumed = None if after is None else [after]
    with closing(simulate_together([setup], resumed)) as rounds:
        for outcomes in rounds:
            (outcome,) = outcomes.values()
            if isinstance(outcome, DivergedError):
                raise outcome
            yield outcome


def simulate_together(
    setups: Sequence[Setup],
    after: Sequence[RoundResult | Snapshot] | None = None,
    *,
    meanwhile: Callable[[], None] = lambda: None,
) -> Generator[dict[int, Ending]]:
    """Yield the rounds of several runs, all of whose clients an engine is given at once.

    Each round comes as the outcomes by run; a run that diverges has an error as its last, and the
    others go on without it.  ``meanwhile`` is called once clients are trained; on a GPU, once
    it has been given all work of the round, and of the next if possible, so that what the host does
    then costs no time.  The engine is closed when the last round is over, when a round fails, and
    when the generator is closed or forgotten.
    """
    if len({(_engine_of(setup), setup.schedule.rounds) for setup in setups}) != 1:
        raise InputError("runs go together with the same engine for the same number of rounds")
    first = after[0].round + 1 if after else 0
    states: dict[int, Position] = dict(enumerate(after or map(start, setups)))
    if first < setups[0].schedule.rounds:
        _warn_of_draws(setups[0])
        with naming_hooks(setups[0].algorithm):
            able = rehearse(setups[0], states[0].server, first)
        if able is not setups[0]:
            setups = [
                replace(setup, engine=able.engine, engine_reason=able.engine_reason)
                for setup in setups
            ]
    with setups[0].chosen.make() as engine, naming_hooks(setups[0].algorithm):
        rounds = _Rounds(engine, setups)
        try:
            for t in range(first, setups[0].schedule.rounds):
                with engine.beside():
                    outcomes = rounds.do(states, t, meanwhile)
                yield outcomes
                states = {i: o for i, o in outcomes.items() if isinstance(o, RoundResult)}
                if not states:
                    return
        finally:
            rounds.rest()


def _warn_of_draws(setup: Setup) -> None:
    if setup.own_draws:
        warnings.warn(
            f"{', '.join(setup.own_draws)} draws random numbers by functions whose numbers cannot "
            "come from a key, so generators are seeded from it at each step: the run can be "
            "repeated, on this kind of device, but its steps are neither traced nor mapped over "
            "clients, which is slower",
            stacklevel=3,
        )
    if not setup.draws.repeats:
        warnings.warn(
            "the model gives other outputs when it is run again with the same random numbers: it "
            "draws from a generator of its own, or keeps something that one client leaves to the "
            "next, so this run cannot be repeated nor resumed to the same bits; have it draw by "
            "torch, numpy.random or random, without a generator, and register a tensor that "
            "forward sets as a buffer",
            stacklevel=3,
        )


def _engine_of(setup: Setup) -> object:
    """The name of a setup's engine, or the engine itself where it was given as an object."""
    return setup.chosen.name if isinstance(setup.engine, str) else setup.engine


class _Rounds:
    """Rounds of several runs, one after the other; a GPU is told the next before one is over."""

    def __init__(self, engine: Engine, setups: Sequence[Setup]) -> None:
        self._engine, self._setups, self._draws = engine, setups, Draws(setups)
        self._recorder = engine.recorder_on(setups[0].device)
        self._halves = self._new_halves()
        self._ahead: Underway | None = None
        self._is_trusting = True

    def do(
        self, states: Mapping[int, Position], t: int, meanwhile: Callable[[], None]
    ) -> dict[int, Ending]:
        """Round ``t`` of every run that goes on."""
        while True:
            try:
                return self._do(states, t, meanwhile)
            except torch.OutOfMemoryError as error:
                self.rest()  # graphs are about to be let go
                self._ahead, self._halves = None, self._new_halves()
                self._setups = _in_smaller_chunks(self._engine, self._setups, error)

    def rest(self) -> None:
        """Wait for work that the device was given, before the engine frees what that work uses."""
        with suppress(RuntimeError):  # of a device that failed, as the run has
            wait_for(self._setups[0].device)

    def _do(
        self, states: Mapping[int, Position], t: int, meanwhile: Callable[[], None]
    ) -> dict[int, Ending]:
        now, self._ahead = self._ahead or self._begin(states, t), None
        self._draws.look_ahead(states, t + 1)
        self._ahead = self._begin_early(now)
        meanwhile()
        outcomes = now.finish()
        self._is_trusting = now.is_as_expected()
        if not self._is_trusting:
            self._ahead = None
        return outcomes

    def _begin(self, states: Mapping[int, Position], t: int) -> Underway:
        known = {i: self._draws.of(i, t) for i in states}
        return Underway(self._engine, self._halves, self._setups, states, t, known)

    def _begin_early(self, now: Underway) -> Underway | None:
        """The next round, from where this one is expected to lead.

        Without a recorder there is nothing to gain, and after a round that did not end as expected
        it is not tried.  An error here is dropped, and comes again when it is the round's turn.
        """
        states, t = now.expected, now.t + 1
        last = t == self._setups[0].schedule.rounds
        if self._recorder is None or not self._is_trusting or states is None or last:
            return None
        now.is_overtaken = True
        with suppress(Exception):
            return self._begin(states, t)
        return None

    def _new_halves(self) -> list[ServerHalf]:
        return [ServerHalf(setup.server_task, self._recorder) for setup in self._setups]


def _in_smaller_chunks(engine: Engine, setups: Sequence[Setup], error: Exception) -> list[Setup]:
    """The same runs with half as many clients at once; one at a time cannot be halved.

    Where other runs share the device, theirs may be the memory that is missing: then nothing is
    halved, which would change last bits.
    """
    size = setups[0].chunk or setups[0].schedule.cohort_size
    if is_device_shared():
        raise InputError(
            "memory is short beside other cells on this device: let fewer share it (--per-device)"
        ) from error
    if size == 1:
        raise error
    engine.close()
    gc.collect()  # the command line puts that off until a round is done
    torch.cuda.empty_cache()
    half = -(-size // 2)
    warnings.warn(f"memory is short: {half} clients at once instead of {size}", stacklevel=3)
    return [replace(setup, chunk=half) for setup in setups]
