"""What the command line says, and how: tables, progress, warnings."""

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table as Drawn
from rich.text import Text

from gcfed.results.tables import Entry, Rank, Section, Table, plain

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)

STYLES: dict[Rank, str] = {"best": "bold", "second": "underline", "": ""}

Tick = Callable[[int, str], None]
"""So many are done, with a note on the last."""


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


def say(text: str) -> None:
    """A line on what goes on, apart from results."""
    err.print(text, markup=False, soft_wrap=True)


def fail(text: object) -> None:
    """What is wrong."""
    err.print(f"[red]error:[/] {escape(str(text))}", soft_wrap=True)


def show_warnings() -> None:
    """Let warnings be one line each, without the source they came from."""

    def show(message: Warning | str, *_: object) -> None:
        err.print(f"[yellow]warning:[/] {escape(str(message))}", soft_wrap=True)

    warnings.showwarning = show  # type: ignore[assignment]


@contextmanager
def progress(label: str, total: int, quiet: bool = False) -> Iterator[Tick]:
    """A bar on a terminal, elsewhere a plain line at every tenth; both on standard error."""
    if quiet:
        yield lambda done, note: None
    elif not err.is_terminal:
        yield _plain_lines(label, total)
    else:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
        )
        with Progress(*columns, console=err) as bar:
            task = bar.add_task(escape(label), total=total, note="")
            try:
                yield lambda done, note: bar.update(task, completed=done, note=note)
            except BaseException:
                bar.live.transient = True  # an error message stands alone
                raise


def _plain_lines(label: str, total: int) -> Tick:
    def tick(done: int, note: str) -> None:
        if done % max(total // 10, 1) == 0 or done == total:
            print(f"{label}: round {done} of {total}  {note}".rstrip(), file=sys.stderr, flush=True)

    return tick
