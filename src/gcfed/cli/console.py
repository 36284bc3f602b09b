"""How the command line prints results, errors and warnings."""

import warnings
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gcfed.display import aligned
from gcfed.progress import err as err, say as say

out = Console(highlight=False)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table: fitted to a terminal, elsewhere a whole line a row."""
    if not out.is_terminal:
        print("\n".join(aligned([columns, *rows])))
        return
    drawn = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        drawn.add_column(escape(column), overflow="fold")  # what is cut cannot be copied
    for row in rows:
        drawn.add_row(*map(escape, row))
    out.print(drawn)


def tell(text: str = "") -> None:
    """A line of a result."""
    out.print(text, markup=False, soft_wrap=True)


def fail(text: object) -> None:
    """What is wrong."""
    err.print(f"[red]error:[/] {escape(str(text))}", soft_wrap=True)


def show_warnings() -> None:
    """Let warnings be one line each, without the source they came from."""

    def show(message: Warning | str, *_: object) -> None:
        err.print(f"[yellow]warning:[/] {escape(str(message))}", soft_wrap=True)

    warnings.showwarning = show  # type: ignore[assignment]
