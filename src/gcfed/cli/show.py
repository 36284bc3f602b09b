"""The command that shows recorded runs."""

from pathlib import Path
from typing import TYPE_CHECKING

from gcfed.cli import console
from gcfed.cli.options import Plugins, RunPath

if TYPE_CHECKING:
    from gcfed.results.run import Run


def show(
    path: RunPath,
    plugin: Plugins = None,
) -> None:
    """Show what came out of a run, or of several.

    RUN is a run directory, or a folder of them.
    """
    _show(path)


def _show(path: Path) -> None:
    """A run, or every run below a folder."""
    from gcfed.results.finding import find_runs, no_runs
    from gcfed.results.listing import run_table
    from gcfed.results.seal import warn_of_changes

    runs = find_runs(path)
    if not runs:
        raise no_runs(path)
    if runs[0].path == path:
        _show_run(runs[0])
        return
    warn_of_changes(runs)
    console.show(run_table(runs, below=path))


def _show_run(run: "Run") -> None:
    from gcfed.results.facts import facts, last_rounds, round_columns
    from gcfed.results.listing import legend

    console.table(("run", str(run.path)), facts(run), legend([run]))
    console.tell()
    columns = round_columns(run.metrics)
    console.table(columns, last_rounds(run.records, columns))
