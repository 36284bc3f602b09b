"""The command that sets runs side by side."""

from pathlib import Path
from typing import Annotated

import typer

from gcfed.cli import console
from gcfed.cli.completion import names_of
from gcfed.cli.options import Plugins, RunPaths
from gcfed.cli.pictures import PICTURES, save
from gcfed.errors import InputError, unknown

SUFFIXES = {".md": "markdown", ".tex": "latex", ".csv": "csv", ".json": "json", ".txt": "text"}

COMPARED, FILES = "What is compared", "Files"


def compare(
    runs: RunPaths,
    metric: Annotated[
        str | None,
        typer.Option(
            help="Such as loss.",
            show_default="what the runs are judged by",
            rich_help_panel=COMPARED,
            autocompletion=names_of("metrics"),
        ),
    ] = None,
    target: Annotated[
        float | None,
        typer.Option(
            help="A value, such as 0.6 for an accuracy of 60 %: rounds and bytes to it.",
            rich_help_panel=COMPARED,
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            help="What the others are compared with, seed by seed.", rich_help_panel=COMPARED
        ),
    ] = None,
    form: Annotated[
        str | None,
        typer.Option("--format", help="markdown, latex, csv, json or text.", rich_help_panel=FILES),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="A file to make, of the table.", rich_help_panel=FILES)
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE.png", help="A file to make, of curves.", rich_help_panel=FILES),
    ] = None,
    plugin: Plugins = None,
) -> None:
    """Compare runs: mean and deviation over seeds, and differences.

    RUNS are run directories, or folders of them.  Runs that differ in their seed alone form a
    group.  The format of a file is that of its name, if none is given.

    Examples:

        gcfed compare runs --baseline fedavg
        gcfed compare runs --target 0.6 --out table.tex --plot curves.pdf
    """
    from gcfed.results.comparison import compare as compare_runs

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
    from gcfed.results.comparison import FORMATS

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
