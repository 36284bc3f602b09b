"""Options that several commands have."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from gcfed.config.plugins import load_plugins
from gcfed.errors import InputError
from gcfed.results.run import Run, find_runs


def _load(paths: list[Path] | None) -> list[Path]:
    load_plugins(paths or [])
    return paths or []


Plugins = Annotated[
    list[Path] | None,
    typer.Option(
        "--plugin",
        metavar="FILE.py",
        is_eager=True,
        callback=_load,
        help="A Python file that registers algorithms, models, data sets ...; may be repeated.",
    ),
]
StoreOption = Annotated[
    Path, typer.Option(help="Where runs are kept and found again; runs.", show_default=False)
]
DataDir = Annotated[
    Path | None,
    typer.Option(help="The folder of data; GCFED_DATA, or a cache of yours."),
]
RunPath = Annotated[Path, typer.Argument(metavar="RUN", hidden=True)]
Force = Annotated[bool, typer.Option("--force", help="Replace the file of --out.")]


def check_positive(option: str, number: int | None) -> None:
    if number is not None and number < 1:
        raise InputError(f"{option} is at least 1; not {number}")


def trained_together(path: Path) -> list[list[Run]]:
    """The runs at a path, each with those that are trained together with it."""
    runs = find_runs(path)
    if not runs:
        raise InputError(f"{path} is neither a run nor a folder of runs")
    return sets_of(runs)


def sets_of(runs: Sequence[Run]) -> list[list[Run]]:
    """Each of these runs with those that are trained together with it, every set once."""
    sets: dict[Path, list[Run]] = {}
    for run in runs:
        together = run.together()
        sets.setdefault(together[0].path.resolve(), together)
    return list(sets.values())
