"""The command that does runs again and compares."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from gcfed.cli import console
from gcfed.cli.exits import DIFFERS
from gcfed.cli.options import Plugins, RunPath, sets_of
from gcfed.errors import InputError
from gcfed.progress import progress

if TYPE_CHECKING:
    from gcfed.results.run import Run
    from gcfed.runs.verify import Verification


def verify(
    path: RunPath,
    rounds: Annotated[int | None, typer.Option(help="Only its first rounds.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Only compare its files with their hashes.")
    ] = False,
    plugin: Plugins = None,
) -> None:
    """Do a run again and compare all that it recorded, bit by bit.

    RUN is a run directory, or a folder of them.  The engine, the device, the precision and the runs
    trained together are those that it was done with.  The exit code is 1 if anything differs.
    """
    from gcfed.results.run import sort_runs
    from gcfed.runs.verify import verify_seal

    if quick and rounds is not None:
        raise InputError("--quick does no rounds again: leave out --rounds")
    runs, damaged = sort_runs(path)
    if not runs and not damaged:
        raise InputError(f"{path} is neither a run nor a folder of runs")
    found = [verify_seal(run) for run in runs] if quick else _again(runs, rounds)
    for one in found:
        console.tell(f"{one.path}: {_verdict(one, quick)}")
    for where, reason in damaged.items():
        console.tell(f"{where}: cannot be verified: {reason}")
    sys.exit(0 if all(one.holds for one in found) and not damaged else DIFFERS)


def _again(runs: Sequence["Run"], rounds: int | None) -> list["Verification"]:
    """Do runs again, showing how far they are."""
    from gcfed.runs.verify import verify_together

    found: list[Verification] = []
    for together in sets_of(runs):
        total = min(max(len(run.records) for run in together), rounds or sys.maxsize)
        with progress("verify", total) as tick:
            found += verify_together(together, rounds, lambda done, tick=tick: tick(done, ""))  # type: ignore[misc]
    return found


def _verdict(found: "Verification", quick: bool) -> str:
    if not found.holds:
        return "; ".join(found.reasons)
    if quick:
        return "the files are those that the run ended with" if found.sealed else "not sealed"
    same = f"{found.rounds} rounds again, every one to the same bits"
    return same if found.sealed else f"{same}; not sealed"
