"""What the command line says, and how: tables, progress, warnings."""

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)

Tick = Callable[[str], None]
"""One more is done, with a note on it."""


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table, whole lines where it does not go to a terminal."""
    drawn = Table(*columns, box=None, padding=(0, 2, 0, 0), header_style="bold")
    for row in rows:
        drawn.add_row(*map(escape, row))
    out.print(drawn, width=None if out.is_terminal else 200)


def say(text: str) -> None:
    """A line on what goes on, apart from results."""
    err.print(escape(text), soft_wrap=True)


def show_warnings() -> None:
    """Let warnings be one line each, without the source they came from."""

    def show(message: Warning | str, *_: object) -> None:
        err.print(f"[yellow]warning:[/] {escape(str(message))}", soft_wrap=True)

    warnings.showwarning = show  # type: ignore[assignment]


@contextmanager
def progress(label: str, total: int, quiet: bool = False) -> Iterator[Tick]:
    """A bar on a terminal, elsewhere a plain line at every tenth; both on standard error."""
    if quiet:
        yield lambda note: None
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
            task = bar.add_task(label, total=total, note="")
            yield lambda note: bar.update(task, advance=1, note=note)


def _plain_lines(label: str, total: int) -> Tick:
    done = 0

    def tick(note: str) -> None:
        nonlocal done
        done += 1
        if done % max(total // 10, 1) == 0 or done == total:
            print(f"{label}: {done}/{total}  {note}", file=sys.stderr, flush=True)

    return tick
