"""Groups of runs side by side: a table in several formats, curves, and what to know of them."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gcfed.errors import InputError, unknown
from gcfed.results.groups import INCIDENTAL, Group, Runs, collect, differing, group, tasks
from gcfed.results.outcomes import GroupResult, Spread, against, result
from gcfed.results.run import Run
from gcfed.results.summary import SMOOTHED
from gcfed.results.tables import (
    Entry,
    Section,
    Table,
    comma_separated,
    latex,
    markdown,
    plain,
    ranked,
)
from gcfed.values import shown


@dataclass(frozen=True)
class Comparison:
    """Groups of runs side by side; a notebook shows it as a table.

    ``notes`` say what a reader of the numbers has to know: the settings in which groups differ,
    runs that failed, runs that are left out, ...
    """

    results: tuple[GroupResult, ...]
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
        """What a reader sees: accuracies in percent, the best in bold, the second underlined."""
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
            "target": self.target,
            "baseline": self.baseline,
            "differ": differ,
            "shared": shared,
            "groups": groups,
            "notes": list(self.notes),
        }

    def plot(self, name: str = "test_accuracy", title: str = "") -> Any:
        """A matplotlib figure: a curve for each group, and a band of one standard deviation."""
        from gcfed.results.plots import curves  # matplotlib takes a second to import

        labelled = {
            f"{r.name} ({block})" if block else r.name: [run.records for run in _drawn(r)]
            for block, results in self.blocks.items()
            for r in results
        }
        return curves(labelled, name, title=title)

    def __str__(self) -> str:
        return self.render()

    def _repr_markdown_(self) -> str:
        return self.render("markdown")

    def _columns(self) -> tuple[str, ...]:
        columns = ["method", "seeds", "final (%)", "best (%)"]
        if self.target is not None:
            columns += [f"{unit} to {100 * self.target:g} %" for unit in ("rounds", "MB")]
        if self.baseline is not None:
            columns += [f"minus {self.baseline} [95 % CI]", "p"]
        return tuple(columns)

    def _rows(self, results: Sequence[GroupResult]) -> tuple[tuple[Entry, ...], ...]:
        columns = [
            [Entry(r.name) for r in results],
            [Entry(_seeds(r)) for r in results],
            _accuracies(results, "final"),
            _accuracies(results, "best"),
        ]
        if self.target is not None:
            columns.append(_costs(results, "rounds_to_target", 1))
            columns.append(_costs(results, "bytes_to_target", 1e6))
        if self.baseline is not None:
            columns.append([Entry(_difference(r)) for r in results])
            columns.append([Entry(_p_value(r)) for r in results])
        return tuple(zip(*columns, strict=True))

    def _legend(self) -> list[str]:
        lines = [f"mean (standard deviation) over seeds; final: of the last {SMOOTHED} evaluations"]
        if self.target is not None:
            lines.append(
                f"to the target: until the mean of the last {SMOOTHED} accuracies reaches it; "
                "MB sent up and down, by all clients"
            )
        if self.baseline is not None:
            lines.append(
                "difference of final accuracies in points, paired by seed; p of a two-sided "
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


def compare(paths: Runs, *, target: float | None = None, baseline: str | None = None) -> Comparison:
    """Compare runs, or all runs in folders: those that differ in their seed alone form a group.

    ``target`` is an accuracy, 0.6 for 60 %; ``baseline`` the algorithm, or the name of the group,
    that every other group of its task is compared with, seed by seed.
    """
    if target is not None and not (isinstance(target, int | float) and 0 < target <= 1):
        raise InputError(f"a target is a fraction such as 0.6, for 60 %; not {shown(target)}")
    groups, notes = group(collect(paths))
    results = [result(each, target) for each in groups]
    if baseline is not None:
        results, more = against(results, baseline)
        notes += more
    told = (*_settings_notes(groups), *notes, *_run_notes(results))
    return Comparison(tuple(results), target, baseline, told)


def _settings_notes(groups: Sequence[Group]) -> list[str]:
    """In what the groups differ, besides their algorithms."""
    differ = differing([g.settings for g in groups])
    notes = []
    if len(groups) > 1:
        words = ["algorithm"] if "algorithm" in differ else []
        others = {key: values for key, values in differ.items() if key != "algorithm"}
        words += [f"{key} ({', '.join(map(str, values))})" for key, values in others.items()]
        notes.append(f"the groups differ in: {'; '.join(words)}")
    if len({g.seeds for g in groups}) > 1:
        each = "; ".join(f"{g.name}: {', '.join(map(str, g.seeds))}" for g in groups)
        notes.append(f"the groups have different seeds: {each}")
    for key in INCIDENTAL:
        values = {str(getattr(run.config, key)) for g in groups for run in g.runs}
        if len(values) > 1:
            notes.append(f"the runs differ in {key}: {', '.join(sorted(values))}")
    return notes


def _run_notes(results: Sequence[GroupResult]) -> list[str]:
    """What became of runs that did not finish."""
    unfinished = [(r, o) for r in results for o in r.outcomes if o.status != "finished"]
    return [f"{r.name}, seed {o.seed}: {_status(o.run)}" for r, o in unfinished]


def _status(run: Run) -> str:
    summary, done = run.summary, f"{len(run.records)} of {run.config.rounds} rounds"
    if summary["status"] == "failed":
        return f"failed after {done}: {summary.get('reason', 'no reason given')}"
    return f"{summary['status']} after {done}, and left out"


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


def _accuracies(results: Sequence[GroupResult], field: str) -> list[Entry]:
    """A column; a group with a run that failed has no rank: its mean leaves out the worst."""
    cells = [_accuracy(r, r.spread(field)) for r in results]
    return ranked(cells, [None if r.failed else r.spread(field).mean for r in results])


def _accuracy(r: GroupResult, found: Spread) -> Entry:
    if found.mean is None:
        if not r.failed:
            return Entry("-")
        return Entry("failed") if r.chance is None else Entry(f"{100 * r.chance:.2f}", " (failed)")
    rest = "" if found.std is None else f" ({100 * found.std:.2f})"
    return Entry(
        f"{100 * found.mean:.2f}", rest + (f", {len(r.failed)} failed" if r.failed else "")
    )


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


def _difference(r: GroupResult) -> str:
    if (gap := r.difference) is None:
        return "-"
    if gap.low is None or gap.high is None:
        return f"{100 * gap.mean:+.2f} (1 pair)"
    few = "" if gap.n == len(r.outcomes) else f" ({gap.n} pairs)"
    return f"{100 * gap.mean:+.2f} [{100 * gap.low:+.2f}, {100 * gap.high:+.2f}]{few}"


def _p_value(r: GroupResult) -> str:
    p = None if r.difference is None else r.difference.p
    return "-" if p is None else "<0.001" if p < 0.001 else f"{p:.3f}"
