"""A table or figure of the paper done again: what came out, beside what is printed."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from gcfed.errors import InputError, unknown
from gcfed.paper.agreement import (
    Numbers,
    OurNumber,
    SameOrder,
    Verdict,
    agrees,
    difference,
    judge,
    same_order,
)
from gcfed.paper.item import Column, PaperItem, paper_item

Curve = list[tuple[int, float]]
"""Rounds, and the smoothed accuracy after each."""


@dataclass(frozen=True)
class Circumstances:
    """How a reproduction was made.

    ``rounds`` are those of its cells, where they are not the paper's; ``seconds`` is the time in
    which at least one of its cells was trained.
    """

    command: str
    seeds: int
    is_reduced: bool = False
    rounds: int | None = None
    changes: Mapping[str, Any] | None = None
    device: str | None = None
    commit: str | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class Reproduction:
    """Our numbers of an item, with the curves of each seed by cell and method.

    ``to_json`` holds all of it, and `read_reproduction` reads it again.
    """

    item: PaperItem
    numbers: Numbers
    curves: Mapping[str, Mapping[str, Sequence[Curve]]]
    made: Circumstances

    @cached_property
    def orders(self) -> dict[Column, SameOrder | None]:
        """How alike the order of methods is, column by column."""
        return {
            column: same_order(found, self.item.printed[column])
            for column, found in self.numbers.items()
        }

    @cached_property
    def verdicts(self) -> list[Verdict]:
        """What becomes of the paper's claims."""
        return [judge(claim, self.item, self.numbers) for claim in self.item.claims]

    def rows(self) -> list[dict[str, Any]]:
        """A row for each method of each column, with every digit."""
        return [
            {"cell": column.cell, "quantity": column.quantity, **self._row(column, method)}
            for column, found in self.numbers.items()
            for method in found
        ]

    def compared(self, column: Column, method: str) -> tuple[float | None, bool | None]:
        """Ours minus the paper's, and whether they agree; neither at a reduced scale."""
        ours, printed = self.numbers[column][method], self.item.printed[column].get(method)
        if printed is None or self.made.is_reduced:
            return None, None
        return difference(ours, printed), agrees(ours, printed, column.quantity)

    def _row(self, column: Column, method: str) -> dict[str, Any]:
        ours, printed = self.numbers[column][method], self.item.printed[column].get(method)
        gap, is_near = self.compared(column, method)
        return {
            "method": method,
            "paper": None if printed is None else printed.text,
            "ours_mean": ours.mean,
            "ours_std": ours.std,
            "finished": ours.finished,
            "seeds": ours.seeds,
            "difference": gap,
            "agrees": is_near,
        }

    def to_json(self) -> dict[str, Any]:
        """All of it: a number that is not finite is text."""
        return {
            "item": self.item.name,
            "made": asdict(self.made),
            "numbers": [
                {**column._asdict(), "method": method, **asdict(found), "values": _texts(found)}
                for column, of_methods in self.numbers.items()
                for method, found in of_methods.items()
            ],
            "orders": [
                {**column._asdict(), **asdict(order), "agrees": order.agrees}
                for column, order in self.orders.items()
                if order is not None
            ],
            "claims": [
                {"text": v.claim.text, "holds": v.holds, "comparisons": v.comparisons}
                for v in self.verdicts
            ],
            "curves": self.curves,
        }


def read_reproduction(values: Mapping[str, Any], where: str) -> Reproduction:
    """What ``to_json`` made; ``where`` it stands is told if it cannot be read."""
    try:
        numbers: dict[Column, dict[str, OurNumber]] = {}
        for line in values["numbers"]:
            found = OurNumber(tuple(map(float, line["values"])), line["seeds"], line["chance"])
            column = Column(line["cell"], line["quantity"])
            numbers.setdefault(column, {})[line["method"]] = found
        item, made = paper_item(values["item"]), Circumstances(**values["made"])
        if strange := [column for column in numbers if column not in item.columns]:
            raise unknown(f"column of {item.name}", str(strange[0]), map(str, item.columns))
        return Reproduction(item, numbers, values["curves"], made)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{where} is not what gcfed reproduce writes: {error!r}") from None


def _texts(found: OurNumber) -> list[float | str]:
    """Values as JSON has them, which knows no infinity."""
    return [value if math.isfinite(value) else str(value) for value in found.values]
