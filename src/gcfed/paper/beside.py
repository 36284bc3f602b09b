"""Tables of our numbers beside the paper's."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gcfed.display import counted
from gcfed.errors import unknown
from gcfed.paper.agreement import ALIKE, OurNumber
from gcfed.paper.drawing import draw
from gcfed.paper.item import Column, Printed
from gcfed.paper.quantities import POINTS, SHARE, quantity
from gcfed.paper.reproduction import Reproduction
from gcfed.results.styles import FigureSize
from gcfed.results.summary import SMOOTHED
from gcfed.results.tables import (
    Entry,
    Section,
    Table,
    comma_separated,
    latex,
    markdown,
    plain,
    ranked,
)

NONE = Entry("-")


@dataclass(frozen=True)
class Beside:
    """A reproduction as a reader sees it: a table, in several formats, and a figure."""

    made: Reproduction

    def table(self) -> Table:
        """A block for each column: the paper, ours, the difference, and whether they agree."""
        return paper_table(self.made)

    def pivot(self) -> Table:
        """Methods by columns, ours with the paper's in brackets."""
        return paper_pivot(self.made)

    def render(self, form: str = "text", *, pivot: bool = False) -> str:
        """As ``text``, ``markdown``, ``latex``, ``csv`` or ``json``."""
        if form == "json":
            return json.dumps(self.made.to_json(), indent=1, allow_nan=False) + "\n"
        if form == "csv":
            return comma_separated(self.made.rows())
        if form not in TABLES:
            raise unknown("format", form, [*TABLES, "csv", "json"])
        return TABLES[form](self.pivot() if pivot else self.table())

    def plot(self, *, size: FigureSize = "two columns") -> Any:
        """The item's figure, or the accuracy of its methods over the rounds."""
        return draw(self.made.item, self.made.numbers, self.made.curves, size)


TABLES: dict[str, Callable[[Table], str]] = {"text": plain, "markdown": markdown, "latex": latex}


def paper_table(made: Reproduction) -> Table:
    """A block for each column, which says how alike the order of methods is.

    Where the paper prints no numbers, a row for each method of each cell.
    """
    if not any(made.item.printed.values()):
        return _own_table(made)
    blocks = [
        Section(_title(made, column), tuple(_row(made, column, method) for method in found))
        for column, found in made.numbers.items()
    ]
    columns = ("method", "seeds", "paper", "ours", "ours - paper", "agrees")
    return Table(columns, tuple(blocks), tuple(_notes(made)))


def _own_table(made: Reproduction) -> Table:
    quantities = made.item.quantities
    rows = []
    for cell in dict.fromkeys(column.cell for column in made.numbers):
        found = [made.numbers.get(Column(cell, name), {}) for name in quantities]
        for method, ours in found[0].items():
            label = f"{cell}, {method}" if made.item.is_trained else cell
            row = [Entry(label), Entry(seeds_of(ours))]
            for name, of_methods in zip(quantities, found, strict=True):
                column, number = Column(cell, name), of_methods[method]
                row.append(Entry(_value(number, column), _rest(number, column)))
            rows.append(tuple(row))
    columns = ("cell", "seeds", *(name.replace("_", " ") for name in quantities))
    return Table(columns, (Section("", tuple(rows)),), tuple(_notes(made)))


def paper_pivot(made: Reproduction) -> Table:
    """A row for each method and a column for each of the item's, with the paper's number."""
    columns = list(made.numbers)
    methods = dict.fromkeys(method for found in made.numbers.values() for method in found)
    entries = []
    for column in columns:
        found, printed = made.numbers[column], made.item.printed[column]
        of_column = {
            method: Entry(_value(n, column), _rest(n, column) + _bracketed(printed.get(method)))
            for method, n in found.items()
        }
        marked = ranked(list(of_column.values()), [_rank(n) for n in found.values()])
        entries.append(dict(zip(of_column, marked, strict=True)))
    rows = tuple((Entry(m), *(column.get(m, NONE) for column in entries)) for m in methods)
    titles = [title_of(made, column) for column in columns]
    return Table(("method", *titles), (Section("", rows),), tuple(_notes(made)))


def title_of(made: Reproduction, column: Column) -> str:
    """What a column is called: by its cell, and by its quantity where an item has several."""
    if made.item.quantities == ("accuracy",):
        return column.cell
    return f"{column.cell}, {column.quantity.replace('_', ' ')}"


def _title(made: Reproduction, column: Column) -> str:
    order = made.orders[column]
    if order is None:
        return title_of(made, column)
    verdict = "agrees" if order.agrees else "does not agree"
    alike = f"Spearman {order.spearman:.2f} over {order.methods} methods"
    return f"{title_of(made, column)}: the order {verdict} ({alike})"


def _row(made: Reproduction, column: Column, method: str) -> tuple[Entry, ...]:
    ours, printed = made.numbers[column][method], made.item.printed[column].get(method)
    gap, is_near = made.compared(column, method)
    return (
        Entry(method),
        Entry(seeds_of(ours)),
        NONE if printed is None else Entry(printed.text),
        Entry(_value(ours, column), _rest(ours, column)),
        Entry(quantity(column.quantity).text(gap, "+")),
        NONE if is_near is None else Entry("yes" if is_near else "no"),
    )


def seeds_of(ours: OurNumber) -> str:
    """How many runs a number is of; ``2 of 3`` where one failed."""
    return f"{ours.finished} of {ours.seeds}" if ours.failed else str(ours.seeds)


def _value(ours: OurNumber, column: Column) -> str:
    return quantity(column.quantity).text(ours.standing)


def _rest(ours: OurNumber, column: Column) -> str:
    if ours.failed and not ours.finished:
        return " (failed)"
    return "" if ours.std is None else f" ({quantity(column.quantity).text(ours.std)})"


def _bracketed(printed: Printed | None) -> str:
    return "" if printed is None else f" [{printed.text}]"


def _rank(ours: OurNumber) -> float | None:
    return None if ours.failed else ours.mean


def _notes(made: Reproduction) -> list[str]:
    """What a reader of the numbers has to know."""
    item, how = made.item, made.made
    notes = [
        f"{item.title}: {item.source} of the GC-Fed paper",
        *([item.note] if item.note else []),
    ]
    if how.is_reduced:
        notes.append(
            "REDUCED: other data, a smaller model and fewer rounds than the paper's; the order of "
            "methods may be compared, the numbers may not"
        )
    elif how.rounds is not None:
        notes.append(f"{counted(how.rounds, 'round')}, which may not be the paper's")
    if how.changes:
        changed = ", ".join(f"{key}={value}" for key, value in how.changes.items())
        notes.append(f"changed: {changed}")
    if any(n.failed for found in made.numbers.values() for n in found.values()):
        notes.append(
            "runs whose updates were not finite have failed, and are in no mean; --on-nonfinite "
            "drop does the same cells without such updates"
        )
    if any(item.printed.values()):
        notes.append(
            f"mean (standard deviation) over seeds of the last {SMOOTHED} evaluations, or of "
            f"all if fewer; agrees: within {POINTS:g} points of accuracy, {100 * SHARE:g} % of "
            f"other numbers; the order: from a rank correlation of {ALIKE:g} on"
        )
    return notes + [f"claim {verdict}" for verdict in made.verdicts]
