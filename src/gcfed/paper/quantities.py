"""What the tables and figures of the paper show of a run, as numbers of the paper's units."""

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gcfed.paper.item import PaperCell
from gcfed.results.dynamics import run_dynamics
from gcfed.results.outcomes import outcome, rounds_to
from gcfed.results.run import Run

RunNumber = Callable[[Run, PaperCell], float | None]

POINTS = 3.0
"""How far an accuracy may be from the paper's, in points, to agree with it."""

SHARE = 0.25
"""How far any other number may be from the paper's, as a share of it, to agree with it."""


@dataclass(frozen=True)
class PaperQuantity:
    """How a number is found in a run that finished, and how it is printed and judged."""

    of: RunNumber
    digits: int
    points: bool = False

    def text(self, value: float | None, sign: str = "") -> str:
        if value is None:
            return "-"
        return "not reached" if math.isinf(value) else f"{value:{sign}.{self.digits}f}"

    def tolerance(self, printed: float) -> float:
        return POINTS if self.points else SHARE * abs(printed)


def quantity(name: str) -> PaperQuantity:
    """The quantity of this name; ``probe.number`` is the mean of a probe's number over rounds."""
    return QUANTITIES[name] if name in QUANTITIES else PaperQuantity(_probed(name), 3)


def of_partition(summary: Mapping[str, Any]) -> dict[str, float]:
    """What the data distribution is told by, of the statistics of a partition."""
    return {
        "classes": summary["classes_per_client"]["mean"],
        "distance": summary["label_distance"]["mean"],
        "gini": summary["size_gini"],
    }


def _final(run: Run, cell: PaperCell) -> float | None:
    return _percent(outcome(run, run.metric).final)


def _peak(run: Run, cell: PaperCell) -> float | None:
    return _percent(outcome(run, run.metric).best)


def _rounds_to_target(run: Run, cell: PaperCell) -> float | None:
    """Infinite, if the target is not reached."""
    if cell.target is None:
        return None
    return rounds_to(run, run.metric, cell.target) or math.inf


def _step(field: str) -> RunNumber:
    """A statistic of the first differences of test accuracy, in points."""
    return lambda run, cell: _percent(getattr(run_dynamics(run, run.metric), field))


def _probed(name: str) -> RunNumber:
    def number(run: Run, cell: PaperCell) -> float | None:
        known = [row[name] for row in run.probes if row.get(name) is not None]
        return statistics.fmean(known) if known else None

    return number


def _distributed(name: str) -> RunNumber:
    return lambda run, cell: of_partition(run.provenance["partition"])[name]


def _percent(value: float | None) -> float | None:
    return None if value is None else 100 * value


QUANTITIES: dict[str, PaperQuantity] = {
    "accuracy": PaperQuantity(_final, 2, points=True),
    "peak": PaperQuantity(_peak, 2, points=True),
    "rounds_to_target": PaperQuantity(_rounds_to_target, 0),
    "step_mean": PaperQuantity(_step("mean"), 3),
    "step_std": PaperQuantity(_step("std"), 2),
    "step_min": PaperQuantity(_step("worst"), 1),
    **{name: PaperQuantity(_distributed(name), 3) for name in ("classes", "distance", "gini")},
}
