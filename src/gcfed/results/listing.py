"""A table of runs, a row each."""

from collections.abc import Sequence
from pathlib import Path

from gcfed.results.captions import short
from gcfed.results.run import Run
from gcfed.results.summary import FINAL, say_chosen_on
from gcfed.results.tables import Entry, Section, Table

COLUMNS = ("algorithm", "seed", "status", "rounds", "metric", "final", "best", "run")


def run_table(runs: Sequence[Run], below: Path | None = None) -> Table:
    """Runs, each by the metric that it is judged by; with ``below``, their paths from there."""
    rows = tuple(tuple(map(Entry, _row(run, below))) for run in runs)
    notes = (f"{FINAL}; {say_chosen_on(run.config for run in runs)}",)
    return Table(COLUMNS, (Section("", rows),), notes)


def _row(run: Run, below: Path | None) -> tuple[str, ...]:
    summary, metric = run.summary, run.metric
    return (
        short(run.config.algorithm),
        str(run.config.seed),
        str(summary["status"]),
        f"{len(run.records)} of {run.config.rounds}",
        metric.name,
        metric.quantity(summary.get(f"test_{metric.name}")),
        metric.quantity(summary.get(f"test_{metric.name}_best")),
        str(run.path if below is None else run.path.relative_to(below)),
    )
