"""Commands about recorded runs: going on with them, doing them again."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from gcfed.cli import console, results
from gcfed.cli.options import Plugins
from gcfed.errors import InputError
from gcfed.experiments.recorded import Run, find_runs
from gcfed.experiments.verifying import Verification, verify_together

DIFFERS, DIVERGED, INTERRUPTED = 1, 3, 130

RunPath = Annotated[Path, typer.Argument(metavar="RUN", hidden=True)]


def resume(
    path: RunPath,
    rounds: Annotated[
        int | None, typer.Option(help="How many it shall have; if not given, as it was asked for.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the summaries alone, as JSON.")
    ] = False,
    plugin: Plugins = None,
) -> None:
    """Go on with a run that was stopped or killed, to the same bits.

    RUN is a run directory, or a folder of them.  Runs that were trained together go on together.
    The engine, the device and the precision are those that it began with.
    """
    groups = []
    for runs in _sets(path):
        groups.append(results.resume(runs, rounds, quiet=as_json))
        if groups[-1].stopped:
            break
    summaries = [summary for group in groups for summary in group.summaries]
    if as_json:
        print(json.dumps(summaries[0] if len(summaries) == 1 else summaries, indent=2))
    else:
        for group in groups:
            results.print_runs(group)
    sys.exit(exit_code(summaries))


def verify(
    path: RunPath,
    rounds: Annotated[int | None, typer.Option(help="Only its first rounds.")] = None,
    plugin: Plugins = None,
) -> None:
    """Do a run again and compare the weights after every round, bit by bit.

    RUN is a run directory, or a folder of them.  The engine, the device, the precision and the runs
    trained together are those that it was done with.  The exit code is 1 if a round differs.
    """
    found: list[Verification] = []
    for runs in _sets(path):
        total = min(max(len(run.records) for run in runs), rounds or sys.maxsize)
        with console.progress("verify", total) as tick:
            found += verify_together(runs, rounds, lambda done, tick=tick: tick(done, ""))  # type: ignore[misc]
    for one in found:
        console.tell(_verdict(one))
    sys.exit(0 if all(one.holds for one in found) else DIFFERS)


def exit_code(summaries: Sequence[dict[str, Any]]) -> int:
    """What a command ends with that did these runs."""
    statuses = {summary["status"] for summary in summaries}
    return DIVERGED if "failed" in statuses else INTERRUPTED if "stopped" in statuses else 0


def _verdict(found: Verification) -> str:
    if found.differs is None:
        return f"{found.path}: {found.rounds} rounds again, every one to the same bits"
    return f"{found.path}: round {found.differs} comes out with other weights than were recorded"


def _sets(path: Path) -> list[list[Run]]:
    """The runs at a path, each with those that are trained together with it."""
    sets: dict[Path, list[Run]] = {}
    for run in find_runs(path):
        runs = run.together()
        sets.setdefault(runs[0].path.resolve(), runs)
    if not sets:
        raise InputError(f"{path} is neither a run nor a folder of runs")
    return list(sets.values())
