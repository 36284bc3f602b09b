"""Comparisons as commands print them and write them to files."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from gcfed.cli import console
from gcfed.cli.options import path_option
from gcfed.cli.pictures import PICTURES, save
from gcfed.errors import InputError, unknown

if TYPE_CHECKING:
    from gcfed.results.comparison import Comparison

SUFFIXES = {".md": "markdown", ".tex": "latex", ".csv": "csv", ".json": "json", ".txt": "text"}

COMPARED, FILES = "What is compared", "Files"

PaperWidth = Literal["one column", "two columns"]

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
OutOption = Annotated[
    Path | None, path_option(help="A file to make, of the table.", rich_help_panel=FILES)
]
PlotOption = Annotated[
    Path | None,
    path_option(metavar="FILE.pdf", help="A file to make, of curves.", rich_help_panel=FILES),
]
SizeOption = Annotated[
    PaperWidth,
    typer.Option(help="The width of the plot, as a paper has it.", rich_help_panel=FILES),
]


@dataclass(frozen=True)
class Report:
    """What to make of a comparison; refused, before any work is done, if it cannot be made."""

    form: str | None = None
    out: Path | None = None
    plot: Path | None = None
    size: PaperWidth = "two columns"
    pivot: bool = False

    def __post_init__(self) -> None:
        from gcfed.results.comparison import FORMATS, PIVOT_FORMATS

        forms = PIVOT_FORMATS if self.pivot else FORMATS
        for form in filter(None, (self.form, self._written_as)):
            if form not in forms:
                raise unknown("format of a pivot" if self.pivot else "format", form, forms)
        if self.out is not None and self._written_as is None:
            raise InputError(
                f"say what {self.out} is to hold: end its name in one of {', '.join(SUFFIXES)}"
            )
        for path in filter(None, (self.out, self.plot)):
            _refuse(path)
        if self.plot is not None and self.plot.suffix not in PICTURES:
            raise InputError(f"--plot makes a {', '.join(PICTURES)} file; not {self.plot}")

    def show(self, found: "Comparison") -> None:
        """Print the table."""
        if self.out is None and self.form is not None:
            print(found.render(self.form, pivot=self.pivot), end="")
        else:
            console.show(found.pivot() if self.pivot else found.table())

    def write(self, found: "Comparison") -> None:
        """Make the files that were asked for."""
        if self.out is not None and self._written_as is not None:
            with self.out.open("x", encoding="utf-8") as file:
                file.write(found.render(self._written_as, pivot=self.pivot))
            console.say(f"table  {self.out}")
        if self.plot is not None:
            save(found.plot(size=self.size), self.plot)
            console.say(f"plot  {self.plot}")

    @property
    def _written_as(self) -> str | None:
        """The format of the file, by name or by its suffix."""
        return self.form or (None if self.out is None else SUFFIXES.get(self.out.suffix))


def _refuse(path: Path) -> None:
    if path.exists() or path.is_symlink():
        raise InputError(f"{path} exists already: name another file")
    if not path.absolute().parent.is_dir():
        raise InputError(f"{path} cannot be made: there is no folder {path.absolute().parent}")
