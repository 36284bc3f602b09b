"""The command that goes on with runs."""

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from gcfed.cli.exits import exit_code
from gcfed.cli.options import Plugins, RunPaths, trained_together

if TYPE_CHECKING:
    from gcfed.results.run import Run


def resume(
    paths: RunPaths,
    rounds: Annotated[
        int | None,
        typer.Option(help="How many it shall have.", show_default="as many as it was asked for"),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the summaries alone, as JSON.")
    ] = False,
    plugin: Plugins = None,
) -> None:
    """Go on with runs that were stopped or killed, to the same bits.

    RUNS are run directories, or folders of them.  Runs that were trained together go on together.
    The engine, the device and the precision are those that a run began with.

    Examples:

        gcfed resume runs --rounds 200
        gcfed resume runs/gcfed-* runs/fedavg-*
    """
    from gcfed.cli import training
    from gcfed.runs.resume import check_rounds, mend_summaries

    check_rounds(rounds)
    for path in paths:
        mend_summaries(path)
    done: list[list[Run]] = []
    for runs in trained_together(paths):
        done.append(training.resume(runs, rounds, quiet=as_json))
        if training.is_stopped(done[-1]):
            break
    every = [run for runs in done for run in runs]
    if as_json:
        summaries = [run.summary for run in every]
        print(json.dumps(summaries[0] if len(summaries) == 1 else summaries, indent=2))
    else:
        for runs in done:
            training.print_runs(runs)
    sys.exit(exit_code(every))
