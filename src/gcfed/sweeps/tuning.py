"""What is selected among candidates: by their metric on validation examples, and nothing else."""

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gcfed.core.metrics import Scale
from gcfed.sweeps.grid import describe
from gcfed.sweeps.state import OVER, CellState


@dataclass(frozen=True)
class Selection:
    """The candidates of one point of a grid, and the best of them.

    A candidate's score is the mean over seeds of its final value on validation examples, that is
    of the last ten evaluations; one of which a seed did not finish has none.  ``best`` is None
    until all are over, and if none has a score.  The first of equals is the best.
    """

    point: dict[str, Any]
    candidates: tuple[CellState, ...]
    scores: tuple[float | None, ...]

    @property
    def metric(self) -> Scale:
        return self.candidates[0].metric

    @property
    def best(self) -> CellState | None:
        if any(state.status not in OVER for state in self.candidates):
            return None
        scored = [
            (score, state)
            for state, score in zip(self.candidates, self.scores, strict=True)
            if score is not None
        ]
        sign = self.metric.sign
        return max(scored, key=lambda pair: sign * pair[0])[1] if scored else None

    @property
    def score(self) -> float | None:
        """The score of the best."""
        return None if self.best is None else self.scores[self.candidates.index(self.best)]

    @property
    def name(self) -> str:
        return describe(self.point) or "all"

    def to_json(self) -> dict[str, Any]:
        best, name = self.best, f"validation_{self.metric.name}"
        return {
            "settings": self.point,
            "selected": None if best is None else best.cell.candidate,
            "cell": None if best is None else best.cell.number,
            name: self.score,
            "candidates": [
                {"cell": state.cell.number, **state.cell.candidate, name: score}
                for state, score in zip(self.candidates, self.scores, strict=True)
            ],
        }


def select(states: Sequence[CellState]) -> list[Selection]:
    """What is selected at each point of a grid."""
    points: dict[str, list[CellState]] = {}
    for state in states:
        points.setdefault(json.dumps(state.cell.point), []).append(state)
    return [
        Selection(found[0].cell.point, tuple(found), tuple(map(_score, found)))
        for found in points.values()
    ]


def _score(state: CellState) -> float | None:
    """The mean over seeds, all of which must have finished."""
    if state.status != "done":
        return None
    name = f"validation_{state.metric.name}"
    values = [run.summary[name] for run in state.runs]
    return None if None in values else statistics.fmean(values)
