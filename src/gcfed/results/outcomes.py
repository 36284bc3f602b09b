"""What came out of runs, over their seeds, and against a baseline with the same seeds.

Accuracies are fractions.  ``final`` is the mean of the last ten evaluations, as in the tables of
the GC-Fed paper; a target counts as reached in the first round whose moving average over ten
evaluations (as in its figures) is there.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from gcfed.errors import InputError, unknown
from gcfed.results.captions import short
from gcfed.results.groups import Group
from gcfed.results.run import Run
from gcfed.results.summary import SMOOTHED
from gcfed.results.ttest import Paired, paired


@dataclass(frozen=True)
class Outcome:
    """What came out of one run; of one that has not finished, nothing."""

    run: Run
    final: float | None = None
    best: float | None = None
    rounds_to_target: int | None = None
    bytes_to_target: int | None = None

    @property
    def seed(self) -> int:
        return self.run.config.seed

    @property
    def status(self) -> str:
        return str(self.run.summary["status"])


@dataclass(frozen=True)
class Spread:
    """The mean and the standard deviation of n values; one value has no deviation."""

    n: int
    mean: float | None
    std: float | None


@dataclass(frozen=True)
class GroupResult:
    """What came out of a group; ``difference`` is to the final accuracy of the ``baseline``."""

    group: Group
    outcomes: tuple[Outcome, ...]
    baseline: str | None = None
    difference: Paired | None = None

    @property
    def name(self) -> str:
        return self.group.name

    @property
    def failed(self) -> list[Outcome]:
        return [o for o in self.outcomes if o.status == "failed"]

    @cached_property
    def chance(self) -> float | None:
        """What guessing scores, where a run diverged: the paper's tables show such runs by it."""
        for outcome in self.failed:
            if outcome.run.summary.get("diverged"):
                match outcome.run.provenance.get("partition"):
                    case {"classes": int(classes)} if classes > 0:
                        return 1 / classes
                return None
        return None

    def spread(self, field: str) -> Spread:
        """Of one field of its outcomes, where it is known."""
        found = (getattr(outcome, field) for outcome in self.outcomes)
        values = [value for value in found if value is not None]
        mean = statistics.fmean(values) if values else None
        return Spread(len(values), mean, statistics.stdev(values) if len(values) > 1 else None)


def result(group: Group, target: float | None = None) -> GroupResult:
    return GroupResult(group, tuple(outcome(run, target) for run in group.runs))


def outcome(run: Run, target: float | None = None) -> Outcome:
    """What came out of a run; one that has not finished reaches no target."""
    if run.summary["status"] != "finished":
        return Outcome(run)
    final, best = run.summary["test_accuracy"], run.summary["test_accuracy_best"]
    if final is None:
        raise InputError(f"{run.path} has no test accuracy to compare")
    reached = None if target is None else rounds_to(run, target)
    lines = run.records[: reached or 0]
    sent = sum(line["bytes_up"] + line["bytes_down"] for line in lines)
    return Outcome(run, final, best, reached, sent if reached else None)


def rounds_to(run: Run, target: float) -> int | None:
    """How many rounds it takes until the moving average of the accuracies is ``target``."""
    tested = [line for line in run.records if line["test_accuracy"] is not None]
    averages = moving_average([line["test_accuracy"] for line in tested])
    reached = (
        line["round"] + 1
        for line, average in zip(tested, averages, strict=True)
        if average >= target
    )
    return next(reached, None)


def moving_average(values: Sequence[float], window: int = SMOOTHED) -> list[float]:
    """The mean of the last ``window`` values, of fewer at the start, as in the paper's figures."""
    ends = range(1, len(values) + 1)
    return [statistics.fmean(values[max(end - window, 0) : end]) for end in ends]


def against(results: Sequence[GroupResult], baseline: str) -> tuple[list[GroupResult], list[str]]:
    """Results with their differences to the baseline of their task, and notes on what is amiss.

    The baseline is a group's name, or an algorithm however it is written.
    """
    bases = [r for r in results if baseline == r.name or short(baseline) == r.group.algorithm]
    if not bases:
        known = {name for r in results for name in (r.name, r.group.algorithm)}
        raise unknown("baseline", baseline, known)
    notes: list[str] = []
    return [_against(r, bases, baseline, notes) for r in results], notes


def _against(
    found: GroupResult, bases: Sequence[GroupResult], baseline: str, notes: list[str]
) -> GroupResult:
    if any(found is base for base in bases):
        return found
    near = [base for base in bases if base.group.task == found.group.task]
    alike = [base for base in near if _but_algorithm(base) == _but_algorithm(found)]
    candidates = alike or near
    if not candidates:
        notes.append(f"{found.name}: no run of {baseline} shares its task, so it has no difference")
        return found
    if len(candidates) > 1:
        names = " or ".join(repr(base.name) for base in candidates)
        notes.append(f"{found.name}: {baseline} may be {names}; say which, for a difference")
        return found
    base = candidates[0]
    if base not in alike:
        notes.append(f"{found.name} is compared with {base.name}: not the algorithm alone differs")
    return _paired(found, base, notes)


def _but_algorithm(found: GroupResult) -> dict[str, object]:
    return {key: v for key, v in found.group.settings.items() if key != "algorithm"}


def _paired(found: GroupResult, base: GroupResult, notes: list[str]) -> GroupResult:
    """Seed by seed, for the seeds that finished in both."""
    finals = {o.seed: o.final for o in base.outcomes if o.final is not None}
    differences = [
        o.final - finals[o.seed] for o in found.outcomes if o.final is not None and o.seed in finals
    ]
    if not differences:
        notes.append(f"{found.name}: no seed finished in both it and {base.name}")
        return found
    return replace(found, baseline=base.name, difference=paired(differences))
