"""How the command line prints results, errors and warnings."""

import logging
import sys
import textwrap
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper

from rich.console import Console
from rich.markup import escape
from rich.table import Table as Drawn
from rich.text import Text

from gcfed.cli.columns import GAP as GAP, Line, sheets, total
from gcfed.progress import err as err, say as say
from gcfed.results.tables import Entry, Rank, Section, Table, plain

out = Console(highlight=False, emoji=False)  # "f.py:X:" is no emoji
out.width = out.width or 80  # nothing is printed where COLUMNS is 0

STYLES: dict[Rank, str] = {"best": "bold", "second": "underline", "": ""}


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *notes: str) -> None:
    """Print a table: fitted to a terminal, elsewhere a whole line a row."""
    cells = tuple(tuple(map(Entry, row)) for row in rows)
    show(Table(tuple(columns), (Section("", cells),), notes))


def show(table: Table) -> None:
    """Print a table of results: on a terminal the best in bold and the second underlined."""
    if not out.is_terminal:
        print(plain(table), end="")
        return
    for number, lines in enumerate(sheets(table, out.width)):
        if number:
            tell()
        _print_sheet(table, lines)
    for note in table.notes:
        for line in textwrap.wrap(note, out.width, break_long_words=False, break_on_hyphens=False):
            tell(line)


def _print_sheet(table: Table, lines: Sequence[Line]) -> None:
    head = [Text(column, style="bold") for column in table.columns]
    for block in table.blocks:
        if block.title:
            tell(block.title)
        for row in (head, *map(_styled, block.rows)):
            for number, line in enumerate(lines):
                _print_line([row[i] for i in line.columns], line.widths, is_first=not number)


def _styled(row: Iterable[Entry]) -> list[Text]:
    return [Text.assemble((cell.value, STYLES[cell.mark]), cell.rest) for cell in row]


def _print_line(cells: Sequence[Text], widths: Sequence[int], *, is_first: bool) -> None:
    """Print a line of a row; a cell without a width is whole, however long it is."""
    if not is_first:  # a column of no width, and the gap after it
        cells, widths = [Text(), *cells], [0, *widths] if widths else []
    if not widths:
        out.print(Text(" " * GAP).join(cells), soft_wrap=True)
        return
    drawn = Drawn.grid(padding=(0, GAP, 0, 0))
    for width in widths:
        drawn.add_column(width=width)
    drawn.width = total(widths)
    drawn.add_row(*cells)
    out.print(drawn, crop=False)


def tell(text: str = "") -> None:
    """A line of a result."""
    out.print(text, markup=False, soft_wrap=True)


def fail(text: object) -> None:
    """What is wrong."""
    err.print(f"[red]error:[/] {escape(str(text))}", soft_wrap=True)


class NoteHandler(logging.Handler):
    """Says what is logged, a line each."""

    def emit(self, record: logging.LogRecord) -> None:
        say(record.getMessage())


@contextmanager
def showing_notes() -> Iterator[None]:
    """Inside, say what runs log about themselves."""
    log, handler = logging.getLogger("gcfed"), NoteHandler()
    level = log.level
    log.setLevel(logging.INFO)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


def print_all_text() -> None:
    """Let text be printed that the locale has no letters for: α as \\u03b1, not a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # neither closed nor somebody's stand-in
            stream.reconfigure(errors="backslashreplace")


def show_warnings() -> None:
    """Let warnings be one line each, without the source they came from."""

    def show(message: Warning | str, *_: object) -> None:
        err.print(f"[yellow]warning:[/] {escape(str(message))}", soft_wrap=True)

    warnings.showwarning = show  # type: ignore[assignment]
