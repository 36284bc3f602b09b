"""All that a report says of runs, gathered from their directories."""

import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gcfed.display import counted
from gcfed.report.charts import (
    Json,
    RoundLists,
    chart,
    deciles_chart,
    looks,
    most_points,
    probe_measures,
    round_measures,
)
from gcfed.report.fact_tables import (
    clients_table,
    differences_table,
    environment_table,
    kept_tables,
    settings_table,
    spent_table,
)
from gcfed.report.holdings import holdings, skew_table
from gcfed.results.bands import Panels
from gcfed.results.comparison import Comparison, compare
from gcfed.results.groups import Runs
from gcfed.results.listing import run_table
from gcfed.results.run import Run
from gcfed.results.tables import Table


@dataclass(frozen=True)
class Contents:
    """What a report says: its tables, some of them by task, and the values of its charts."""

    summary: str
    warnings: tuple[str, ...]
    results: Table
    differences: Table
    settings: Table
    clients: Mapping[str, Table]
    skew: Table
    spent: Table
    kept: Mapping[str, Table]
    kept_notes: tuple[str, ...]
    runs: Table
    environment: Table
    charts: Mapping[str, Any]


@dataclass(frozen=True)
class WarnedComparison:
    """A comparison of runs, and what was warned of while they were read."""

    comparison: Comparison
    warnings: tuple[str, ...]


def compare_warned(paths: Runs, **options: Any) -> WarnedComparison:
    """As `compare`; what is warned of is kept too, so that a page can say it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = compare(paths, **options)
    for each in caught:
        warnings.warn(each.message, stacklevel=2)
    return WarnedComparison(found, tuple(str(each.message) for each in caught))


def gather(compared: WarnedComparison) -> Contents:
    """All that a report says of the runs of a comparison."""
    found = compared.comparison
    runs = [run for r in found.results for run in r.group.runs]
    panels = found.panels(unfinished=True)
    clients = {title: clients_table(groups) for title, groups in panels.items()}
    kept, kept_notes = kept_tables(found)
    return Contents(
        summary=_summary(found, runs),
        warnings=compared.warnings,
        results=found.table(),
        differences=differences_table(found),
        settings=settings_table(runs),
        clients={title: table for title, table in clients.items() if table is not None},
        skew=skew_table(_firsts(found)),
        spent=spent_table(found),
        kept=kept,
        kept_notes=tuple(kept_notes),
        runs=run_table(runs),
        environment=environment_table(runs),
        charts=_charts(found, panels, runs),
    )


def _summary(found: Comparison, runs: Sequence[Run]) -> str:
    """How many runs, methods and tasks there are, and how the runs ended."""
    statuses = Counter(run.status for run in runs)
    number = [
        counted(len(runs), "run"),
        counted(len(set(found.labels.values())), "method"),
        counted(len(found.blocks), "task"),
    ]
    ends = ", ".join(f"{count:,} {status}" for status, count in statuses.items())
    return f"{', '.join(number)}: {ends}"


def _firsts(found: Comparison) -> dict[str, Run]:
    """The first run of each task, by title."""
    return {
        title or "all runs": results[0].group.runs[0] for title, results in found.blocks.items()
    }


def _charts(found: Comparison, panels: Panels, runs: Sequence[Run]) -> Json:
    """The values of all charts: a set of charts for each task."""
    others = {name: scale for run in runs for name, scale in run.metrics.items()}
    metrics = {found.metric.name: found.metric, **others}
    of_rounds, of_probes = round_measures(panels, metrics), probe_measures(panels)
    points = most_points(panels, len(of_rounds) + len(of_probes))
    rounds: RoundLists = {}
    held = holdings(list(_firsts(found).values()))
    tasks = [
        {
            "title": title,
            "methods": list(groups),
            "rounds": _drawn(chart(groups, each, points, rounds) for each in of_rounds),
            "probes": _drawn(chart(groups, each, points, rounds) for each in of_probes),
            "clients": deciles_chart(groups, rounds),
            "holdings": holding,
        }
        for (title, groups), holding in zip(panels.items(), held, strict=True)
    ]
    return {"looks": looks(panels), "rounds": [list(each) for each in rounds], "tasks": tasks}


def _drawn(charts: Iterable[Json | None]) -> list[Json]:
    return [each for each in charts if each is not None]
