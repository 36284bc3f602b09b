"""Recorded runs, done again: do their weights, and what probes measured, come out the same?"""

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from gcfed.config.build import Experiment
from gcfed.core.server import Server
from gcfed.errors import DivergedError, InputError
from gcfed.results.run import Run, load_run
from gcfed.runs.resume import check_rounds, rebuild, recorded_threads
from gcfed.simulation.evaluation import Record, weights_sha256
from gcfed.simulation.loop import simulate_together
from gcfed.simulation.setup import Setup
from gcfed.simulation.snapshot import RoundResult, start


@dataclass(frozen=True)
class Verification:
    """How many rounds of a run were done again, and the first that came out otherwise."""

    path: Path
    rounds: int
    differs: int | None

    @property
    def holds(self) -> bool:
        return self.differs is None


def verify(
    path: str | Path, *, rounds: int | None = None, observe: Callable[[int], None] | None = None
) -> Verification:
    """Do a recorded run again, or its first ``rounds``; compare each round's weights and probes.

    With the engine, on the device and together with the runs that it was done with.
    """
    run = load_run(path)
    runs = run.together()
    found = verify_together(runs, rounds, observe)
    which = [other.path.resolve() for other in runs].index(run.path.resolve())
    return found[which]


def verify_together(
    runs: Sequence[Run], rounds: int | None = None, observe: Callable[[int], None] | None = None
) -> list[Verification]:
    """Verify a set of runs, as `Run.together` gives it; ``observe`` is told how many are done."""
    check_rounds(rounds)
    written = [_written(run) for run in runs]
    longest = max(map(len, written))
    num_rounds = min(longest, rounds or longest)
    if num_rounds == 0:
        raise InputError(f"{runs[0].path} has no round yet that could be compared")
    differs: dict[int, int] = {}
    with recorded_threads(runs[0]):
        experiments = rebuild(runs)
        setups = [experiment.setup for experiment in experiments]
        received = [start(setup).server for setup in setups]
        with closing(_again(setups, _chunks(runs, num_rounds))) as again:
            for t, outcomes in enumerate(again):
                for i, outcome in outcomes.items():
                    if t >= len(written[i]):
                        continue
                    if _found(experiments[i], received[i], outcome) != written[i][t]:
                        differs.setdefault(i, t)
                    if isinstance(outcome, RoundResult):
                        received[i] = outcome.server
                if observe is not None:
                    observe(t + 1)
                if len(differs) == len(runs):
                    break
    return [
        Verification(run.path, min(num_rounds, len(written[i])), differs.get(i))
        for i, run in enumerate(runs)
    ]


def _again(
    setups: Sequence[Setup], chunks: Sequence[int | None]
) -> Generator[dict[int, RoundResult | DivergedError]]:
    """The rounds of runs trained together, as many clients at once as there were in each."""
    live, states = list(range(len(setups))), None
    for chunk, alike in groupby(chunks):
        now = [replace(setups[i], chunk=chunk) for i in live]
        with closing(simulate_together(now, states)) as again:
            for _, outcomes in zip(alike, again, strict=False):
                found = {live[k]: outcome for k, outcome in outcomes.items()}
                yield found
        going_on = {i: o for i, o in found.items() if isinstance(o, RoundResult)}
        live, states = list(going_on), list(going_on.values())
        if not live:
            return


def _chunks(runs: Sequence[Run], num_rounds: int) -> list[int | None]:
    """How many clients were trained at once in each round, where it is known."""
    found = max((run.timings for run in runs), key=len)
    sizes = [timing["chunk"] for timing in found] or [runs[0].config.chunk]
    return [*sizes, *sizes[-1:] * num_rounds][:num_rounds]


def _written(run: Run) -> list[tuple[str, Record]]:
    """What is recorded of each round: its weights and its probes' row, or that it diverged."""
    hashes = [line["weights_sha256"] for line in run.records]
    probed = {row["round"]: row for row in run.probes}
    rounds = [(sha256, probed.get(t, {})) for t, sha256 in enumerate(hashes)]
    return [*rounds, DIVERGED] if "diverged" in run.summary else rounds


def _found(
    experiment: Experiment, received: Server, outcome: RoundResult | DivergedError
) -> tuple[str, Record]:
    if isinstance(outcome, DivergedError):
        return DIVERGED
    weights = {**outcome.server.params, **outcome.server.buffers}
    return weights_sha256(weights), experiment.measure(received, outcome)


DIVERGED: tuple[str, Record] = ("diverged", {})
