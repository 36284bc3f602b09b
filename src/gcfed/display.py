"""Tables as a terminal and a notebook show them."""

from collections.abc import Iterable, Sequence
from html import escape


class Html(str):
    """Text that is HTML already; a table escapes all other text."""


def aligned(lines: Iterable[Sequence[str]]) -> list[str]:
    """Rows of cells as lines of text whose columns stand below each other.

    >>> aligned([("name", "size"), ("a", "1"), ("longer", "20")])
    ['name    size', 'a       1', 'longer  20']
    """
    rows = list(lines)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def counted(number: int, thing: str) -> str:
    """A number of things.

    >>> counted(1, "run"), counted(1200, "method")
    ('1 run', '1,200 methods')
    """
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def html_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table for a notebook.

    >>> html_table(("a",), [("1 < 2",)])
    '<table><thead><tr><th>a</th></tr></thead><tbody><tr><td>1 &lt; 2</td></tr></tbody></table>'
    """
    head, body = _row("th", columns), "".join(_row("td", row) for row in rows)
    return f"<table><thead>{head}</thead><tbody>{body}</tbody></table>"


def escaped(text: str) -> str:
    """Text with everything escaped that would be read as HTML."""
    return text if isinstance(text, Html) else escape(text)


def _row(tag: str, cells: Iterable[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{escaped(cell)}</{tag}>' for cell in cells)}</tr>"
