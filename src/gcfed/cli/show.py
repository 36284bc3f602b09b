"""The command that shows recorded runs."""

import statistics
from pathlib import Path
from typing import Annotated

import typer

from gcfed.cli import console
from gcfed.cli.options import Plugins
from gcfed.cli.training import status_of
from gcfed.errors import InputError
from gcfed.results.listing import run_table
from gcfed.results.run import Run, find_runs
from gcfed.results.summary import FINAL, say_chosen_on


def show(
    path: Annotated[Path, typer.Argument(metavar="RUN", hidden=True)],
    plugin: Plugins = None,
) -> None:
    """Show what came out of a run, or of several.

    RUN is a run directory, or a folder of them.
    """
    _show(path)


def _show(path: Path) -> None:
    """A run, or every run below a folder."""
    runs = find_runs(path)
    if not runs:
        raise InputError(f"{path} is neither a run nor a folder of runs")
    if runs[0].path == path:
        _show_run(runs[0])
        return
    console.show(run_table(runs, below=path))


def _show_run(run: Run) -> None:
    config, summary, made, metric = run.config, run.summary, run.provenance, run.metric
    test = f"test_{metric.name}"
    rows = [
        ("algorithm", config.algorithm),
        ("data", config.dataset),
        ("partition", config.partition),
        ("clients", f"{config.cohort} of {config.clients} a round"),
        ("model", config.model),
        ("seed", str(config.seed)),
        ("status", status_of(summary)),
        ("rounds", f"{len(run.records)} of {config.rounds}"),
        (f"final {metric.name}", metric.quantity(summary.get(test))),
        (f"best {metric.name}", metric.quantity(summary.get(f"{test}_best"))),
        ("engine", f"{made['engine']} on {made['device']} ({made['engine_reason']})"),
        ("precision", run.config.precision),
        ("made with", f"gcfed {made['gcfed']} ({made['commit']}), torch {made['torch']}"),
        ("seconds a round", _pace(run)),
    ]
    console.table(("run", str(run.path)), rows)
    console.tell(f"{FINAL}; {say_chosen_on([config])}")
    console.tell()
    measured = (f"test_{name}" for name in run.metrics)
    columns = ("round", *measured, "train_loss", "update_norm")
    console.table(columns, [[_short(line[c]) for c in columns] for line in run.records[-5:]])


def _pace(run: Run) -> str:
    seconds = [timing["seconds"] for timing in run.timings]
    return f"{statistics.median(seconds):.3g} (median)" if seconds else "-"


def _short(value: float | int | None) -> str:
    return "-" if value is None else str(value) if isinstance(value, int) else f"{value:.4f}"
