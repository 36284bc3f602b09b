"""A table of runs, a row each."""

from collections.abc import Sequence
from pathlib import Path

from gcfed.results.captions import partition_caption, short
from gcfed.results.groups import apart, settings_of
from gcfed.results.run import Run
from gcfed.results.summary import say_averaged, say_chosen_on
from gcfed.results.tables import Entry, Section, Table

SHOWN = {"algorithm", "rounds"}
"""Settings that have a column in any case."""


def run_table(runs: Sequence[Run], below: Path | None = None) -> Table:
    """Runs, each by the metric that it is judged by, and the settings in which they differ.

    With ``below``, their paths are from there.
    """
    keys = [key for key in apart([settings_of(run) for run in runs]) if key not in SHOWN]
    columns = ("algorithm", *keys, "seed", "status", "rounds", "metric", "final", "best", "run")
    rows = tuple(tuple(map(Entry, _row(run, keys, below))) for run in runs)
    return Table(columns, (Section("", rows),), (legend(runs),))


def legend(runs: Sequence[Run]) -> str:
    """What the final and the best values of runs are."""
    averaged = say_averaged(run.num_evaluations() for run in runs)
    return f"final: the mean of {averaged}; {say_chosen_on(run.config for run in runs)}"


def _row(run: Run, keys: Sequence[str], below: Path | None) -> tuple[str, ...]:
    summary, metric, settings = run.summary, run.metric, settings_of(run)
    return (
        short(run.config.algorithm),
        *(_value(key, settings.get(key)) for key in keys),
        str(run.config.seed),
        run.status,
        f"{len(run.records)} of {run.config.rounds}",
        metric.name,
        metric.quantity(summary.get(f"test_{metric.name}")),
        metric.quantity(summary.get(f"test_{metric.name}_best")),
        str(run.path if below is None else run.path.relative_to(below)),
    )


def _value(key: str, value: object) -> str:
    if value is None:
        return "-"
    return partition_caption(str(value)) if key == "partition" else str(value)
