"""How the command line prints results, errors and warnings."""

import logging
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table as Drawn
from rich.text import Text

from gcfed.progress import err as err, say as say
from gcfed.results.tables import Entry, Rank, Section, Table, plain

out = Console(highlight=False, emoji=False)  # "f.py:X:" is no emoji

STYLES: dict[Rank, str] = {"best": "bold", "second": "underline", "": ""}

GAP = 2
"""Spaces between columns."""

SHORT = 20
"""A cell that is no longer, such as 71.20 (0.31), is never broken."""


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table: fitted to a terminal, elsewhere a whole line a row."""
    show(Table(tuple(columns), (Section("", tuple(tuple(map(Entry, row)) for row in rows)),)))


def show(table: Table) -> None:
    """Print a table of results: on a terminal the best in bold and the second underlined."""
    if not out.is_terminal:
        print(plain(table), end="")
        return
    widths = _widths(table, out.width)
    head = [Text(column, style="bold") for column in table.columns]
    for block in table.blocks:
        if block.title:
            tell(block.title)
        for row in (head, *map(_styled, block.rows)):
            _print_row(row, widths)
    for note in table.notes:
        tell(note)


def _styled(row: Iterable[Entry]) -> list[Text]:
    return [Text.assemble((cell.value, STYLES[cell.mark]), cell.rest) for cell in row]


def _print_row(cells: Sequence[Text], widths: Sequence[int]) -> None:
    """Print a row; a cell that has no width stands in a line of its own, whole."""
    drawn = Drawn.grid(padding=(0, GAP, 0, 0))
    drawn.width = _total(widths)
    for width in widths:
        drawn.add_column(width=width)
    drawn.add_row(*cells[: len(widths)])
    out.print(drawn, crop=False)
    for cell in cells[len(widths) :]:
        out.print(Text(" " * GAP) + cell, soft_wrap=True)


def _widths(table: Table, room: int) -> list[int]:
    """How wide columns are; no width for the last, such as a path, where that lets others fit.

    Only what is long is broken, between words; if that is too wide, nothing is broken.
    """
    rows = [[cell.value + cell.rest for cell in row] for b in table.blocks for row in b.rows]
    columns = list(zip(table.columns, *rows, strict=True))
    full = [max(map(cell_len, column)) for column in columns]
    least = [max(_longest_word(head), *map(_least, cells), 0) for head, *cells in columns]
    count = len(columns)
    if _total(least) > room and count > 2 and least[-1] > SHORT:
        count -= 1
    widths, least = full[:count], least[:count]
    if _total(least) > room:
        return full
    while _total(widths) > room:
        _, widest = max((w, i) for i, w in enumerate(widths) if w > least[i])
        widths[widest] -= 1
    return widths


def _least(cell: str) -> int:
    return cell_len(cell) if cell_len(cell) <= SHORT else _longest_word(cell)


def _longest_word(text: str) -> int:
    return max(map(cell_len, text.split()), default=0)


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


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


def show_warnings() -> None:
    """Let warnings be one line each, without the source they came from."""

    def show(message: Warning | str, *_: object) -> None:
        err.print(f"[yellow]warning:[/] {escape(str(message))}", soft_wrap=True)

    warnings.showwarning = show  # type: ignore[assignment]
