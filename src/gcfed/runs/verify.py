"""Recorded runs, done again: does all that they recorded come out the same?"""

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from gcfed.errors import DivergedError, InputError
from gcfed.results.run import Run, open_run
from gcfed.results.seal import broken_seals, is_sealed, unsealed_files
from gcfed.runs.rerun import Rerun, num_recorded
from gcfed.runs.resume import check_rounds, rebuild, recorded_threads
from gcfed.simulation.loop import simulate_together
from gcfed.simulation.setup import Setup
from gcfed.simulation.snapshot import RoundResult


@dataclass(frozen=True)
class Verification:
    """What came of a run that was checked.

    ``rounds`` is how many of its rounds were done again, ``differs`` the first of them that came
    out otherwise, counted from 0.  ``reasons`` say in words all that is not as it was recorded.  A
    run that is not ``sealed`` goes on, was killed, or was made before runs had a seal; ``unsealed``
    are the files that the seal of an older run does not hold.
    """

    path: Path
    rounds: int
    differs: int | None
    reasons: tuple[str, ...] = ()
    sealed: bool = True
    unsealed: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        return not self.reasons


def verify(
    path: str | Path,
    *,
    rounds: int | None = None,
    quick: bool = False,
    observe: Callable[[int], None] | None = None,
) -> Verification:
    """Do a recorded run again, or its first ``rounds``; compare all that is recorded of it.

    With the engine, on the device and together with the runs that it was done with.  With
    ``quick`` nothing is done again: its files are compared with the hashes in its seal.
    """
    run = open_run(path)
    if quick:
        return verify_seal(run)
    runs = run.together()
    found = verify_together(runs, rounds, observe)
    which = [other.path.resolve() for other in runs].index(run.path.resolve())
    return found[which]


def verify_seal(run: Run) -> Verification:
    """Whether the files of a run are those that it ended with; no round is done again."""
    reasons, unsealed = tuple(broken_seals(run)), tuple(unsealed_files(run))
    return Verification(run.path, 0, None, reasons, is_sealed(run), unsealed)


def not_verified(run: Run, error: InputError) -> Verification:
    """What came of a run that could not be done again."""
    reasons = (*verify_seal(run).reasons, f"cannot be verified: {error}")
    return replace(verify_seal(run), reasons=reasons)


def verify_together(
    runs: Sequence[Run], rounds: int | None = None, observe: Callable[[int], None] | None = None
) -> list[Verification]:
    """Verify a set of runs, as `Run.together` gives it; ``observe`` is told how many are done."""
    check_rounds(rounds)
    seals = [verify_seal(run) for run in runs]
    longest = max(map(num_recorded, runs))
    num_rounds = min(longest, rounds or longest)
    if num_rounds == 0 and all(seal.holds for seal in seals):
        raise InputError(f"{runs[0].path} has no round yet that could be compared")
    if num_rounds == 0:
        return seals
    with recorded_threads(runs[0]):
        reruns = [Rerun(run, made) for run, made in zip(runs, rebuild(runs), strict=True)]
        _compare(reruns, num_rounds, observe)
    found = []
    for seal, rerun in zip(seals, reruns, strict=True):
        reasons = dict.fromkeys((*seal.reasons, *rerun.conclude(num_rounds)))
        done = min(num_rounds, rerun.recorded)
        found.append(replace(seal, rounds=done, differs=rerun.differs, reasons=tuple(reasons)))
    return found


def _compare(
    reruns: Sequence[Rerun], num_rounds: int, observe: Callable[[int], None] | None
) -> None:
    """Do rounds again, and compare each, until all are done or every run differs."""
    setups = [rerun.experiment.setup for rerun in reruns]
    chunks = _chunks([rerun.run for rerun in reruns], num_rounds)
    with closing(_again(setups, chunks)) as again:
        for t, outcomes in enumerate(again):
            for i, outcome in outcomes.items():
                if t < reruns[i].recorded:
                    reruns[i].compare(outcome)
            if observe is not None:
                observe(t + 1)
            if all(rerun.differs is not None for rerun in reruns):
                break


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
