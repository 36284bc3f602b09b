"""Tables of results for a terminal, a notebook, Markdown, LaTeX (booktabs) and CSV.

The best value of a column is bold and the second underlined, as in the GC-Fed paper.
"""

import csv
import io
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Literal

from gcfed.display import Html, aligned, escaped, html_table
from gcfed.errors import unknown

Rank = Literal["best", "second", ""]

FORMS = ("text", "markdown", "latex", "csv", "json")
"""What a table can be written as."""

_LATEX = {
    **{c: f"\\{c}" for c in "&%$#_{}"},
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
    **{c: f"${c}$" for c in "<>|"},
    "α": r"$\alpha$",
}


@dataclass(frozen=True)
class Entry:
    """A value, what follows it, such as its deviation, and how it ranks in its column."""

    value: str
    rest: str = ""
    mark: Rank = ""


@dataclass(frozen=True)
class Section:
    """Rows that may be compared, under a title where there are several blocks."""

    title: str
    rows: tuple[tuple[Entry, ...], ...]


@dataclass(frozen=True)
class Table:
    """Columns, blocks of rows, and notes that stand below them."""

    columns: tuple[str, ...]
    blocks: tuple[Section, ...]
    notes: tuple[str, ...] = ()


def ranked(
    cells: Sequence[Entry], values: Sequence[float | None], *, largest: bool = True
) -> list[Entry]:
    """Cells with the best and the second marked, by values; one without a value has no rank."""
    order = sorted({v for v in values if v is not None}, reverse=largest)
    marks: dict[float | None, Rank] = {}
    if len([v for v in values if v is not None]) > 1:
        marks = dict(zip(order, ("best", "second"), strict=False))
    return [replace(c, mark=marks.get(v, "")) for c, v in zip(cells, values, strict=True)]


def plain(table: Table) -> str:
    """Columns of text; an asterisk after the best value, a plus after the second."""
    signs: dict[Rank, str] = {"best": "*", "second": "+", "": ""}
    blocks = [
        [[f"{c.value}{signs[c.mark]}{c.rest}" for c in row] for row in block.rows]
        for block in table.blocks
    ]
    head, *rest = aligned([table.columns, *(row for block in blocks for row in block)])
    rows, lines = iter(rest), [head]
    for block in table.blocks:
        lines += [f"-- {block.title}"] if block.title else []
        lines += islice(rows, len(block.rows))
    marked = any(cell.mark for block in table.blocks for row in block.rows for cell in row)
    legend = ["* best, + second"] if marked else []
    return "\n".join([*lines, *legend, *table.notes]) + "\n"


def html(table: Table) -> str:
    """A table for each block, and the notes as a list, for a notebook."""
    parts: list[str] = []
    for block in table.blocks:
        parts += [f"<p><b>{escaped(block.title)}</b></p>"] if block.title else []
        rows = [[_html_cell(cell) for cell in row] for row in block.rows]
        parts.append(html_table(table.columns, rows))
    notes = "".join(f"<li>{escaped(note)}</li>" for note in table.notes)
    return "\n".join([*parts, f"<ul>{notes}</ul>"])


def markdown(table: Table) -> str:
    """A table for each block, and the notes as a list."""
    lines: list[str] = []
    for block in table.blocks:
        lines += [f"**{_pipes(block.title)}**", ""] if block.title else []
        lines.append(_row(map(_pipes, table.columns)))
        lines.append(_row(["---", *["---:"] * (len(table.columns) - 1)]))
        for name, *cells in block.rows:
            lines.append(_row([f"`{_pipes(name.value)}`", *map(_markdown_cell, cells)]))
        lines.append("")
    return "\n".join([*lines, *(f"- {note}" for note in table.notes)]) + "\n"


def latex(table: Table) -> str:
    """A ``tabular`` with the rules of booktabs; the notes are comments above it."""
    width = len(table.columns)
    lines = [f"% {' '.join(note.split())}" for note in table.notes]
    lines += ["% needs \\usepackage{booktabs}", f"\\begin{{tabular}}{{l{'r' * (width - 1)}}}"]
    lines += ["\\toprule", " & ".join(map(_tex, table.columns)) + r" \\"]
    for block in table.blocks:
        lines.append("\\midrule")
        if block.title:
            lines.append(f"\\multicolumn{{{width}}}{{l}}{{{_tex(block.title)}}} \\\\")
        for name, *cells in block.rows:
            row = [f"\\texttt{{{_tex(name.value)}}}", *map(_latex_cell, cells)]
            lines.append(" & ".join(row) + r" \\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}"]) + "\n"


def comma_separated(rows: Sequence[Mapping[str, Any]]) -> str:
    """A line a row, all with the columns of the first; what is not known is empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


class Tabulated(ABC):
    """Something that is shown as a table, and whose numbers are written as rows."""

    @abstractmethod
    def table(self) -> Table:
        """What a reader sees."""

    @abstractmethod
    def rows(self) -> list[dict[str, Any]]:
        """The numbers, with every digit."""

    def render(self, form: str = "text") -> str:
        """As ``text``, ``markdown`` or ``latex``; as ``csv`` or ``json``, with every digit."""
        match form:
            case "text":
                return plain(self.table())
            case "markdown":
                return markdown(self.table())
            case "latex":
                return latex(self.table())
            case "csv":
                return comma_separated(self.rows())
            case "json":
                return json.dumps(self.rows(), indent=2, allow_nan=False) + "\n"
        raise unknown("format", form, FORMS)

    def __str__(self) -> str:
        return self.render()

    def _repr_html_(self) -> str:
        return html(self.table())


def _row(cells: Any) -> str:
    return f"| {' | '.join(cells)} |"


def _pipes(text: str) -> str:
    return text.replace("|", "\\|")


def _html_cell(cell: Entry) -> Html:
    tag = {"best": "b", "second": "u"}.get(cell.mark)
    value = escaped(cell.value)
    return Html((f"<{tag}>{value}</{tag}>" if tag else value) + escaped(cell.rest))


def _markdown_cell(cell: Entry) -> str:
    value = {"best": f"**{cell.value}**", "second": f"<u>{cell.value}</u>"}.get(cell.mark)
    return _pipes((value or cell.value) + cell.rest)


def _latex_cell(cell: Entry) -> str:
    value, rest = _number(cell.value), _number(cell.rest)
    command = {"best": "\\textbf", "second": "\\underline"}.get(cell.mark)
    return f"{command}{{{value}}}{rest}" if command else value + rest


def _number(text: str) -> str:
    """Numbers with a minus, where there is a hyphen."""
    return "--" if text == "-" else _tex(text).replace("-", "$-$")


def _tex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)
