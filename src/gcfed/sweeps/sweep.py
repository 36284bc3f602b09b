"""A sweep: the cells of a grid, trained over devices, found again when asked for again."""

import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from gcfed.display import html_table
from gcfed.files import create_folder, write_json
from gcfed.lock import locked
from gcfed.results import directory
from gcfed.results.comparison import Comparison, compare
from gcfed.results.frame import frame
from gcfed.results.run import Run, open_run
from gcfed.runs.store import STORE, RunStore
from gcfed.sweeps.child import CellJob, ChildMessage, Ended, Note, RoundsDone
from gcfed.sweeps.devices import Allotment, allot, find_devices, recorded_allotment
from gcfed.sweeps.grid import GridSource, read_grid
from gcfed.sweeps.planning import CellPlan, plan
from gcfed.sweeps.pool import Tell, run_jobs
from gcfed.sweeps.ray_pool import ray_device, run_jobs_on_ray
from gcfed.sweeps.state import CellState, found, moment
from gcfed.sweeps.tuning import Selection, select

SWEEPS = "sweeps"

BUSY = "wait until it ends, and the same command goes on, or take another --store"
"""What to do where another process is at the same sweep, be it at other methods of it."""

CellObserver = Callable[[CellState], None]
"""Told of a cell when it starts, after every round, and when it is over."""


class Sweep:
    """The cells of a grid and the runs there are of them; `run` does those that are missing.

    Each cell's seeds are runs of the store, trained together, so what is done is found and what was
    interrupted goes on.  Beside them the sweep keeps one record, ``sweeps/NAME/sweep.json``.  With
    ``ray``, the address of a cluster, cells are its tasks, and the store is a folder that all its
    machines have.  If it is not ``quiet``, it shows how far it is with the plan of many cells.
    """

    def __init__(
        self,
        grid: GridSource,
        store: str | Path = STORE,
        devices: str | Sequence[str] | None = None,
        *,
        per_device: int = 1,
        name: str | None = None,
        plugins: Iterable[Path] = (),
        ray: str | None = None,
        quiet: bool = True,
    ) -> None:
        self.grid = read_grid(grid, name=name, plugins=plugins)
        self.store = RunStore(store)
        default = self.grid.cells[0].configs[0].device
        self._ray, self._per_device = ray, per_device
        if ray is None:
            self.devices = find_devices(devices, default, per_device)
        else:
            self.devices = [ray_device(devices, default, per_device)]
        self.plans: list[CellPlan] = plan(self.grid, self.store, self.devices[0], quiet=quiet)
        self.cells: list[CellState] = list(map(found, self.plans))
        self.path = self.store.folder / SWEEPS / self.grid.name / directory.SWEEP
        self.allotment: Allotment = self._allotment()
        self.started: float | None = None
        self.finished: float | None = None

    def run(self, observe: CellObserver | None = None) -> None:
        """Train what is missing.  Ctrl-C stops after the rounds in progress; `run` goes on."""
        create_folder(self.path.parent, exist_ok=True)

        def tell(number: int, device: str, message: ChildMessage) -> None:
            state = self.cells[number - 1]
            if isinstance(message, Note):
                warnings.warn(f"cell {number}: {message.text}", stacklevel=2)
                return
            found = [open_run(self.store.folder / name) for name in _named(message)]
            runs = [run.until(state.cell.rounds) for run in found]
            state.take(device, message, runs)
            if not isinstance(message, RoundsDone):
                self._write()
            if observe is not None:
                observe(state)

        with locked([self.path.parent], BUSY):
            self.started, self.finished = time.time(), None
            self._write()
            try:
                self._train(tell)
            except KeyboardInterrupt:  # a second one: processes stopped at once
                pass
            finally:
                for state in self.cells:
                    if state.status == "running":
                        state.status = "stopped"
                self.finished = time.time()
                self._write()

    @property
    def selected(self) -> list[Selection]:
        """With ``[tune]``: what was selected at each point of the grid, on validation examples."""
        return select(self.cells) if self.grid.is_tuned else []

    @property
    def runs(self) -> list[Run]:
        """The runs of cells that are over; with ``[tune]``, only of those that were selected."""
        over = [*self.of("done"), *self.of("diverged")]
        if self.grid.is_tuned:
            over = [selection.best for selection in self.selected if selection.best is not None]
        return [run for state in self.cells if state in over for run in state.runs]

    def compare(
        self,
        *,
        metric: str | None = None,
        target: float | None = None,
        baseline: str | None = None,
    ) -> Comparison:
        """Its runs side by side."""
        return compare(self.runs, metric=metric, target=target, baseline=baseline)

    def frame(self) -> Any:
        """A pandas DataFrame with a row a round of its runs."""
        return frame(self.runs)

    def of(self, status: str) -> list[CellState]:
        """The cells that are ``waiting``, ``done``, ``diverged``, ``failed`` or ``stopped``."""
        return [state for state in self.cells if state.status == status]

    @property
    def is_stopped(self) -> bool:
        """Whether some of it is left to do."""
        return bool(self.of("stopped") or self.of("waiting"))

    def _repr_html_(self) -> str:
        keys = list(self.cells[0].cell.settings)
        rows = [
            [
                str(state.cell.number),
                *(str(state.cell.settings[key]) for key in keys),
                state.seeds,
                state.status if state.reason is None else f"{state.status}: {state.reason}",
                state.metric.quantity(self._final(state)),
            ]
            for state in self.cells
        ]
        return html_table(("cell", *keys, "seeds", "status", self._score(self.cells[0])), rows)

    def to_json(self) -> dict[str, Any]:
        """The record."""
        return {
            "sweep": self.grid.name,
            "grid": self.grid.values,
            "devices": self.devices,
            "allotment": self.allotment._asdict(),
            "started": moment(self.started),
            "finished": moment(self.finished),
            "cells": [state.to_json() for state in self.cells],
            "selected": [selection.to_json() for selection in self.selected],
        }

    def _score(self, state: CellState) -> str:
        """What a cell is judged by."""
        return f"{'validation' if self.grid.is_tuned else 'test'}_{state.metric.name}"

    def _final(self, state: CellState) -> float | None:
        """The mean over the seeds of a cell that is done; the others have none."""
        found = [run.summary.get(self._score(state)) for run in state.runs]
        known = [score for score in found if score is not None]
        return statistics.fmean(known) if known and state.status == "done" else None

    def _allotment(self) -> Allotment:
        """What the processes of this sweep got before; if none of it was begun, equal parts."""
        begun = any(state.runs for state in self.cells)
        before = recorded_allotment(self.path) if begun else None
        alone = Allotment(1, 1) if self._ray is not None else None
        return before or alone or allot(self.devices, len(self.cells))

    def _train(self, tell: Tell) -> None:
        if self._ray is None:
            run_jobs(self._jobs(), self.devices, self.allotment, self._began_on(), tell)
        else:
            where = (self._ray, self.devices[0], self._per_device)
            run_jobs_on_ray(self._jobs(), *where, self.allotment, tell)

    def _write(self) -> None:
        write_json(self.path, self.to_json())

    def _jobs(self) -> list[CellJob]:
        todo = [s for s in self.cells if s.status not in ("done", "diverged")]
        return [
            CellJob(s.cell.number, s.cell.configs, self.store.folder, self._score(s)) for s in todo
        ]

    def _began_on(self) -> dict[int, str]:
        """The devices of cells of which there are runs."""
        return {s.cell.number: s.runs[0].config.device for s in self.cells if s.runs}


def _named(message: ChildMessage) -> list[str]:
    return message.runs if isinstance(message, Ended) else []


def sweep(
    grid: GridSource,
    store: str | Path = STORE,
    devices: str | Sequence[str] | None = None,
    observe: CellObserver | None = None,
    *,
    per_device: int = 1,
    name: str | None = None,
    ray: str | None = None,
) -> Sweep:
    """Train the cells of a grid, a TOML file or a dict, on these devices; what came out of them.

    Cells that are done are found, and those that were interrupted go on.  ``per_device`` cells
    share each device.  ``ray`` is the address of a Ray cluster that trains them in place of this
    machine; ``"local"`` starts Ray here.
    """
    made = Sweep(grid, store, devices, per_device=per_device, name=name, ray=ray)
    made.run(observe)
    return made
