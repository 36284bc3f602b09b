"""A sweep looked at before anything is trained: every cell is built once, and looked up."""

import warnings
from dataclasses import dataclass, replace
from typing import Any

from gcfed.config.build import TRIAL, build
from gcfed.config.experiment import Experiment
from gcfed.config.identity import digest, identity
from gcfed.core.metrics import Scale
from gcfed.engines import needs_cuda
from gcfed.errors import InputError
from gcfed.progress import progress
from gcfed.results.run import Run
from gcfed.runs.resume import is_done
from gcfed.runs.store import RunStore
from gcfed.runs.trackers import require
from gcfed.sweeps.cost import RecordedPace, RoundCost, bytes_a_client, cost, forward_flops
from gcfed.sweeps.grid import Cell, Grid

MANY = 20
"""The number of cells from which on it is shown how far planning is."""


@dataclass(frozen=True)
class CellPlan:
    """A cell, what it is judged by, the runs of its seeds, and what a round of one seed costs."""

    cell: Cell
    metric: Scale
    runs: tuple[Run | None, ...]
    cost: RoundCost
    seconds: float | None

    @property
    def left(self) -> list[int]:
        """How many rounds each seed has to go."""
        return [
            config.rounds if run is None else _left(run, config.rounds)
            for config, run in zip(self.cell.configs, self.runs, strict=True)
        ]

    @property
    def status(self) -> str:
        """What a dry run says of it."""
        rounds = self.cell.rounds * len(self.runs)
        if not any(self.left):
            return "done"
        return "new" if not any(self.runs) else f"{rounds - sum(self.left)} of {rounds} rounds"

    def to_json(self) -> dict[str, Any]:
        """What is left of it, all seeds together."""
        left = sum(self.left)
        flops = None if self.cost.flops is None else left * self.cost.flops
        return {
            "cell": self.cell.number,
            "settings": self.cell.settings,
            "status": self.status,
            "rounds": left,
            "examples": round(left * self.cost.examples),
            "flops": flops,
            "bytes": round(left * self.cost.bytes),
            "seconds": None if self.seconds is None else left * self.seconds,
        }


def plan(grid: Grid, store: RunStore, device: str, *, quiet: bool = True) -> list[CellPlan]:
    """Look at every cell of a grid; what cannot be built, or is one run twice, is an error.

    A cell is built on the host with its first seed: the others differ in what is drawn.  Data are
    read once for cells of the same model, and a model is made and tried once for cells in a row
    that differ in other settings.  If it is not to be ``quiet``, how far it is with many cells is
    shown.
    """
    builder, pace, seen = Builder(), RecordedPace(store.runs()), dict[str, Cell]()

    def look_at(cell: Cell) -> CellPlan:
        where = f"{grid.where}: cell {cell.number} ({cell.name})"
        experiment = builder.build(cell, where, device)
        hashes = [builder.sha256(experiment, config.seed) for config in cell.configs]
        other = seen.setdefault(hashes[0], cell)
        if other is not cell:
            raise InputError(
                f"{where} is the same run as cell {other.number} ({other.name}): they differ in "
                "nothing that changes its numbers"
            )
        seeds = [config.seed for config in cell.configs]
        there = map(store.find_sha256, hashes, seeds)
        runs = tuple(None if run is None else run.until(cell.rounds) for run in there)
        seconds = pace.seconds(experiment, device)
        return CellPlan(cell, experiment.metric, runs, builder.cost(experiment), seconds)

    plans: list[CellPlan] = []
    few = len(grid.cells) < MANY
    with progress("planning", len(grid.cells), unit="cell", quiet=quiet or few) as tick:
        for cell in grid.cells:
            plans.append(look_at(cell))
            tick(len(plans), "")
    return plans


class Builder:
    """Builds cells; what several of them share is read, hashed and counted once."""

    def __init__(self) -> None:
        self._first: dict[object, Experiment] = {}
        self._tried: dict[object, tuple[object, Experiment]] = {}  # the last, for each of `_first`
        self._data_sha256: dict[object, str] = {}
        self._forward: dict[object, int | None] = {}
        self._bytes: dict[object, int] = {}

    def build(self, cell: Cell, where: str, device: str) -> Experiment:
        config = cell.configs[0].model_copy(update={"device": "cpu"})
        alike = (config.dataset, config.data_dir, config.model, config.plugins)
        trial = tuple(getattr(config, name) for name in TRIAL)
        try:
            if device != "cpu" and needs_cuda(config.engine):
                config = config.model_copy(update={"engine": "auto"})  # here nothing is trained
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # they come again when the cell is trained
                require(config.track)
                before, tried = self._tried.get(alike, (None, None))
                tried = tried if before == trial else None
                experiment = build(config, beside=self._first.get(alike), tried=tried)
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
        self._first.setdefault(alike, experiment)
        self._tried[alike] = (trial, experiment)
        return experiment

    def cost(self, experiment: Experiment) -> RoundCost:
        config = experiment.config
        model = (config.model, config.dataset)
        if model not in self._forward:
            self._forward[model] = forward_flops(experiment)
        sent = (*model, config.algorithm, config.buffers)
        if sent not in self._bytes:
            self._bytes[sent] = bytes_a_client(experiment)
        return cost(experiment, self._forward[model], self._bytes[sent])

    def sha256(self, experiment: Experiment, seed: int) -> str:
        """The identity of an experiment with another seed, for which nothing need be built."""
        config = experiment.config.model_copy(update={"seed": seed})
        data = (config.dataset, config.data_dir)
        if data not in self._data_sha256:
            self._data_sha256[data] = experiment.data.sha256()
        return digest(identity(replace(experiment, config=config), self._data_sha256[data]))


def _left(run: Run, rounds: int) -> int:
    return 0 if is_done(run, rounds) else max(rounds - run.num_rounds, 0)
