"""The tables and figures of the paper: their settings, what they print, and what they claim."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from gcfed.errors import InputError, unknown
from gcfed.paper.methods import METHODS

ABSENT = ("-", "N/A")
NUMBER = r"-?[\d.]+"
PRINTED = re.compile(rf"({NUMBER})(?:-({NUMBER}))?(?: \((failed|{NUMBER})\))?")


@dataclass(frozen=True)
class Printed:
    """A number of the paper: a mean with its deviation, or that its runs failed, or a range.

    ``low`` and ``high`` are the ends of a range, which are one where a mean is printed.
    """

    text: str
    low: float
    high: float
    std: float | None
    failed: bool

    @property
    def mean(self) -> float | None:
        return self.low if self.low == self.high else None


class PaperCell(NamedTuple):
    """A setting in which methods are compared: what it changes, and who is compared there.

    ``target`` is the accuracy that a method is to reach, where rounds to it are counted.
    """

    name: str
    settings: dict[str, Any]
    methods: tuple[str, ...]
    target: float | None


class Claim(NamedTuple):
    """What the paper says in words of one quantity.

    ``order`` holds groups of methods, the highest first, which hold so in every cell.  ``rising``
    holds chains of cells, the lowest first, which hold so for each of ``methods``.
    """

    text: str
    quantity: str
    order: tuple[tuple[str, ...], ...]
    rising: tuple[tuple[str, ...], ...]
    methods: tuple[str, ...]


class Column(NamedTuple):
    """One quantity in one cell, which a number for each method stands in."""

    cell: str
    quantity: str


@dataclass(frozen=True)
class PaperItem:
    """A table or a figure of the paper.

    ``printed`` holds its numbers by column and method, ``algorithms`` what methods are trained with
    that have no name of their own in the paper, ``reduced`` settings of a reduced scale and
    ``figure`` how it is drawn.  One that is not trained is about partitions alone.
    """

    name: str
    title: str
    source: str
    note: str
    quantities: tuple[str, ...]
    methods: tuple[str, ...]
    cells: tuple[PaperCell, ...]
    printed: dict[Column, dict[str, Printed]]
    algorithms: dict[str, str]
    claims: tuple[Claim, ...]
    reduced: dict[str, Any]
    figure: str
    is_trained: bool

    @property
    def columns(self) -> list[Column]:
        return [Column(cell.name, each) for cell in self.cells for each in self.quantities]

    def algorithm(self, method: str) -> str:
        """What a row of the item is trained with."""
        if method in self.algorithms:
            return self.algorithms[method]
        return " + ".join(METHODS[part] for part in method.split(" + "))


def item_names() -> list[str]:
    """The tables and figures that there are, in the order of the paper."""
    return list(ORDER)


@cache
def paper_item(name: str) -> PaperItem:
    """The table or figure of this name."""
    if name not in ORDER:
        raise unknown("table or figure of the paper", name, ORDER)
    text = (files("gcfed.paper") / "items" / f"{name}.toml").read_text(encoding="utf-8")
    return _item(name, tomllib.loads(text))


ORDER = (
    *("participation", "training-dynamics", "data-distribution", "baseline-validation"),
    *("small-scale", "large-scale", "rounds-to-target", "integration", "cka", "mean-vector"),
    *("lambda", "hyper-parameters"),
)


def _item(name: str, values: Mapping[str, Any]) -> PaperItem:
    quantities = tuple(values.get("quantities", ["accuracy"]))
    methods = tuple(values.get("methods") or values["printed"])
    cells = tuple(_cell(cell, values["settings"], methods) for cell in values["cells"])
    columns = [Column(cell.name, each) for cell in cells for each in quantities]
    rows = values.get("printed", {})
    if wrong := [method for method, row in rows.items() if len(row) != len(columns)]:
        raise InputError(f"{name}: {wrong[0]} has another number of values than of columns")
    return PaperItem(
        name=name,
        title=values["title"],
        source=values["source"],
        note=values.get("note", ""),
        quantities=quantities,
        methods=methods,
        cells=cells,
        printed={
            column: {m: read_printed(row[i]) for m, row in rows.items() if row[i] not in ABSENT}
            for i, column in enumerate(columns)
        },
        algorithms=values.get("algorithms", {}),
        claims=tuple(_claim(claim, quantities, methods) for claim in values["claims"]),
        reduced=values.get("reduced", {}),
        figure=values.get("figure", "curves"),
        is_trained=values.get("is_trained", True),
    )


def _cell(values: Mapping[str, Any], shared: Mapping[str, Any], all_: Sequence[str]) -> PaperCell:
    own = {key: v for key, v in values.items() if key not in ("name", "methods", "target")}
    methods = tuple(values.get("methods", all_))
    return PaperCell(values["name"], {**shared, **own}, methods, values.get("target"))


def _claim(values: Mapping[str, Any], quantities: Sequence[str], methods: Sequence[str]) -> Claim:
    return Claim(
        values["text"],
        values.get("quantity", quantities[0]),
        tuple(map(tuple, values.get("order", []))),
        tuple(map(tuple, values.get("rising", []))),
        tuple(values.get("methods", methods)),
    )


def read_printed(text: str) -> Printed:
    """A number as the paper prints it.

    >>> read_printed("66.44 (1.40)").mean, read_printed("287-425").high
    (66.44, 425.0)
    """
    found = PRINTED.fullmatch(text)
    if found is None:
        raise InputError(f"{text!r} is not a number as the paper prints them")
    low, high, spread = found.groups()
    failed = spread == "failed"
    std = None if spread is None or failed else float(spread)
    return Printed(text, float(low), float(high or low), std, failed)
