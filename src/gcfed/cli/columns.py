"""How a table is fitted to a terminal: which columns stand in one line, and how wide they are."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rich.cells import cell_len

from gcfed.results.tables import Table

GAP = 2
"""Spaces between columns."""

SHORT = 20
"""A cell that is no longer, such as 71.20 (0.31), is never broken."""


class Line(NamedTuple):
    """Columns that stand beside each other, by number, and how wide they are."""

    columns: Sequence[int]
    widths: Sequence[int]


class _Column(NamedTuple):
    full: int
    least: int


def sheets(table: Table, room: int) -> list[list[Line]]:
    """The lines in which rows are printed, where all columns beside each other are too wide.

    A table whose last cells are long, such as paths, has rows of several lines; such a cell is
    whole, in the last of them.  Of any other table each sheet is printed from head to end before
    the next one begins; the rows of all begin with the same cell.
    """
    rows = [[cell.value + cell.rest for cell in row] for b in table.blocks for row in b.rows]
    columns = [_column(head, cells) for head, *cells in zip(table.columns, *rows, strict=True)]
    every = range(len(columns))
    if len(columns) <= 2 or total(column.least for column in columns) <= room:
        return [[_line(every, columns, room)]]
    if columns[-1].least > SHORT:
        first, *more = _divided(every[:-1], columns, room)
        below = [_line(each, columns, room - GAP) for each in more]
        return [[_line(first, columns, room), *below, Line(every[-1:], [])]]
    parts = _divided(every[1:], columns, room - columns[0].least - GAP)
    return [[_line([0, *part], columns, room)] for part in parts]


def _column(head: str, cells: Sequence[str]) -> _Column:
    """Of a column, only what is long and no number may be broken, between words."""
    least = max(_longest_word(head), *map(_least, cells), 0)
    return _Column(max(map(cell_len, [head, *cells])), least)


def _least(cell: str) -> int:
    is_number = not any(map(str.isalpha, cell))
    return cell_len(cell) if is_number or cell_len(cell) <= SHORT else _longest_word(cell)


def _longest_word(text: str) -> int:
    return max(map(cell_len, text.split()), default=0)


def _divided(numbers: Sequence[int], columns: Sequence[_Column], room: int) -> list[list[int]]:
    """Columns as few groups that fit, all about as wide; there is room to indent them."""
    if len(one := _packed(numbers, columns, room)) == 1:
        return one
    room = max(room - GAP, 1)
    fewest = len(_packed(numbers, columns, room))
    packed = (_packed(numbers, columns, narrow) for narrow in range(1, room + 1))
    return next(groups for groups in packed if len(groups) == fewest)


def _packed(numbers: Sequence[int], columns: Sequence[_Column], room: int) -> list[list[int]]:
    groups: list[list[int]] = [[]]
    for number in numbers:
        if groups[-1] and total(columns[i].least for i in [*groups[-1], number]) > room:
            groups.append([])
        groups[-1].append(number)
    return groups


def _line(numbers: Sequence[int], columns: Sequence[_Column], room: int) -> Line:
    """Columns beside each other; if they are too wide even so, nothing is broken."""
    widths, least = ([columns[i][k] for i in numbers] for k in range(2))
    if total(least) > room:
        return Line(numbers, widths)
    while total(widths) > room:
        _, widest = max((w, i) for i, w in enumerate(widths) if w > least[i])
        widths[widest] -= 1
    return Line(numbers, widths)


def total(widths: Iterable[int]) -> int:
    """How wide columns are beside each other."""
    each = list(widths)
    return sum(each) + GAP * (len(each) - 1)
