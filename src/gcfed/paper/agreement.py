"""Our numbers beside the paper's: differences, the order of methods, and claims in words."""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise, product

import numpy as np

from gcfed.paper.item import Claim, Column, PaperItem, Printed
from gcfed.paper.quantities import quantity

ALIKE = 0.7
"""The rank correlation from which on the order of methods agrees."""

FEWEST = 3
"""Methods that have an order worth a correlation."""


@dataclass(frozen=True)
class OurNumber:
    """What our runs of one method in one column came to: the numbers of those that finished.

    ``chance`` is the accuracy of guessing, which stands for a method none of whose runs finished.
    """

    values: tuple[float, ...]
    seeds: int
    chance: float | None = None

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.values) if self.values else None

    @property
    def std(self) -> float | None:
        """One value has no deviation, and neither has a target that was not always reached."""
        finite = all(map(math.isfinite, self.values))
        return statistics.stdev(self.values) if len(self.values) > 1 and finite else None

    @property
    def standing(self) -> float | None:
        """What it is ranked by."""
        return self.chance if self.mean is None else self.mean

    @property
    def finished(self) -> int:
        return len(self.values)

    @property
    def failed(self) -> bool:
        """Whether some run did not finish."""
        return self.finished < self.seeds


Numbers = Mapping[Column, Mapping[str, OurNumber]]
"""What we have of each column, by method."""


@dataclass(frozen=True)
class SameOrder:
    """How alike the order of methods is in the paper and here."""

    spearman: float
    methods: int

    @property
    def agrees(self) -> bool:
        return self.spearman >= ALIKE


@dataclass(frozen=True)
class Verdict:
    """In how many comparisons a claim of the paper holds here.

    ``is_whole`` says whether we have all that the claim is about, in the cells that we have.
    """

    claim: Claim
    holds: int
    comparisons: int
    is_whole: bool = True

    @property
    def agrees(self) -> bool:
        return self.holds == self.comparisons

    def __str__(self) -> str:
        if not self.comparisons:
            return f"not tried: {self.claim.text}"
        held = "agrees" if self.agrees else f"holds {self.holds} times of {self.comparisons}"
        some = "" if self.is_whole else " as far as it was tried"
        return f"{held}{some}: {self.claim.text}"


def difference(ours: OurNumber, printed: Printed) -> float | None:
    """Ours minus the paper's, where both are one number."""
    if ours.mean is None or printed.mean is None or printed.failed or math.isinf(ours.mean):
        return None
    return ours.mean - printed.mean


def agrees(ours: OurNumber, printed: Printed, name: str) -> bool | None:
    """Whether our number is near the paper's; where runs fail, whether they do in both.

    None if no run has such a number, as one of a single round has no step of accuracy.
    """
    if not ours.seeds:
        return None
    if ours.failed or printed.failed:
        return ours.failed and printed.failed
    assert ours.mean is not None
    near = quantity(name).tolerance
    low, high = printed.low - near(printed.low), printed.high + near(printed.high)
    return low <= ours.mean <= high


def same_order(ours: Mapping[str, OurNumber], printed: Mapping[str, Printed]) -> SameOrder | None:
    """The rank correlation (Spearman) of the methods that both have; failed ones are at chance."""
    pairs = [
        (theirs.mean, found)
        for method, theirs in printed.items()
        if method in ours and (found := ours[method].standing) is not None
        if theirs.mean is not None
    ]
    if len(pairs) < FEWEST or any(len(set(column)) == 1 for column in zip(*pairs, strict=True)):
        return None
    from scipy.stats import rankdata  # type: ignore[import-untyped]  # takes a second to import

    ranks = [rankdata(column) for column in zip(*pairs, strict=True)]
    return SameOrder(float(np.corrcoef(ranks)[0, 1]), len(pairs))


def judge(claim: Claim, item: PaperItem, numbers: Numbers) -> Verdict:
    """Try a claim on what we have.

    Two methods none of whose runs finished are not compared, nor two that both reach no target.
    """
    tried = [
        high.standing > low.standing
        for high, low in _comparisons(claim, item, numbers)
        if (high.finished or low.finished)
        and high.standing is not None
        and low.standing is not None
        and not high.standing == low.standing == math.inf
    ]
    return Verdict(claim, sum(tried), len(tried), _has_all(claim, item, numbers))


def _has_all(claim: Claim, item: PaperItem, numbers: Numbers) -> bool:
    """Whether no method that a claim is about is missing where we have others."""
    cells = {cell.name: cell.methods for cell in item.cells}
    chained = {cell for chain in claim.rising for cell in chain}
    named = {method for group in claim.order for method in group}
    asked = [*product(chained, claim.methods), *product(cells, named)]
    found = {cell: numbers.get(Column(cell, claim.quantity), {}) for cell in cells}
    return all(
        method in found[cell]
        for cell, method in asked
        if method in cells[cell] and (cell in chained or found[cell])
    )


def _comparisons(
    claim: Claim, item: PaperItem, numbers: Numbers
) -> list[tuple[OurNumber, OurNumber]]:
    """What a claim says is higher, and what it is higher than, without what we do not have."""
    found = {cell.name: numbers.get(Column(cell.name, claim.quantity), {}) for cell in item.cells}
    pairs: list[tuple[OurNumber, OurNumber]] = []
    for of_cell in found.values():
        groups = [[of_cell[m] for m in group if m in of_cell] for group in claim.order]
        for higher, lower in pairwise(filter(None, groups)):
            pairs += product(higher, lower)
    for chain, method in product(claim.rising, claim.methods):
        known = [found[cell][method] for cell in chain if method in found[cell]]
        pairs += [(higher, lower) for lower, higher in pairwise(known)]
    return pairs
