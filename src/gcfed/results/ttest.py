"""Student's t: what a few paired differences say about their mean."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

LEVEL = 0.95
_TINY, _EPSILON, _TERMS = 1e-300, 1e-16, 500


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


def paired(differences: Sequence[float], level: float = LEVEL) -> Paired:
    """Test whether differences, independent and about normal, have a mean other than zero.

    >>> result = paired([1.0, 2.0, 3.0])
    >>> f"{result.mean:.1f} [{result.low:.3f}, {result.high:.3f}] p {result.p:.4f}"
    '2.0 [-0.484, 4.484] p 0.0742'
    """
    values, n = tuple(differences), len(differences)
    mean = statistics.fmean(values)
    if n < 2:
        return Paired(values, mean, None, None, None)
    error = statistics.stdev(values) / math.sqrt(n)
    half = t_quantile((1 + level) / 2, n - 1) * error
    p = two_sided(mean / error, n - 1) if error > 0 else None
    return Paired(values, mean, mean - half, mean + half, p)


def two_sided(t: float, df: float) -> float:
    """How likely Student's t with ``df`` degrees of freedom is at least as far from zero."""
    return incomplete_beta(df / 2, 0.5, df / (df + t * t))


def t_quantile(probability: float, df: float) -> float:
    """Where the distribution of Student's t reaches ``probability``, above one half.

    >>> [round(t_quantile(0.975, df), 3) for df in (1, 2, 4, 9)]
    [12.706, 4.303, 2.776, 2.262]
    """
    tail = 2 * (1 - probability)
    low, high = 0.0, 1.0
    while two_sided(high, df) > tail:
        low, high = high, 2 * high
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if two_sided(middle, df) > tail else (low, middle)
    return (low + high) / 2


def incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function I_x(a, b).

    By the continued fraction of DLMF 8.17.22 (https://dlmf.nist.gov/8.17#v), which converges fast
    below the distribution's mean; above it the symmetry I_x(a, b) = 1 - I_{1-x}(b, a) serves.
    """
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - incomplete_beta(b, a, 1 - x)
    log_beta = math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
    front = math.exp(a * math.log(x) + b * math.log1p(-x) - log_beta) / a
    return front / _fraction(a, b, x)


def _fraction(a: float, b: float, x: float) -> float:
    """1 + d_1/(1 + d_2/(1 + ...)) by Lentz's method."""
    value, c, d = 1.0, 1.0, 0.0
    for n in range(1, _TERMS):
        m = n // 2
        if n % 2:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1 / _nonzero(1 + term * d)
        c = _nonzero(1 + term / c)
        value *= c * d
        if abs(c * d - 1) < _EPSILON:
            break
    return value


def _nonzero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
