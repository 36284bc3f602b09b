"""The command that does runs again and compares."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gcfed.cli import console
from gcfed.cli.exits import DIFFERS
from gcfed.cli.options import Plugins, RunPaths
from gcfed.errors import InputError
from gcfed.progress import progress

if TYPE_CHECKING:
    from gcfed.results.run import Run
    from gcfed.runs.verify import Verification


def verify(
    paths: RunPaths,
    rounds: Annotated[int | None, typer.Option(help="Only its first rounds.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Only compare its files with their hashes.")
    ] = False,
    plugin: Plugins = None,
) -> None:
    """Do runs again and compare all that they recorded, bit by bit.

    RUNS are run directories, or folders of them.  The engine, the device, the precision and the
    runs trained together are those that a run was done with.  The exit code is 1 if anything
    differs, or if a run cannot be done again; the others are done all the same.
    """
    from gcfed.runs.resume import check_rounds
    from gcfed.runs.verify import verify_seal

    check_rounds(rounds)
    if quick and rounds is not None:
        raise InputError("--quick does no rounds again: leave out --rounds")
    runs, damaged = _sorted(paths)
    found = [verify_seal(run) for run in runs] if quick else _again(runs, rounds)
    for one in found:
        console.tell(f"{one.path}: {_verdict(one, quick)}")
    for where, reason in damaged.items():
        console.tell(f"{where}: cannot be verified: {reason}")
    sys.exit(0 if all(one.holds for one in found) and not damaged else DIFFERS)


def _sorted(paths: Sequence[Path]) -> tuple[list["Run"], dict[Path, str]]:
    """The runs at some paths, each once, and why others cannot be read."""
    from gcfed.results.finding import damage, no_runs, sort_runs

    runs: dict[Path, Run] = {}
    damaged: dict[Path, str] = {}
    for path in paths:
        here, others = sort_runs(path)
        if not here and not others:
            raise no_runs(path)
        for run in here:
            if run.path == path and (reason := damage(run)):
                damaged[path] = reason
            else:
                runs.setdefault(run.path.resolve(), run)
        damaged |= others
    return list(runs.values()), damaged


def _again(runs: Sequence["Run"], rounds: int | None) -> list["Verification"]:
    """Do runs again, each with those that were trained together with it."""
    found: dict[Path, Verification] = {}
    for run in runs:
        if run.path.resolve() not in found:
            found |= {one.path.resolve(): one for one in _together(run, rounds)}
    return list(found.values())


def _together(run: "Run", rounds: int | None) -> list["Verification"]:
    """Do a run and its companions again, showing how far they are; an error is a verdict too."""
    from gcfed.runs.verify import not_verified, verify_together

    try:
        runs = run.together()
        total = min(max(len(each.records) for each in runs), rounds or sys.maxsize)
        with progress("verify", total) as tick:
            return verify_together(runs, rounds, lambda done: tick(done, ""))
    except InputError as error:
        return [not_verified(run, error)]


def _verdict(found: "Verification", quick: bool) -> str:
    if not found.holds:
        return "; ".join(found.reasons)
    held = ["the files are those that the run ended with"] if found.sealed else []
    if not quick:
        held = [f"{found.rounds} rounds again, every one to the same bits"]
    lacks = [f"{name} is not sealed" for name in found.unsealed]
    return "; ".join([*held, *lacks, *([] if found.sealed else ["not sealed"])])
