"""How training went on the way: steps from one evaluation to the next, falls and peaks.

The paper's table on training dynamics gives the mean, the standard deviation and the minimum of the
first differences of the accuracy; the figure beside it, the peak and the smoothed accuracy at a
round.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import accumulate, pairwise
from typing import Any

from gcfed.core.metrics import Scale
from gcfed.errors import InputError
from gcfed.results.comparison import Comparison, compare
from gcfed.results.entries import cost_column, seeds, target_text
from gcfed.results.groups import Runs
from gcfed.results.outcomes import GroupResult, Spread, moving_average, spread
from gcfed.results.run import Run
from gcfed.results.summary import say_averaged
from gcfed.results.tables import Entry, Section, Table, Tabulated, ranked
from gcfed.values import check_range, checked


@dataclass(frozen=True)
class Dynamics:
    """How a metric moved during one run; None is what the run cannot tell.

    - ``mean``, ``std``, ``worst``: of its first differences, from one evaluation to the next.  The
      worst is the smallest, or the largest where a lower metric is better.
    - ``drop``: how far it ever was below an evaluation before, or above where lower is better.
    - ``peak``: the best evaluation; ``smoothed``: the mean of the last ten up to a round.
    """

    mean: float | None = None
    std: float | None = None
    worst: float | None = None
    drop: float | None = None
    peak: float | None = None
    smoothed: float | None = None


def series_dynamics(
    rounds: Sequence[int], values: Sequence[float], metric: Scale, at: int | None = None
) -> Dynamics:
    """How the values of a metric moved, which were measured after these rounds, counted from 1.

    ``smoothed`` is after round ``at``, if not given after the last.
    """
    steps, best = first_differences(values), max if metric.better == "higher" else min
    worst = min if metric.better == "higher" else max
    return Dynamics(
        mean=statistics.fmean(steps) if steps else None,
        std=statistics.stdev(steps) if len(steps) > 1 else None,
        worst=worst(steps) if steps else None,
        drop=largest_drop(values, metric) if values else None,
        peak=best(values) if values else None,
        smoothed=smoothed_at(rounds, values, at),
    )


def first_differences(values: Sequence[float]) -> list[float]:
    """What each value is above the one before it."""
    return [after - before for before, after in pairwise(values)]


def largest_drop(values: Sequence[float], metric: Scale) -> float:
    """The most by which a value is worse than one before it; zero if none is worse."""
    signed = [metric.sign * value for value in values]
    return max(top - value for top, value in zip(accumulate(signed, max), signed, strict=True))


def smoothed_at(
    rounds: Sequence[int], values: Sequence[float], at: int | None = None
) -> float | None:
    """The mean of the last ten values up to round ``at``; None if that round was never reached."""
    if not rounds or (at is not None and not rounds[0] <= at <= rounds[-1]):
        return None
    until = [value for t, value in zip(rounds, values, strict=True) if at is None or t <= at]
    return moving_average(until)[-1]


def run_dynamics(run: Run, metric: Scale, at: int | None = None) -> Dynamics:
    """How a metric moved during a run; nothing of one that has not finished."""
    if run.summary["status"] != "finished":
        return Dynamics()
    name = f"test_{metric.name}"
    scored = [line for line in run.records if line[name] is not None]
    rounds = [line["round"] + 1 for line in scored]
    return series_dynamics(rounds, [line[name] for line in scored], metric, at)


@dataclass(frozen=True)
class GroupDynamics:
    """How a metric moved during the runs of a group."""

    result: GroupResult
    runs: tuple[Dynamics, ...]

    def spread(self, field: str) -> Spread:
        return spread(getattr(each, field) for each in self.runs)


@dataclass(frozen=True)
class TrainingDynamics(Tabulated):
    """How a metric moved during the runs of several groups; a notebook shows it as a table."""

    comparison: Comparison
    at: int | None = None

    @property
    def groups(self) -> list[GroupDynamics]:
        """The groups in the order of the comparison."""
        return [self._of(found) for found in self.comparison.results]

    def table(self) -> Table:
        """What a reader sees, with the best and the second of every column marked."""
        blocks = [Section(title, self._rows(rs)) for title, rs in self.comparison.blocks.items()]
        notes = (*self.comparison.notes, *self._legend())
        return Table(self._columns(), tuple(blocks), notes)

    def rows(self) -> list[dict[str, Any]]:
        """A group each: what a comparison says of it, and the spread over seeds of every number."""
        return [
            {**row, **_numbers(each)}
            for row, each in zip(self.comparison.rows(), self.groups, strict=True)
        ]

    def _of(self, found: GroupResult) -> GroupDynamics:
        metric = self.comparison.metric
        each = (run_dynamics(run, metric, self.at) for run in found.group.runs)
        return GroupDynamics(found, tuple(each))

    @property
    def _worst(self) -> str:
        return "min" if self.comparison.metric.better == "higher" else "max"

    @property
    def _there(self) -> str:
        return "at the end" if self.at is None else f"at round {self.at}"

    def _columns(self) -> tuple[str, ...]:
        metric, target = self.comparison.metric, self.comparison.target
        columns = ["method", "seeds", "mean", "std", self._worst, "drop"]
        columns += [f"peak{metric.unit}", f"{self._there}{metric.unit}"]
        columns += [] if target is None else [f"rounds to {target_text(target, metric)}"]
        return tuple(columns)

    def _rows(self, results: Sequence[GroupResult]) -> tuple[tuple[Entry, ...], ...]:
        groups, metric = [self._of(found) for found in results], self.comparison.metric
        is_higher_better = metric.better == "higher"
        largest_is_best = {
            **dict.fromkeys(("mean", "worst", "peak", "smoothed"), is_higher_better),
            **dict.fromkeys(("std", "drop"), False),
        }
        columns = [[Entry(r.name) for r in results], [Entry(seeds(r)) for r in results]]
        columns += [
            _column(groups, field.name, metric, largest=largest_is_best[field.name])
            for field in fields(Dynamics)
        ]
        if self.comparison.target is not None:
            columns.append(cost_column(results, "rounds_to_target", 1))
        return tuple(zip(*columns, strict=True))

    def _legend(self) -> list[str]:
        metric = self.comparison.metric
        runs = [run for r in self.comparison.results for run in r.group.runs]
        far = sorted({run.config.evaluate_every for run in runs})
        apart = "" if far == [1] else f", every {' or '.join(map(str, far))} rounds"
        points = ", in points" if metric.percent else ""
        fallen = "below" if metric.better == "higher" else "above"
        return [
            f"{metric}: mean (standard deviation) over seeds",
            f"mean, std, {self._worst}: of the first differences, from one evaluation to the "
            f"next{apart}{points}; drop: the furthest {fallen} an earlier evaluation{points}",
            f"peak: the best evaluation; {self._there}: the mean of "
            f"{say_averaged(map(self._num_evaluations, runs))} up to there",
        ]

    def _num_evaluations(self, run: Run) -> int:
        """How many there are, up to the round that is looked at."""
        name, at = f"test_{self.comparison.metric.name}", self.at or run.config.rounds
        return sum(line.get(name) is not None and line["round"] < at for line in run.records)


def dynamics(
    paths: Runs, *, metric: str | None = None, target: float | None = None, at: int | None = None
) -> TrainingDynamics:
    """How a metric moved during runs, or all runs in folders; ``at`` is a round to look at.

    ``metric`` and ``target`` are as in `compare`.
    """
    if at is not None:
        check_range("at", checked("at", at, int), "at least 1")
    comparison = compare(paths, metric=metric, target=target)
    last = max(run.config.rounds for found in comparison.results for run in found.group.runs)
    if at is not None and at > last:
        raise InputError(f"no run has a round {at}: the longest has {last}")
    return TrainingDynamics(comparison, at)


def _column(
    groups: Sequence[GroupDynamics], field: str, metric: Scale, *, largest: bool
) -> list[Entry]:
    """The values of a field; a group with a run that failed has no rank: it lacks the worst."""
    spreads = [each.spread(field) for each in groups]
    entries = [_entry(e, s, field, metric) for e, s in zip(groups, spreads, strict=True)]
    values = [None if e.result.failed else s.mean for e, s in zip(groups, spreads, strict=True)]
    return ranked(entries, values, largest=largest)


def _entry(each: GroupDynamics, found: Spread, field: str, metric: Scale) -> Entry:
    failed = len(each.result.failed)
    if found.mean is None:
        return Entry("failed" if failed else "-")
    rest = "" if found.std is None else f" ({_text(found.std, field, metric)})"
    return Entry(_text(found.mean, field, metric), rest + (f", {failed} failed" if failed else ""))


def _text(value: float, field: str, metric: Scale) -> str:
    """A mean difference is small, and has a digit more."""
    return f"{100 * value:.3f}" if metric.percent and field == "mean" else metric.text(value)


def _numbers(each: GroupDynamics) -> dict[str, float | None]:
    found = {field.name: each.spread(field.name) for field in fields(Dynamics)}
    means = {f"{_name(field)}_mean": s.mean for field, s in found.items()}
    return means | {f"{_name(field)}_std": s.std for field, s in found.items()}


def _name(field: str) -> str:
    return f"difference_{field}" if field in ("mean", "std", "worst") else field
