"""Options that several commands have."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gcfed.cli.completion import names_of
from gcfed.config.plugins import load_plugins
from gcfed.errors import InputError

if TYPE_CHECKING:
    from gcfed.results.run import Run

WHERE, PICTURE = "Where things are", "The picture"


def _load(paths: list[Path] | None) -> list[Path]:
    load_plugins(paths or [])
    return paths or []


def _path(text: str) -> Path:
    """A path that was really given: the empty text of an unset variable is not this folder."""
    if not text.strip():
        raise InputError("a path is empty: name a run directory or a folder of them, such as runs")
    return Path(text)


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
    Path,
    typer.Option(help="Where runs are kept and found again.", rich_help_panel=WHERE),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        help="The folder of data.",
        show_default="GCFED_DATA, or a cache of yours",
        rich_help_panel=WHERE,
    ),
]
RunPath = Annotated[Path, typer.Argument(metavar="RUN", hidden=True, parser=_path)]
RunPaths = Annotated[list[Path], typer.Argument(metavar="RUNS...", hidden=True, parser=_path)]
Force = Annotated[
    bool, typer.Option("--force", help="Replace the file of --out.", rich_help_panel=PICTURE)
]
DatasetName = Annotated[
    str, typer.Argument(metavar="NAME", hidden=True, autocompletion=names_of("datasets"))
]
DatasetNames = Annotated[
    list[str], typer.Argument(metavar="NAME...", hidden=True, autocompletion=names_of("datasets"))
]


def check_positive(option: str, number: int | None) -> None:
    if number is not None and number < 1:
        raise InputError(f"{option} is at least 1; not {number}")


def trained_together(path: Path) -> list[list["Run"]]:
    """The runs at a path, each with those that are trained together with it, every set once."""
    from gcfed.results.run import find_runs

    runs = find_runs(path)
    if not runs:
        raise InputError(f"{path} is neither a run nor a folder of runs")
    sets: dict[Path, list[Run]] = {}
    for run in runs:
        together = run.together()
        sets.setdefault(together[0].path.resolve(), together)
    return list(sets.values())
