"""Groups of runs side by side: a table in several formats, curves, and what to know of them."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gcfed.core.metrics import Scale
from gcfed.errors import InputError, unknown
from gcfed.results.groups import Runs, collect, differing, group, tasks
from gcfed.results.notes import run_notes, settings_notes
from gcfed.results.outcomes import GroupResult, Spread, against, result
from gcfed.results.run import Run
from gcfed.results.summary import SMOOTHED, say_chosen_on
from gcfed.results.tables import (
    Entry,
    Section,
    Table,
    comma_separated,
    html,
    latex,
    markdown,
    plain,
    ranked,
)


@dataclass(frozen=True)
class Comparison:
    """Groups of runs side by side; a notebook shows it as a table.

    ``notes`` say what a reader of the numbers has to know: the settings in which groups differ,
    runs that failed, runs that are left out, ...
    """

    results: tuple[GroupResult, ...]
    metric: Scale
    target: float | None
    baseline: str | None
    notes: tuple[str, ...]

    @property
    def blocks(self) -> dict[str, list[GroupResult]]:
        """Results of one task each, which may be compared, by what is particular to it."""
        found = {id(r.group): r for r in self.results}
        blocks = tasks([r.group for r in self.results])
        return {title: [found[id(g)] for g in groups] for title, groups in blocks.items()}

    def table(self) -> Table:
        """What a reader sees, with the best and the second of every column marked."""
        blocks = [Section(title, self._rows(rs)) for title, rs in self.blocks.items()]
        return Table(self._columns(), tuple(blocks), (*self.notes, *self._legend()))

    def render(self, form: str = "text") -> str:
        """As ``text``, ``markdown``, ``latex``, ``csv`` or ``json``."""
        if form not in FORMATS:
            raise unknown("format", form, FORMATS)
        return FORMATS[form](self)

    def rows(self) -> list[dict[str, Any]]:
        """A group each: the settings in which they differ and every number, as fractions."""
        differ = differing([r.group.settings for r in self.results])
        keys = ["algorithm", *(key for key in differ if key != "algorithm")]
        return [
            {"name": r.name, **{key: r.group.settings.get(key) for key in keys}, **self._numbers(r)}
            for r in self.results
        ]

    def to_json(self) -> dict[str, Any]:
        settings = [r.group.settings for r in self.results]
        differ = differing(settings)
        shared = {key: value for key, value in settings[0].items() if key not in differ}
        groups = [
            {**row, "runs": _runs(r)} for row, r in zip(self.rows(), self.results, strict=True)
        ]
        return {
            "metric": self.metric.name,
            "better": self.metric.better,
            "target": self.target,
            "baseline": self.baseline,
            "differ": differ,
            "shared": shared,
            "groups": groups,
            "notes": list(self.notes),
        }

    def plot(self, name: str | None = None, title: str = "") -> Any:
        """A matplotlib figure: a curve for each group, and a band of one standard deviation.

        ``name`` is a number of a round, such as ``train_loss``; if not given, the metric's.
        """
        from gcfed.results.plots import curves  # matplotlib takes a second to import

        labelled = {
            f"{r.name} ({block})" if block else r.name: [run.records for run in _drawn(r)]
            for block, results in self.blocks.items()
            for r in results
        }
        name, metrics = name or f"test_{self.metric.name}", {self.metric.name: self.metric}
        return curves(labelled, name, metrics=metrics, title=title)

    def __str__(self) -> str:
        return self.render()

    def _repr_markdown_(self) -> str:
        return self.render("markdown")

    def _repr_html_(self) -> str:
        return html(self.table())

    def _columns(self) -> tuple[str, ...]:
        columns = ["method", "seeds", f"final{self.metric.unit}", f"best{self.metric.unit}"]
        if self.target is not None:
            target = f"{100 * self.target:g} %" if self.metric.percent else f"{self.target:g}"
            columns += [f"{unit} to {target}" for unit in ("rounds", "MB")]
        if self.baseline is not None:
            columns += [f"minus {self.baseline} [95 % CI]", "p"]
        return tuple(columns)

    def _rows(self, results: Sequence[GroupResult]) -> tuple[tuple[Entry, ...], ...]:
        columns = [
            [Entry(r.name) for r in results],
            [Entry(_seeds(r)) for r in results],
            self._values(results, "final"),
            self._values(results, "best"),
        ]
        if self.target is not None:
            columns.append(_costs(results, "rounds_to_target", 1))
            columns.append(_costs(results, "bytes_to_target", 1e6))
        if self.baseline is not None:
            columns.append([Entry(self._difference(r)) for r in results])
            columns.append([Entry(_p_value(r)) for r in results])
        return tuple(zip(*columns, strict=True))

    def _values(self, results: Sequence[GroupResult], field: str) -> list[Entry]:
        """A column; a group with a run that failed has no rank: its mean leaves out the worst."""
        cells = [self._value(r, r.spread(field)) for r in results]
        values = [None if r.failed else r.spread(field).mean for r in results]
        return ranked(cells, values, largest=self.metric.better == "higher")

    def _value(self, r: GroupResult, found: Spread) -> Entry:
        text = self.metric.text
        if found.mean is None and r.failed:
            chance = r.chance if self.metric.name == "accuracy" else None
            return Entry("failed") if chance is None else Entry(text(chance), " (failed)")
        rest = "" if found.std is None else f" ({text(found.std)})"
        return Entry(text(found.mean), rest + (f", {len(r.failed)} failed" if r.failed else ""))

    def _difference(self, r: GroupResult) -> str:
        if (gap := r.difference) is None:
            return "-"
        mean, low, high = (self.metric.text(v, "+") for v in (gap.mean, gap.low, gap.high))
        if gap.n == 1:
            return f"{mean} (1 pair)"
        few = "" if gap.n == len(r.outcomes) else f" ({gap.n} pairs)"
        return f"{mean} [{low}, {high}]{few}"

    def _legend(self) -> list[str]:
        configs = [run.config for r in self.results for run in r.group.runs]
        lines = [
            f"{self.metric}: mean (standard deviation) over seeds; "
            f"final: of the last {SMOOTHED} evaluations; {say_chosen_on(configs)}"
        ]
        if self.target is not None:
            lines.append(
                f"to the target: until the mean of the last {SMOOTHED} evaluations reaches it; "
                "MB sent up and down, by all clients"
            )
        if self.baseline is not None:
            points = " in points" if self.metric.percent else ""
            lines.append(
                f"difference of final values{points}, paired by seed; p of a two-sided "
                "paired t-test, not adjusted for the number of methods"
            )
        return lines

    def _numbers(self, r: GroupResult) -> dict[str, Any]:
        numbers: dict[str, Any] = {
            "seeds": len(r.outcomes),
            "finished": r.spread("final").n,
            "failed": len(r.failed),
        }
        for field in ("final", "best"):
            numbers |= {f"{field}_mean": r.spread(field).mean, f"{field}_std": r.spread(field).std}
        if self.target is not None:
            numbers["reached"] = r.spread("rounds_to_target").n
            for field in ("rounds_to_target", "bytes_to_target"):
                numbers[field] = r.spread(field).mean
        if self.baseline is not None:
            gap = r.difference
            numbers |= {"baseline": r.baseline, "pairs": gap and gap.n}
            numbers |= {"difference": gap and gap.mean, "ci_low": gap and gap.low}
            numbers |= {"ci_high": gap and gap.high, "p": gap and gap.p}
        return numbers


FORMATS: dict[str, Callable[[Comparison], str]] = {
    "text": lambda found: plain(found.table()),
    "markdown": lambda found: markdown(found.table()),
    "latex": lambda found: latex(found.table()),
    "csv": lambda found: comma_separated(found.rows()),
    "json": lambda found: json.dumps(found.to_json(), indent=2, allow_nan=False) + "\n",
}


def compare(
    paths: Runs,
    *,
    metric: str | None = None,
    target: float | None = None,
    baseline: str | None = None,
) -> Comparison:
    """Compare runs, or all runs in folders: those that differ in their seed alone form a group.

    ``metric`` is one that was measured, if not given what the runs are judged by; ``target`` a
    value of it, such as 0.6 for an accuracy of 60 %; ``baseline`` the algorithm, or the name of the
    group, that every other group of its task is compared with, seed by seed.
    """
    if not isinstance(target, int | float | None):
        raise InputError(f"a target is a number such as 0.6, for 60 %; not {target!r:.200}")
    runs = collect(paths)
    scale = _metric(runs, metric)
    _check_target(target, scale)
    groups, notes = group(runs)
    results = [result(each, scale, target) for each in groups]
    if baseline is not None:
        results, more = against(results, baseline)
        notes += more
    told = (*settings_notes(groups), *notes, *run_notes(results, scale))
    return Comparison(tuple(results), scale, target, baseline, told)


def _metric(runs: Sequence[Run], name: str | None) -> Scale:
    """The metric to compare runs by, which each must have."""
    if name is None:
        own = {run.metric.name: run for run in reversed(runs)}
        if len(own) > 1:
            each = ", ".join(f"{run.path} by {metric}" for metric, run in own.items())
            raise InputError(
                f"these runs are judged by different metrics ({each}): "
                "name the metric to compare them by, such as loss, which all have"
            )
        return runs[0].metric
    for run in runs:
        if name not in run.metrics:
            raise unknown(f"metric of {run.path}", name, run.metrics)
    return runs[0].metrics[name]


def _check_target(target: float | None, metric: Scale) -> None:
    if target is None:
        return
    if metric.percent and not 0 < target <= 1:
        raise InputError(f"a target is a fraction such as 0.6, for 60 %; not {target:g}")
    if not math.isfinite(target):
        raise InputError(f"a target is a value of {metric.name} to reach; not {target:g}")


def _runs(r: GroupResult) -> list[dict[str, Any]]:
    fields = ("seed", "status", "final", "best", "rounds_to_target", "bytes_to_target")
    return [
        {"run": str(o.run.path), **{field: getattr(o, field) for field in fields}}
        for o in r.outcomes
    ]


def _drawn(r: GroupResult) -> list[Run]:
    """The runs that finished; if none did, those that failed."""
    finished = [o.run for o in r.outcomes if o.status == "finished"]
    return finished or [o.run for o in r.failed]


def _seeds(r: GroupResult) -> str:
    finished = r.spread("final").n
    return str(finished) if finished == len(r.outcomes) else f"{finished} of {len(r.outcomes)}"


def _costs(results: Sequence[GroupResult], field: str, unit: float) -> list[Entry]:
    """A column of what it takes; a group has a rank if all its runs reach the target."""
    found = [(r.spread(field), len(r.outcomes)) for r in results]
    cells = [_cost(spread, runs, unit) for spread, runs in found]
    ranks = [spread.mean if spread.n == runs else None for spread, runs in found]
    return ranked(cells, ranks, largest=False)


def _cost(found: Spread, runs: int, unit: float) -> Entry:
    if found.mean is None:
        return Entry("not reached")
    rest = "" if found.std is None else f" ({found.std / unit:.1f})"
    return Entry(
        f"{found.mean / unit:.1f}", rest + (f", {found.n} of {runs}" if found.n < runs else "")
    )


def _p_value(r: GroupResult) -> str:
    p = None if r.difference is None else r.difference.p
    return "-" if p is None else "<0.001" if p < 0.001 else f"{p:.3f}"
