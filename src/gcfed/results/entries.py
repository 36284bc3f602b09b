"""What stands in the columns of a comparison: values over seeds, costs, differences."""

from collections.abc import Sequence
from typing import Any

from gcfed.core.metrics import Scale
from gcfed.results.outcomes import GroupResult, Spread
from gcfed.results.tables import Entry, ranked


def value_column(results: Sequence[GroupResult], metric: Scale, field: str) -> list[Entry]:
    """Values of a field; a group with a run that failed has no rank: its mean lacks the worst."""
    lost = [f", {len(r.failed)} failed" if r.failed else "" for r in results]
    return _ranked_values(results, metric, field, lost)


def pivot_column(results: Sequence[GroupResult], metric: Scale) -> list[Entry]:
    """Final values of one task, and how many runs finished where not all did."""
    finished = [seeds(r) for r in results]
    return _ranked_values(
        results, metric, "final", [f", {text}" if " of " in text else "" for text in finished]
    )


def seeds(r: GroupResult) -> str:
    """How many runs a mean is of; ``2 of 3`` where one did not finish."""
    finished = r.spread("final").n
    return str(finished) if finished == len(r.outcomes) else f"{finished} of {len(r.outcomes)}"


def target_text(target: float, metric: Scale) -> str:
    """A target as the head of a column has it.

    >>> target_text(0.6, Scale("accuracy", percent=True)), target_text(1.4, Scale("loss"))
    ('60 %', '1.4')
    """
    return f"{100 * target:g} %" if metric.percent else f"{target:g}"


def cost_column(results: Sequence[GroupResult], field: str, unit: float) -> list[Entry]:
    """What a target takes; a group has a rank if all its runs reach the target."""
    found = [(r.spread(field), len(r.outcomes)) for r in results]
    cells = [_cost(spread, runs, unit) for spread, runs in found]
    ranks = [spread.mean if spread.n == runs else None for spread, runs in found]
    return ranked(cells, ranks, largest=False)


def difference(r: GroupResult, metric: Scale) -> str:
    """The mean difference to the baseline and its interval."""
    if (gap := r.difference) is None:
        return "-"
    mean, low, high = (metric.text(v, "+") for v in (gap.mean, gap.low, gap.high))
    if gap.n == 1:
        return f"{mean} (1 pair)"
    few = "" if gap.n == len(r.outcomes) else f" ({gap.n} pairs)"
    return f"{mean} [{low}, {high}]{few}"


def p_value(r: GroupResult) -> str:
    p = None if r.difference is None else r.difference.p
    return "-" if p is None else "<0.001" if p < 0.001 else f"{p:.3f}"


def numbers(r: GroupResult, has_target: bool, has_baseline: bool) -> dict[str, Any]:
    """All of it with every digit, by name."""
    values: dict[str, Any] = {
        "seeds": len(r.outcomes),
        "finished": r.spread("final").n,
        "failed": len(r.failed),
    }
    for field in ("final", "best"):
        values |= {f"{field}_mean": r.spread(field).mean, f"{field}_std": r.spread(field).std}
    if has_target:
        values["reached"] = r.spread("rounds_to_target").n
        for field in ("rounds_to_target", "bytes_to_target"):
            values[field] = r.spread(field).mean
    if has_baseline:
        gap = r.difference
        values |= {"baseline": r.baseline, "pairs": gap and gap.n}
        values |= {"difference": gap and gap.mean, "ci_low": gap and gap.low}
        values |= {"ci_high": gap and gap.high, "p": gap and gap.p}
    return values


def _ranked_values(
    results: Sequence[GroupResult], metric: Scale, field: str, endings: Sequence[str]
) -> list[Entry]:
    spreads = [r.spread(field) for r in results]
    entries = [
        _value(r, found, metric, ending)
        for r, found, ending in zip(results, spreads, endings, strict=True)
    ]
    values = [None if r.failed else s.mean for r, s in zip(results, spreads, strict=True)]
    return ranked(entries, values, largest=metric.better == "higher")


def _value(r: GroupResult, found: Spread, metric: Scale, ending: str) -> Entry:
    if found.mean is None and r.failed:
        chance = r.chance if metric.name == "accuracy" else None
        return Entry("failed") if chance is None else Entry(metric.text(chance), " (failed)")
    rest = "" if found.std is None else f" ({metric.text(found.std)})"
    return Entry(metric.text(found.mean), rest + ending)


def _cost(found: Spread, runs: int, unit: float) -> Entry:
    if found.mean is None:
        return Entry("not reached")
    rest = "" if found.std is None else f" ({found.std / unit:.1f})"
    return Entry(
        f"{found.mean / unit:.1f}", rest + (f", {found.n} of {runs}" if found.n < runs else "")
    )
