"""Options that several commands have."""

from pathlib import Path
from typing import Annotated

import typer

from gcfed.errors import InputError
from gcfed.experiments.plugins import load_plugins


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
Store = Annotated[
    Path, typer.Option(help="Where runs are kept and found again; runs.", show_default=False)
]
DataDir = Annotated[
    Path | None,
    typer.Option(help="The folder of data; GCFED_DATA, or a cache of yours."),
]
Force = Annotated[bool, typer.Option("--force", help="Replace the file of --out.")]


def check_positive(option: str, number: int | None) -> None:
    if number is not None and number < 1:
        raise InputError(f"{option} is at least 1; not {number}")
