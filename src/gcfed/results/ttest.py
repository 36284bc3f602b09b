"""The paired t-test: what a few differences say about their mean."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

LEVEL = 0.95


@dataclass(frozen=True)
class Paired:
    """The mean of differences, its confidence interval, and the p-value of its being zero.

    Two-sided, of the paired t-test; one difference has neither interval nor p-value, and equal
    ones have no p-value, for they show no spread to measure their mean by.
    """

    differences: tuple[float, ...]
    mean: float
    low: float | None
    high: float | None
    p: float | None

    @property
    def n(self) -> int:
        return len(self.differences)


def paired(differences: Sequence[float]) -> Paired:
    """Test whether differences, independent and about normal, have a mean other than zero.

    >>> result = paired([1.0, 2.0, 3.0])
    >>> f"{result.mean:.1f} [{result.low:.3f}, {result.high:.3f}] p {result.p:.4f}"
    '2.0 [-0.484, 4.484] p 0.0742'
    """
    values = tuple(differences)
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Paired(values, mean, None, None, None)
    if math.isclose(min(values), max(values), rel_tol=1e-9, abs_tol=1e-12):  # but for rounding
        return Paired(values, mean, mean, mean, None)
    from scipy.stats import ttest_1samp  # type: ignore[import-untyped]  # takes a second to import

    found = ttest_1samp(values, 0)
    low, high = map(float, found.confidence_interval(LEVEL))
    return Paired(values, mean, low, high, float(found.pvalue))
