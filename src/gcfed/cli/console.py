"""How the command line prints results, errors and warnings."""

import logging
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.table import Table as Drawn
from rich.text import Text

from gcfed.progress import err as err, say as say
from gcfed.results.tables import Entry, Rank, Section, Table, plain

out = Console(highlight=False, emoji=False)  # "f.py:X:" is no emoji

STYLES: dict[Rank, str] = {"best": "bold", "second": "underline", "": ""}


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table: fitted to a terminal, elsewhere a whole line a row."""
    show(Table(tuple(columns), (Section("", tuple(tuple(map(Entry, row)) for row in rows)),)))


def show(table: Table) -> None:
    """Print a table of results: on a terminal the best in bold and the second underlined."""
    if not out.is_terminal:
        print(plain(table), end="")
        return
    for block in table.blocks:
        if block.title:
            tell(block.title)
        drawn = Drawn(box=None, padding=(0, 2, 0, 0), header_style="bold")
        for column in table.columns:
            drawn.add_column(escape(column), overflow="fold")  # what is cut cannot be copied
        for row in block.rows:
            drawn.add_row(*(Text.assemble((c.value, STYLES[c.mark]), c.rest) for c in row))
        out.print(drawn)
    for note in table.notes:
        tell(note)


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
