"""Options that every command has."""

from pathlib import Path
from typing import Annotated

import typer

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
