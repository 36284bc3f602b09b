"""A run on its way: where it stands, its lines, and how it ends."""

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from gcfed.config.build import Experiment
from gcfed.errors import DivergedError
from gcfed.files import write_atomically
from gcfed.results import directory
from gcfed.results.summary import chosen_on, summarize
from gcfed.runs.checkpoint import Best, Checkpoint, Checkpoints
from gcfed.runs.disk_memory import delete_spilled, first_snapshot
from gcfed.runs.folder import RunFolder, about_model, save_module
from gcfed.runs.journal import Mark
from gcfed.simulation.evaluation import Record
from gcfed.simulation.snapshot import RoundResult, Server, Snapshot


class Place(NamedTuple):
    """Somewhere a run can go on from."""

    checkpoint: Checkpoint | None
    snapshot: Snapshot
    lines: list[Record]


class RunWriter:
    """Keeps a run as it goes; to begin with, go to a place: `beginning`, or one `load` gives."""

    def __init__(self, experiment: Experiment, path: Path) -> None:
        self.experiment, self.path = experiment, path
        self.directory = RunFolder(path)
        delete_spilled(path)
        self._start = first_snapshot(experiment, path)
        folder, seed = path / directory.CHECKPOINTS, experiment.config.seed
        self.checkpoints = Checkpoints(folder, seed, self._start.clients)
        self.snapshot, self.lines = self._start, list[Record]()
        self.ended: dict[str, Any] = {}
        self._best: Best | None = None
        self._best_score = float("-inf")
        self._num_saved = 0

    @property
    def beginning(self) -> Place:
        return Place(None, self._start, [])

    @property
    def diverged(self) -> bool:
        return bool(self.ended.get("diverged"))

    @property
    def is_through(self) -> bool:
        return len(self.lines) >= self.experiment.config.rounds

    def load(self, num_rounds: int) -> Place:
        """The place after so many rounds, if it was saved."""
        checkpoint = self.checkpoints.read(num_rounds)
        lines = self.directory.rounds.read(checkpoint.lines)
        snapshot = self.checkpoints.load(checkpoint, self.experiment.setup.device)
        return Place(checkpoint, snapshot, lines)

    def go(self, place: Place) -> None:
        """Stand there, and forget what was written of later rounds."""
        checkpoint, self.snapshot, self.lines = place
        self._num_saved = 0 if checkpoint is None else checkpoint.rounds
        self.checkpoints.rewind(checkpoint, self.snapshot.clients)
        mark = Mark() if checkpoint is None else checkpoint.lines
        self.directory.rewind(mark, self._num_saved)
        for line in self.lines:
            self._is_best(line)

    def keep_chunk(self) -> None:
        """Train as many clients at once as in the round before, where memory was short."""
        for timing in self.directory.timings()[-1:]:
            setup = replace(self.experiment.setup, chunk=timing["chunk"])
            self.experiment = replace(self.experiment, setup=setup)

    def diverge(self, error: DivergedError) -> None:
        """End here: the round that this happened in has no line."""
        self.end("failed", error.reason, diverged=True)
        self.finish()

    def add(self, outcome: RoundResult, line: Record) -> None:
        """Write a round down."""
        self.directory.append(line, outcome.chunk)
        self.lines.append(line)
        self.snapshot = Snapshot(outcome.round, outcome.server, outcome.clients)
        if self._is_best(line):
            self._best = Best(outcome.round, partial(self._save_model, outcome.server))

    def save(self) -> None:
        """Write a checkpoint, unless this round has one or the run is over."""
        num_rounds = self.snapshot.round + 1
        if self.diverged or num_rounds == self._num_saved:
            return
        self.checkpoints.save(self.snapshot, self.directory.rounds.mark(), self._best)
        self._num_saved = num_rounds

    def end(self, status: str, reason: str, *, diverged: bool = False) -> None:
        """Say how a run ended, and in which round; the first reason counts."""
        if not self.ended:
            self.ended = {"status": status, "reason": reason, "round": len(self.lines)}
            self.ended |= {"diverged": True} if diverged else {}

    def finish(self) -> dict[str, Any]:
        """Write a last checkpoint, the weights and the summary, which is the result."""
        if self.directory.rounds.num_lines == self.snapshot.round + 1:  # or was it cut short?
            self.save()
            weights = partial(self._save_model, self.snapshot.server)
            write_atomically(self.path / directory.WEIGHTS, weights)
        return self.summarize()

    def close(self) -> None:
        """Let go of what is only needed while the run goes on."""
        delete_spilled(self.path)

    def summarize(self) -> dict[str, Any]:
        ended = self.ended or {"status": "finished"}
        made = self.experiment
        summary = {**ended, **summarize(made.config, self.lines, made.metric)}
        self.directory.summarize(summary)
        return summary

    def _is_best(self, line: Record) -> bool:
        metric = self.experiment.metric
        value = line[f"{chosen_on(self.experiment.config)}_{metric.name}"]
        if value is None or metric.sign * value <= self._best_score:
            return False
        self._best_score = metric.sign * value
        return True

    def _save_model(self, server: Server, path: os.PathLike[str]) -> None:
        module = self.experiment.setup.model.module(server.params, server.buffers)
        save_module(Path(path), module, about_model(self.experiment))
