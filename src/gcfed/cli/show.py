"""The command that shows recorded runs."""

from typing import TYPE_CHECKING

from gcfed.cli import console
from gcfed.cli.options import Plugins, RunPaths

if TYPE_CHECKING:
    from gcfed.results.run import Run


def show(
    paths: RunPaths,
    plugin: Plugins = None,
) -> None:
    """Show what came out of a run, or of several.

    RUNS are run directories, or folders of them.
    """
    from gcfed.results.groups import collect
    from gcfed.results.listing import run_table
    from gcfed.results.run import RUN_FILES, Run

    folder = paths[0] if len(paths) == 1 else None
    if folder and all((folder / name).is_file() for name in RUN_FILES):
        _show_run(Run(folder))
    else:
        console.show(run_table(collect(paths), below=folder))


def _show_run(run: "Run") -> None:
    from gcfed.results.facts import facts, last_rounds, round_columns
    from gcfed.results.listing import legend

    console.table(("run", str(run.path)), facts(run), legend([run]))
    console.tell()
    columns = round_columns(run.metrics)
    console.table(columns, last_rounds(run.records, columns))
