"""What the charts of a report show, as values that a page can hold."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gcfed.core.metrics import Scale
from gcfed.results.bands import (
    DECILES,
    Lines,
    Panels,
    band,
    deciles_by_group,
    rounds_of,
    scale_of,
    tested,
    window_for,
)
from gcfed.results.styles import styles

MOST_NUMBERS = 400_000
"""In all charts together; a page with so many stays below ten million bytes."""

FEWEST_POINTS, MOST_POINTS = 10, 200
"""Of a curve."""

DIGITS = 5
"""That are kept of a number: more than a screen can show."""

OF_ROUNDS = ("train_loss", "update_norm")
"""What every round has, beside the metrics."""

Json = dict[str, Any]

RoundLists = dict[tuple[int, ...], int]
"""The lists of rounds on which curves stand, and the place of each; many curves share one."""


@dataclass(frozen=True)
class Measure:
    """A number of a round: what an axis says of it, and what it is multiplied by."""

    name: str
    label: str
    factor: int


def round_measures(panels: Panels, metrics: Mapping[str, Scale]) -> list[Measure]:
    """What rounds are judged by, and what else each of them has."""
    names = [f"test_{name}" for name in metrics]
    found = [name for name in (*names, *OF_ROUNDS) if _is_there(panels, name)]
    return [_measure(name, metrics) for name in found]


def probe_measures(panels: Panels) -> list[Measure]:
    """What probes measured, a layer's number only where there is none of the whole model."""
    found = dict.fromkeys(name for line in _lines(panels) for name in line if "." in name)
    shown = [
        name
        for name in found
        if _whole(name) not in found.keys() - {name} and not name.startswith(f"{DECILES}.")
    ]
    return [_measure(name, {}) for name in shown if _is_there(panels, name)]


def most_points(panels: Panels, num_measures: int) -> int:
    """How many points a curve may have, so that all of them fit into a page."""
    curves = [runs for groups in panels.values() for runs in groups.values()]
    numbers_a_point = sum(4 if len(runs) > 1 else 2 for runs in curves) * num_measures
    return min(max(MOST_NUMBERS // max(numbers_a_point, 1), FEWEST_POINTS), MOST_POINTS)


def chart(
    groups: Mapping[str, Lines], measure: Measure, points: int, rounds: RoundLists
) -> Json | None:
    """The curves of a number, by method, as measured and smoothed; None if no run has it."""
    there = {
        label: found for label, runs in groups.items() if (found := tested(runs, measure.name))
    }
    if not there:
        return None
    window = window_for(there.values())
    curves = {label: _curve(runs, measure, window, points, rounds) for label, runs in there.items()}
    return {"name": measure.name, "label": measure.label, "window": window, "curves": curves}


def deciles_chart(groups: Mapping[str, Lines], rounds: RoundLists) -> Json | None:
    """What each tenth of the clients does not exceed in accuracy, where it was last measured."""
    measure = Measure(DECILES, "accuracy of these or less (%)", 100)
    found = chart(deciles_by_group(groups), measure, 9, rounds)
    return None if found is None else {**found, "window": 1}


def looks(panels: Panels) -> dict[str, Json]:
    """The colour, the marker and the line of every method, the same as in figures."""
    labels = dict.fromkeys(label for groups in panels.values() for label in groups)
    return {
        label: {"colour": style.colour, "marker": style.marker, "line": style.line}
        for label, style in styles(labels).items()
    }


def thinned(length: int, points: int) -> list[int]:
    """Places in a list of this length, evenly spread, the first and the last among them.

    >>> thinned(5, 10), thinned(100, 4)
    ([0, 1, 2, 3, 4], [0, 33, 66, 99])
    """
    if length <= points:
        return list(range(length))
    return [round(i * (length - 1) / (points - 1)) for i in range(points)]


def _curve(runs: Lines, measure: Measure, window: int, points: int, rounds: RoundLists) -> Json:
    wanted = rounds_of(runs)
    at = [wanted[place] for place in thinned(len(wanted), points)]
    measured = band(runs, measure.name, 1, at)
    smooth = measured if window == 1 else band(runs, measure.name, window, at)
    found: Json = {"rounds": rounds.setdefault(measured.rounds, len(rounds)), "runs": len(runs)}
    found["mean"] = _numbers(measure.factor * measured.mean)
    if window > 1:
        found["smooth"] = _numbers(measure.factor * smooth.mean)
    if len(runs) > 1:
        found["std"] = _numbers(measure.factor * measured.std)
        if window > 1:
            found["smooth_std"] = _numbers(measure.factor * smooth.std)
    return found


def _numbers(values: np.ndarray) -> list[float | None]:
    """Values as JSON holds them, which knows finite numbers alone."""
    known = (value if math.isfinite(value) else None for value in values.tolist())
    return [None if value is None else float(f"{value:.{DIGITS}g}") for value in known]


def _measure(name: str, metrics: Mapping[str, Scale]) -> Measure:
    if "." in name:
        return Measure(name, name.replace("_", " "), 1)
    scale = scale_of(name, metrics)
    return Measure(name, name.replace("_", " ") + scale.unit, 100 if scale.percent else 1)


def _whole(name: str) -> str:
    """What a number of a layer, such as ``drift.norm.fc``, is called for the whole model."""
    return ".".join(name.split(".")[:2])


def _is_there(panels: Panels, name: str) -> bool:
    return any(line.get(name) is not None for line in _lines(panels))


def _lines(panels: Panels) -> Iterator[Mapping[str, Any]]:
    runs: Sequence[Lines] = [lines for groups in panels.values() for lines in groups.values()]
    return (line for lines in runs for run in lines for line in run)
