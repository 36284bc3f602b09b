"""The command that shows recorded runs."""

from pathlib import Path
from typing import Annotated

import typer

from gcfed.cli import console
from gcfed.cli.options import Plugins
from gcfed.errors import InputError
from gcfed.results.facts import FINAL, ROUND_COLUMNS, facts, last_rounds, percent
from gcfed.results.run import Run, find_runs


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
    rows = [
        (
            str(run.path.relative_to(path)),
            run.config.algorithm,
            str(run.config.seed),
            run.summary["status"],
            f"{len(run.records)} of {run.config.rounds}",
            percent(run.summary.get("test_accuracy")),
        )
        for run in runs
    ]
    console.table(("run", "algorithm", "seed", "status", "rounds", "final (%)"), rows)
    console.tell(FINAL)


def _show_run(run: Run) -> None:
    console.table(("run", str(run.path)), facts(run))
    console.tell()
    console.table(ROUND_COLUMNS, last_rounds(run.records))
