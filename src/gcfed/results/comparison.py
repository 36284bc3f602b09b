"""Groups of runs side by side: a table in several formats, curves, and what to know of them."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gcfed.core.metrics import Scale
from gcfed.errors import InputError, unknown
from gcfed.results.bands import Panels
from gcfed.results.entries import (
    cost_column,
    difference,
    numbers,
    p_value,
    pivot_column,
    seeds,
    target_text,
    value_column,
)
from gcfed.results.frame import with_probes
from gcfed.results.groups import Runs, collect, differing, group, tasks
from gcfed.results.legends import legend, pivot_legend
from gcfed.results.notes import dropped_notes, run_notes, settings_notes
from gcfed.results.outcomes import GroupResult, against, result
from gcfed.results.run import Run
from gcfed.results.styles import FigureSize
from gcfed.results.tables import (
    Entry,
    Section,
    Table,
    comma_separated,
    html,
    latex,
    markdown,
    plain,
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
        return Table(self._columns(), tuple(blocks), (*self.notes, *legend(self)))

    def pivot(self) -> Table:
        """Methods by tasks, as papers print them: the final values of each, ranked by column."""
        labels, blocks = self.labels, self.blocks
        methods = list(dict.fromkeys(labels.values()))
        columns = []
        for results in blocks.values():
            entries = pivot_column(results, self.metric)
            found = {labels[r.name]: e for r, e in zip(results, entries, strict=True)}
            columns.append([found.get(method, Entry("-")) for method in methods])
        rows = tuple(zip(map(Entry, methods), *columns, strict=True))
        titles = (title or f"final{self.metric.unit}" for title in blocks)
        return Table(("method", *titles), (Section("", rows),), (*self.notes, *pivot_legend(self)))

    def pivot_rows(self) -> list[dict[str, Any]]:
        """A method each: mean, deviation, and how many of how many seeds finished, by task."""
        labels = self.labels
        rows: dict[str, dict[str, Any]] = {name: {"method": name} for name in labels.values()}
        for title, results in self.blocks.items():
            found = {labels[r.name]: r for r in results}
            for name, row in rows.items():
                r = found.get(name)
                spread = r and r.spread("final")
                row[f"{title or 'final'}: mean"] = spread and spread.mean
                row[f"{title or 'final'}: std"] = spread and spread.std
                row[f"{title or 'final'}: finished"] = spread and spread.n
                row[f"{title or 'final'}: seeds"] = r and len(r.outcomes)
        return list(rows.values())

    def render(self, form: str = "text", *, pivot: bool = False) -> str:
        """As ``text``, ``markdown``, ``latex``, ``csv`` or ``json``; a pivot not as JSON."""
        forms = PIVOT_FORMATS if pivot else FORMATS
        if form not in forms:
            raise unknown("format of a pivot" if pivot else "format", form, forms)
        return forms[form](self)

    def rows(self) -> list[dict[str, Any]]:
        """A group each: the settings in which they differ and every number, as fractions."""
        differ = differing([r.group.settings for r in self.results])
        keys = ["algorithm", *(key for key in differ if key != "algorithm")]
        return [
            {
                "name": r.name,
                **{key: r.group.settings.get(key) for key in keys},
                **numbers(r, self.target is not None, self.baseline is not None),
            }
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

    def plot(
        self, name: str | None = None, title: str = "", *, size: FigureSize = "two columns"
    ) -> Any:
        """A matplotlib figure: a panel for each task, and in it a curve for each method.

        Curves are of the runs that finished; where some failed, the title of the panel counts them.
        ``name`` is a number of a round, such as ``train_loss`` or ``drift.head_norm``; if not
        given, the metric's.  One that probes measure layer by layer, such as ``cka.new``, has a
        panel for each layer.
        ``size`` is the width that the figure has in a paper.
        """
        from gcfed.results.plots import draw  # matplotlib takes a second to import

        name, metrics = name or f"test_{self.metric.name}", {self.metric.name: self.metric}
        return draw(self.panels(), name, metrics=metrics, title=title, size=size)

    def panels(self, *, unfinished: bool = False) -> Panels:
        """What figures show: the rounds of the runs of every method, by task.

        They are of the runs that finished.  Of a group in which none did, they are of those that
        failed, or with ``unfinished`` of all.
        """
        labels = self.labels
        return {
            self._panel_title(task, results): {
                labels[r.name]: [
                    with_probes(run.records, run.probes) for run in _drawn(r, unfinished)
                ]
                for r in results
            }
            for task, results in self.blocks.items()
        }

    def __str__(self) -> str:
        return self.render()

    def _repr_markdown_(self) -> str:
        return self.render("markdown")

    def _repr_html_(self) -> str:
        return html(self.table())

    @property
    def labels(self) -> dict[str, str]:
        """Methods over several tasks, by the names of groups.

        Where an algorithm has one group in each task, as when its learning rate was tuned for each,
        the groups are one method, and the algorithm names it.
        """
        by_task = [[r.group.algorithm for r in results] for results in self.blocks.values()]
        is_one = len(by_task) > 1 and all(len(set(each)) == len(each) for each in by_task)
        return {r.name: r.group.algorithm if is_one else r.name for r in self.results}

    def _panel_title(self, task: str, results: Sequence[GroupResult]) -> str:
        """A task, and of which methods in it not all runs are drawn."""
        failed = [f"{self.labels[r.name]}: {seeds(r)} runs" for r in results if r.failed]
        return "; ".join(filter(None, [task, *failed]))

    def _columns(self) -> tuple[str, ...]:
        columns = ["method", "seeds", f"final{self.metric.unit}", f"best{self.metric.unit}"]
        if self.target is not None:
            target = target_text(self.target, self.metric)
            columns += [f"{unit} to {target}" for unit in ("rounds", "MB")]
        if self.baseline is not None:
            columns += [f"minus {self.baseline} [95 % CI]", "p"]
        return tuple(columns)

    def _rows(self, results: Sequence[GroupResult]) -> tuple[tuple[Entry, ...], ...]:
        columns = [
            [Entry(r.name) for r in results],
            [Entry(seeds(r)) for r in results],
            value_column(results, self.metric, "final"),
            value_column(results, self.metric, "best"),
        ]
        if self.target is not None:
            columns.append(cost_column(results, "rounds_to_target", 1))
            columns.append(cost_column(results, "bytes_to_target", 1e6))
        if self.baseline is not None:
            columns.append([Entry(difference(r, self.metric)) for r in results])
            columns.append([Entry(p_value(r)) for r in results])
        return tuple(zip(*columns, strict=True))


PIVOT_FORMATS: dict[str, Callable[[Comparison], str]] = {
    "text": lambda found: plain(found.pivot()),
    "markdown": lambda found: markdown(found.pivot()),
    "latex": lambda found: latex(found.pivot()),
    "csv": lambda found: comma_separated(found.pivot_rows()),
}

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
    told = (*settings_notes(groups), *notes, *run_notes(results, scale), *dropped_notes(results))
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


def _drawn(r: GroupResult, unfinished: bool) -> list[Run]:
    """The runs that finished; if none did, those that failed, or all."""
    finished = [o.run for o in r.outcomes if o.status == "finished"]
    return finished or [o.run for o in (r.outcomes if unfinished else r.failed)]
