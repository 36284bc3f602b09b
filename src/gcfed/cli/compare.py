"""The command that sets runs side by side."""

from pathlib import Path
from typing import Annotated

import typer

from gcfed.cli import console
from gcfed.cli.options import Plugins
from gcfed.cli.pictures import PICTURES, save
from gcfed.errors import InputError, unknown
from gcfed.results.comparison import FORMATS, compare as compare_runs

SUFFIXES = {".md": "markdown", ".tex": "latex", ".csv": "csv", ".json": "json", ".txt": "text"}


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUNS...", hidden=True)],
    metric: Annotated[
        str | None, typer.Option(help="Such as loss; if not given, what the runs are judged by.")
    ] = None,
    target: Annotated[
        float | None,
        typer.Option(help="A value, such as 0.6 for an accuracy of 60 %: rounds and bytes to it."),
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(help="What the others are compared with, seed by seed.")
    ] = None,
    form: Annotated[
        str | None, typer.Option("--format", help="markdown, latex, csv, json or text.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="A file to make, of the table.")] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="A file to make, of curves.")
    ] = None,
    plugin: Plugins = None,
) -> None:
    """Compare runs: mean and deviation over seeds, and differences.

    RUNS are run directories, or folders of them.  Runs that differ in their seed alone form a
    group.  The format of a file is that of its name, if none is given.
    """
    form = _form(form, out)
    for path in filter(None, (out, plot)):
        _refuse(path)
    if plot is not None and plot.suffix not in PICTURES:
        raise InputError(f"--plot makes a {', '.join(PICTURES)} file; not {plot}")
    found = compare_runs(runs, metric=metric, target=target, baseline=baseline)
    if out is None and form is not None:
        print(found.render(form), end="")
    else:
        console.show(found.table())
    if out is not None and form is not None:
        with out.open("x", encoding="utf-8") as file:
            file.write(found.render(form))
        console.say(f"table  {out}")
    if plot is not None:
        save(found.plot(), plot)
        console.say(f"plot  {plot}")


def _form(form: str | None, out: Path | None) -> str | None:
    """The format that is asked for, by name or by a file's suffix."""
    if form is not None and form not in FORMATS:
        raise unknown("format", form, FORMATS)
    if form is None and out is not None:
        form = SUFFIXES.get(out.suffix)
        if form is None:
            raise InputError(f"say what {out} is to hold: --format {', '.join(FORMATS)}")
    return form


def _refuse(path: Path) -> None:
    if path.exists() or path.is_symlink():
        raise InputError(f"{path} exists already: name another file")
    if not path.absolute().parent.is_dir():
        raise InputError(f"{path} cannot be made: there is no folder {path.absolute().parent}")
