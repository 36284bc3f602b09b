"""The command that does runs again and compares."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from gcfed.cli import console
from gcfed.cli.exits import DIFFERS
from gcfed.cli.options import Plugins, RunPath, trained_together
from gcfed.progress import progress

if TYPE_CHECKING:
    from gcfed.runs.verify import Verification


def verify(
    path: RunPath,
    rounds: Annotated[int | None, typer.Option(help="Only its first rounds.")] = None,
    plugin: Plugins = None,
) -> None:
    """Do a run again and compare every round, bit by bit.

    RUN is a run directory, or a folder of them.  The engine, the device, the precision and the runs
    trained together are those that it was done with.  The exit code is 1 if a round differs.
    """
    from gcfed.runs.verify import verify_together

    found: list[Verification] = []
    for runs in trained_together(path):
        total = min(max(len(run.records) for run in runs), rounds or sys.maxsize)
        with progress("verify", total) as tick:
            found += verify_together(runs, rounds, lambda done, tick=tick: tick(done, ""))  # type: ignore[misc]
    for one in found:
        console.tell(_verdict(one))
    sys.exit(0 if all(one.holds for one in found) else DIFFERS)


def _verdict(found: "Verification") -> str:
    if found.differs is None:
        return f"{found.path}: {found.rounds} rounds again, every one to the same bits"
    return f"{found.path}: round {found.differs} comes out otherwise than it was recorded"
