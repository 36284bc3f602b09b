"""Comparisons as commands print them and write them to files."""

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol

import typer

from gcfed.cli import console
from gcfed.cli.options import path_option, setting_option
from gcfed.cli.pictures import PICTURES, save
from gcfed.errors import InputError, unknown

if TYPE_CHECKING:
    from gcfed.paper.beside import Beside
    from gcfed.results.comparison import Comparison
    from gcfed.results.tables import Table

SUFFIXES = {".md": "markdown", ".tex": "latex", ".csv": "csv", ".json": "json", ".txt": "text"}

COMPARED, FILES = "What is compared", "Files"

PaperWidth = Literal["one column", "two columns"]

MetricOption = Annotated[
    str | None,
    setting_option(COMPARED, "Such as loss.", "what the runs are judged by", "metrics"),
]
TargetOption = Annotated[
    float | None,
    typer.Option(
        help="A value, such as 0.6 for an accuracy of 60 %: rounds and bytes to it.",
        rich_help_panel=COMPARED,
    ),
]
BaselineOption = Annotated[
    str | None,
    typer.Option(help="What the others are compared with, seed by seed.", rich_help_panel=COMPARED),
]
PivotOption = Annotated[
    bool,
    typer.Option(
        "--pivot", help="Methods as rows and settings as columns.", rich_help_panel=COMPARED
    ),
]
FormatOption = Annotated[
    str | None,
    typer.Option("--format", help="markdown, latex, csv, json or text.", rich_help_panel=FILES),
]
OutOption = Annotated[
    Path | None, path_option(help="A file to make, of the table.", rich_help_panel=FILES)
]
PlotOption = Annotated[
    Path | None,
    path_option(metavar="FILE.pdf", help="A file to make, of curves.", rich_help_panel=FILES),
]
DrawOption = Annotated[
    str | None,
    typer.Option(
        metavar="NUMBER",
        help="What --plot draws, such as train_loss, or cka.new for a panel a layer.",
        show_default="what is compared",
        rich_help_panel=FILES,
    ),
]
SizeOption = Annotated[
    PaperWidth | None,
    setting_option(FILES, "The width of the plot, as a paper has it.", "two columns"),
]


class Tabular(Protocol):
    """Something that can be seen as a table."""

    def table(self) -> "Table": ...

    def render(self, form: str) -> str: ...


@dataclass(frozen=True)
class TableReport:
    """A table to print, and a file to make of it; refused, before any work, if it cannot be made.

    ``forms`` are the formats that the table can have, all that there are by default.
    """

    form: str | None = None
    out: Path | None = None
    forms: Collection[str] = tuple(SUFFIXES.values())
    kind: str = "format"

    def __post_init__(self) -> None:
        for form in filter(None, (self.form, self._written_as)):
            if form not in self.forms:
                raise unknown(self.kind, form, self.forms)
        if self.out is not None and self._written_as is None:
            raise InputError(
                f"say what {self.out} is to hold: end its name in one of {', '.join(SUFFIXES)}"
            )
        if self.out is not None:
            _refuse(self.out)

    def show(self, found: Tabular) -> None:
        """Print the table."""
        if self.out is None and self.form is not None:
            print(found.render(self.form), end="")
        else:
            console.show(found.table())

    def write(self, found: Tabular) -> None:
        """Make the file, if one was asked for."""
        if self.out is not None and self._written_as is not None:
            text = found.render(self._written_as)  # first, so that an error leaves no empty file
            with self.out.open("x", encoding="utf-8") as file:
                file.write(text)
            console.say(f"table  {self.out}")

    @property
    def _written_as(self) -> str | None:
        """The format of the file, by name or by its suffix."""
        return self.form or (None if self.out is None else SUFFIXES.get(self.out.suffix))


@dataclass(frozen=True)
class Report:
    """What to make of a comparison; refused, before any work is done, if it cannot be made."""

    form: str | None = None
    out: Path | None = None
    plot: Path | None = None
    size: PaperWidth | None = None
    pivot: bool = False
    draw: str | None = None

    def __post_init__(self) -> None:
        self._of_table  # noqa: B018 (what is wrong with it is said first)
        if self.draw is not None and self.plot is None:
            raise InputError("--draw says what a plot shows: name a file for it by --plot")
        if self.size is not None and self.plot is None:
            raise InputError("--size is the width of a plot: name a file for it by --plot")
        if self.plot is not None:
            _refuse(self.plot)
            if self.plot.suffix not in PICTURES:
                raise InputError(f"--plot makes a {', '.join(PICTURES)} file; not {self.plot}")

    def show(self, found: "Comparison | Beside") -> None:
        """Print the table."""
        self._of_table.show(Pivoted(found) if self.pivot else found)

    def write(self, found: "Comparison | Beside") -> None:
        """Make the files that were asked for."""
        named: dict[str, Any] = {} if self.draw is None else {"name": self.draw}
        # first, so that what cannot be drawn leaves no file
        figure = None if self.plot is None else found.plot(**named, size=self.size or "two columns")
        self._of_table.write(Pivoted(found) if self.pivot else found)
        if self.plot is not None and figure is not None:
            save(figure, self.plot)
            console.say(f"plot  {self.plot}")

    @cached_property
    def _of_table(self) -> TableReport:
        if not self.pivot:
            return TableReport(self.form, self.out)
        from gcfed.results.comparison import PIVOT_FORMATS

        return TableReport(self.form, self.out, PIVOT_FORMATS, "format of a pivot")


@dataclass(frozen=True)
class Pivoted:
    """A comparison with methods as rows and tasks as columns."""

    found: "Comparison | Beside"

    def table(self) -> "Table":
        return self.found.pivot()

    def render(self, form: str) -> str:
        return self.found.render(form, pivot=True)


def _refuse(path: Path) -> None:
    if path.exists() or path.is_symlink():
        raise InputError(f"{path} exists already: name another file")
    if not path.absolute().parent.is_dir():
        raise InputError(f"{path} cannot be made: there is no folder {path.absolute().parent}")
