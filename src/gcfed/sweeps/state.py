"""How far a cell is, and how it ended."""

import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from gcfed.core.metrics import Scale
from gcfed.results.run import Run
from gcfed.sweeps.child import ChildMessage, Ended, Note, Ready, RoundsDone, Started
from gcfed.sweeps.grid import Cell
from gcfed.sweeps.planning import CellPlan

CellStatus = Literal["waiting", "running", "done", "diverged", "failed", "stopped"]

OVER: tuple[CellStatus, ...] = ("done", "diverged", "failed")
"""No more comes of these, unless the sweep is started again and a failed one is tried again."""


@dataclass
class CellState:
    """A cell on its way.

    ``done`` and ``scores`` are its seeds' rounds and last values of its metric, by their place;
    ``seen`` is how many rounds of seeds this process saw, the first of them at ``first_round``.
    """

    cell: Cell
    metric: Scale
    status: CellStatus = "waiting"
    reason: str | None = None
    trace: str | None = None
    device: str | None = None
    runs: list[Run] = field(default_factory=list)
    done: dict[int, int] = field(default_factory=dict)
    scores: dict[int, float] = field(default_factory=dict)
    seen: int = 0
    started: float | None = None
    finished: float | None = None
    first_round: float | None = None

    @property
    def rounds(self) -> int:
        """The rounds it has, the mean over its seeds."""
        total = sum(min(n, self.cell.rounds) for n in self.done.values())
        return total // len(self.cell.configs)

    @property
    def score(self) -> float | None:
        """The last value of its metric, the mean over the seeds that have one."""
        return sum(self.scores.values()) / len(self.scores) if self.scores else None

    @property
    def seeds(self) -> str:
        """How many seeds it has; ``2 of 3`` where one has not finished."""
        finished = sum(run.summary["status"] == "finished" for run in self.runs)
        total = len(self.cell.configs)
        return str(total) if finished == total else f"{finished} of {total}"

    @property
    def left(self) -> float | None:
        """The seconds it has to go, by the rounds seen since the first."""
        num_seeds = len(self.cell.configs)
        if self.first_round is None or self.seen <= num_seeds or self.status != "running":
            return None
        pace = (time.time() - self.first_round) / (self.seen - num_seeds)
        return pace * (num_seeds * self.cell.rounds - sum(self.done.values()))

    @property
    def seconds(self) -> float | None:
        if self.started is None or self.finished is None:
            return None
        return self.finished - self.started

    def take(self, device: str, message: ChildMessage, runs: list[Run]) -> None:
        """Become what a message says; ``runs`` are those that it names."""
        match message:
            case Started():
                self.status, self.device, self.started = "running", device, time.time()
                self.reason = self.trace = self.finished = None
            case RoundsDone(done, scores):
                self.seen += len(done)
                self.first_round = self.first_round or time.time()
                self.done |= done
                self.scores |= scores
            case Ended(_, reason, trace):
                self.finished, self.trace = time.time(), trace
                self.runs = runs or self.runs
                self.status = "failed" if reason else status_of(runs)
                self.reason = reason or _why(runs)
            case Ready() | Note():
                pass

    def to_json(self) -> dict[str, Any]:
        line = {
            "cell": self.cell.number,
            "settings": self.cell.settings,
            "status": self.status,
            "reason": self.reason,
            "runs": [run.path.name for run in self.runs],
            "device": self.device,
            "engine": self.runs[0].provenance.get("engine") if self.runs else None,
            "started": moment(self.started),
            "finished": moment(self.finished),
        }
        return line if self.trace is None else {**line, "traceback": self.trace}


def found(plan: CellPlan) -> CellState:
    """A cell as a sweep finds it: over, if its runs are."""
    runs = [run for run in plan.runs if run is not None]
    if any(plan.left):
        return CellState(plan.cell, plan.metric, runs=runs)
    state = CellState(plan.cell, plan.metric, status_of(runs), _why(runs), runs=runs)
    state.device = runs[0].config.device
    if timings := runs[0].timings:
        state.started = timings[0]["at"] - timings[0]["seconds"]
        state.finished = timings[-1]["at"]
    return state


def status_of(runs: list[Run]) -> CellStatus:
    """What runs that were trained together come to; without any, they were stopped before."""
    statuses = {run.summary["status"] for run in runs}
    if not runs or "stopped" in statuses:
        return "stopped"
    return "diverged" if "failed" in statuses else "done"


def _why(runs: list[Run]) -> str | None:
    """The reasons of runs that did not finish."""
    reasons = [
        f"seed {run.config.seed}: {run.summary['reason']} in round {run.summary['round'] + 1}"
        for run in runs
        if "reason" in run.summary
    ]
    return "; ".join(reasons) or None


def moment(seconds: float | None) -> str | None:
    """A time as a record says it."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
