"""Runs as generators of rounds; whoever consumes them evaluates, logs and stops."""

import gc
import warnings
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import NamedTuple

import torch

from gcfed.capacity import is_device_shared
from gcfed.core import keys
from gcfed.core.client import Facts
from gcfed.core.hook_checks import naming_hooks
from gcfed.engines import Engine
from gcfed.errors import DivergedError, InputError
from gcfed.population.population import Drawn
from gcfed.simulation.ahead import begin_trusting
from gcfed.simulation.rehearsal import rehearse
from gcfed.simulation.round import (
    Received,
    Sent,
    conclude,
    facts_of,
    prepare,
    receive,
)
from gcfed.simulation.setup import Setup
from gcfed.simulation.side_stream import wait_for
from gcfed.simulation.snapshot import Beginning, RoundResult, Snapshot, start

Position = RoundResult | Snapshot | Beginning
"""Where a run stands between two rounds."""


class Known(NamedTuple):
    """What can be known of a round before it begins: who takes part, and the facts of these."""

    drawn: Drawn
    facts: Facts | None


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
) -> Generator[dict[int, RoundResult | DivergedError]]:
    """Yield the rounds of several runs, all of whose clients an engine is given at once.

    Each round comes as the outcomes by run; a run that diverges has an error as its last, and the
    others go on without it.  ``meanwhile`` is called once clients are trained, which on a GPU is
    when it was told all of a round: what the host has left to do costs no time then.  The engine is
    closed when the last round is over, when a round fails, and when the generator is closed or
    forgotten.
    """
    if len({(_engine_of(setup), setup.schedule.rounds) for setup in setups}) != 1:
        raise InputError("runs go together with the same engine for the same number of rounds")
    first = after[0].round + 1 if after else 0
    states: dict[int, Position] = dict(enumerate(after or map(start, setups)))
    draws = Draws(setups)
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
        for t in range(first, setups[0].schedule.rounds):
            while True:
                try:
                    with engine.beside():
                        outcomes = _round(engine, setups, states, t, draws, meanwhile)
                    break
                except torch.OutOfMemoryError as error:
                    setups = _in_smaller_chunks(engine, setups, error)
            yield outcomes
            states = {i: o for i, o in outcomes.items() if isinstance(o, RoundResult)}
            if not states:
                return


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
            "draws from a generator of its own, or changes itself, so this run cannot be repeated "
            "nor resumed to the same bits; have it draw by torch, numpy.random or random, without "
            "a generator",
            stacklevel=3,
        )


def _engine_of(setup: Setup) -> object:
    """The name of a setup's engine, or the engine itself where it was given as an object."""
    return setup.chosen.name if isinstance(setup.engine, str) else setup.engine


def _round(
    engine: Engine,
    setups: Sequence[Setup],
    states: Mapping[int, Position],
    t: int,
    draws: Draws,
    meanwhile: Callable[[], None],
) -> dict[int, RoundResult | DivergedError]:
    """Round ``t`` of every run that goes on, chunk by chunk of their cohorts."""
    clients = {i: at.clients for i, at in states.items()}
    known = {i: draws.of(i, t) for i in states}
    drawn = {i: each.drawn for i, each in known.items()}
    chunks = {i: setups[i].chunks(list(drawn[i].plans)) for i in states}
    received: dict[int, list[Received]] = {i: [] for i in states}
    outcomes: dict[int, RoundResult | DivergedError] = {}
    count = max(map(len, chunks.values()))
    for c in range(count):
        going = [i for i in states if i not in outcomes and c < len(chunks[i])]
        ids = {i: chunks[i][c] for i in going}
        plans = {i: [drawn[i].plans[k] for k in ids[i]] for i in going}
        facts = {i: known[i].facts if len(chunks[i]) == 1 else None for i in going}
        jobs = [
            prepare(setups[i], states[i].server, clients[i], t, ids[i], plans[i], facts[i])
            for i in going
        ]
        with keys.untouched(), setups[0].arithmetic():
            trained = engine(jobs) if jobs else []
        runs = {i: (setups[i], states[i].server, clients[i], t) for i in going}
        sent = {i: Sent.by(job) for i, job in zip(going, jobs, strict=True)}
        work = dict(zip(going, trained, strict=True))
        whole = going if count == 1 else []
        begun = {i: begin_trusting(*runs[i], sent[i], work[i], drawn[i]) for i in whole}
        if c + 1 == count:
            draws.look_ahead(states, t + 1)
            meanwhile()
        wait_for(setups[0].device)
        for i in going:
            try:
                result = begun[i]() if begun else None
                if result is not None:
                    outcomes[i] = result
                    continue
                part, clients[i] = receive(*runs[i], ids[i], sent[i], work[i])
                received[i].append(part)
            except DivergedError as error:
                outcomes[i] = error
    for i in states.keys() - outcomes.keys():
        try:
            at = states[i].server
            outcomes[i] = conclude(setups[i], at, clients[i], t, received[i], drawn[i].absent)
        except DivergedError as error:
            outcomes[i] = error
    return {i: outcomes[i] for i in states}


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
