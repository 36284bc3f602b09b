"""What came out of runs, over their seeds, and against a baseline with the same seeds.

Percentages are fractions.  ``final`` is the mean of the last ten evaluations, as in the tables of
the GC-Fed paper; a target counts as reached in the first round whose moving average over ten
evaluations (as in its figures) is at least as good.
"""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from gcfed.algorithms import ALGORITHMS
from gcfed.core.metrics import Scale
from gcfed.errors import InputError, unknown
from gcfed.results.captions import Written, written
from gcfed.results.groups import Group
from gcfed.results.run import Run
from gcfed.results.summary import SMOOTHED, summarize
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
        return self.run.status


@dataclass(frozen=True)
class Spread:
    """The mean and the standard deviation of n values; one value has no deviation."""

    n: int
    mean: float | None
    std: float | None


@dataclass(frozen=True)
class GroupResult:
    """What came out of a group; ``difference`` is to the final values of the ``baseline``."""

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
        """The accuracy of guessing, where a run diverged: the paper's tables show such runs so."""
        for outcome in self.failed:
            if outcome.run.summary.get("diverged"):
                match outcome.run.provenance.get("partition"):
                    case {"classes": int(classes)} if classes > 0:
                        return 1 / classes
                return None
        return None

    def spread(self, field: str) -> Spread:
        """Of one field of its outcomes, where it is known."""
        return spread(getattr(outcome, field) for outcome in self.outcomes)


def spread(values: Iterable[float | None]) -> Spread:
    """The spread of those values that are known."""
    known = [value for value in values if value is not None]
    mean = statistics.fmean(known) if known else None
    return Spread(len(known), mean, statistics.stdev(known) if len(known) > 1 else None)


def result(group: Group, metric: Scale, target: float | None = None) -> GroupResult:
    return GroupResult(group, tuple(outcome(run, metric, target) for run in group.runs))


def outcome(run: Run, metric: Scale, target: float | None = None) -> Outcome:
    """What came out of a run by this metric; one that has not finished reaches no target."""
    summary, test = run.summary, f"test_{metric.name}"
    if summary["status"] != "finished":
        return Outcome(run)
    if f"{test}_best" not in summary:  # of a metric that the run is not judged by
        summary = summarize(run.config, run.records, metric)
    reached = None if target is None else rounds_to(run, metric, target)
    lines = run.records[: reached or 0]
    sent = sum(line["bytes_up"] + line["bytes_down"] for line in lines)
    final, best = summary[test], summary[f"{test}_best"]
    return Outcome(run, final, best, reached, sent if reached else None)


def rounds_to(run: Run, metric: Scale, target: float) -> int | None:
    """How many rounds it takes until the moving average of a metric is as good as ``target``."""
    test, sign = f"test_{metric.name}", metric.sign
    tested = [line for line in run.records if line[test] is not None]
    averages = moving_average([line[test] for line in tested])
    reached = (
        line["round"] + 1
        for line, average in zip(tested, averages, strict=True)
        if sign * average >= sign * target
    )
    return next(reached, None)


def moving_average(values: Sequence[float], window: int = SMOOTHED) -> list[float]:
    """The mean of the last ``window`` values, of fewer at the start, as in the paper's figures."""
    return smoothed(values, range(1, len(values) + 1), window)


def smoothed(values: Sequence[float], ends: Iterable[int], window: int) -> list[float]:
    """The moving average of values where it ends: after so many of them."""
    return [statistics.fmean(values[max(end - window, 0) : end]) for end in ends]


def against(results: Sequence[GroupResult], baseline: str) -> tuple[list[GroupResult], list[str]]:
    """Results with their differences to the baseline of their task, and notes on what is amiss.

    The baseline is a group's name, or an algorithm however it is written.
    """
    if not (bases := _bases(results, baseline)):
        known = {name for r in results for name in (r.name, r.group.algorithm)}
        error = unknown("baseline", baseline, known)
        names = {name for r in results for name, _ in written(r.group.algorithm)}
        if foreign := sorted(names - set(ALGORITHMS)):
            raise InputError(
                f"{error}. {foreign[0]} is of a plugin that is not loaded, so its hyper-parameters "
                "stand there in full: --plugin FILE.py loads it"
            )
        raise error
    notes: list[str] = []
    return [_against(r, bases, baseline, notes) for r in results], notes


def _bases(results: Sequence[GroupResult], baseline: str) -> list[GroupResult]:
    """The groups that a baseline names.

    Of a plugin that is not loaded the defaults are not known: there an algorithm is also meant if
    it is the only one that has the hyper-parameters which are written.
    """
    asked = written(baseline)
    found = [(r, written(r.group.algorithm)) for r in results]
    if named := [r for r, own in found if r.name == baseline or own == asked != []]:
        return named
    fits = [r for r, own in found if _has_all(own, asked)]
    return fits if len({r.group.algorithm for r in fits}) == 1 else []


def _has_all(own: Written, asked: Written) -> bool:
    """Whether an algorithm has what is asked for, and more only where its defaults are unknown."""
    return [name for name, _ in own] == [name for name, _ in asked] != [] and all(
        values == wanted or (name not in ALGORITHMS and wanted.items() <= values.items())
        for (name, values), (_, wanted) in zip(own, asked, strict=True)
    )


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
