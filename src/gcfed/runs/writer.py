"""A run while it is trained: where it stands, the files it writes, and how it ends."""

import json
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from gcfed.config.experiment import Experiment
from gcfed.core.server import Server
from gcfed.errors import DivergedError, InputError
from gcfed.files import append, write_atomically, write_json, write_text
from gcfed.results import directory
from gcfed.results.directory import read_lines
from gcfed.results.privacy import spent
from gcfed.results.seal import SEAL, make_seal, with_seal
from gcfed.results.summary import chosen_on, summarize
from gcfed.runs.checkpoint import Best, Checkpoint, Checkpoints
from gcfed.runs.disk_memory import delete_spilled, first_snapshot
from gcfed.runs.journal import Journal, Mark
from gcfed.runs.weights import about_model, module_of, save_module
from gcfed.simulation.lines import Record
from gcfed.simulation.snapshot import RoundResult, Snapshot


class Place(NamedTuple):
    """Where a run can go on from: its beginning, or a checkpoint."""

    checkpoint: Checkpoint | None
    snapshot: Snapshot
    lines: list[Record]


class Moment(NamedTuple):
    """When a round ended: by a clock that counts seconds, and by the calendar."""

    clock: float
    date: float

    @classmethod
    def now(cls) -> "Moment":
        return cls(time.perf_counter(), time.time())


class RunWriter:
    """Writes the files of one run while it is trained.

    Before the first round, `go` to a place: to `beginning`, or to one that `load` gives.
    """

    def __init__(self, experiment: Experiment, path: Path) -> None:
        self.experiment, self.path = experiment, path
        self._rounds = Journal(path / directory.ROUNDS)
        self._probes = Journal(path / directory.PROBES) if experiment.probes else None
        self._before = time.perf_counter()
        delete_spilled(path)
        self._start = first_snapshot(experiment, path)
        folder, seed = path / directory.CHECKPOINTS, experiment.config.seed
        self.checkpoints = Checkpoints(folder, seed, self._start.clients)
        self.snapshot, self.lines = self._start, list[Record]()
        self.ended: dict[str, Any] = {}
        self._best: Best | None = None
        self._best_score = float("-inf")
        self._num_saved = 0
        self._is_whole = False

    @property
    def beginning(self) -> Place:
        return Place(None, self._start, [])

    def describe(self, provenance: Mapping[str, Any]) -> None:
        """Say what the run is; the folder is a run once it has a summary too."""
        write_json(self.path / directory.PROVENANCE, with_seal(provenance))
        write_text(self.path / directory.CONFIG, self.experiment.config.to_toml())

    @property
    def diverged(self) -> bool:
        return bool(self.ended.get("diverged"))

    @property
    def is_through(self) -> bool:
        return len(self.lines) >= self.experiment.config.rounds

    def load(self, num_rounds: int) -> Place:
        """Read the place after so many rounds; a `DamagedError` if its files are not as written."""
        checkpoint = self.checkpoints.read(num_rounds)
        lines = self._rounds.read(checkpoint.lines)
        if self._probes is not None:
            self._probes.read(checkpoint.probes)  # are they what was written?
        snapshot = self.checkpoints.load(checkpoint, self.experiment.setup.device)
        return Place(checkpoint, snapshot, lines)

    def go(self, place: Place) -> None:
        """Go on from a place: delete what was written of later rounds."""
        checkpoint, self.snapshot, self.lines = place
        write_json(self.path / directory.SUMMARY, directory.RUNNING)  # breaks the seal, if any
        self._num_saved = 0 if checkpoint is None else checkpoint.rounds
        self.checkpoints.rewind(checkpoint, self.snapshot.clients)
        self._rounds.cut(Mark() if checkpoint is None else checkpoint.lines)
        if self._probes is not None:
            self._probes.cut(Mark() if checkpoint is None else checkpoint.probes)
        timings = self._timings()[: self._num_saved]
        text = "".join(f"{json.dumps(line)}\n" for line in timings)
        write_text(self.path / directory.TIMINGS, text)
        for part in self.path.glob(".*.part"):  # of a process that was killed
            part.unlink()
        self._before = time.perf_counter()
        for line in self.lines:
            self._is_best(line)

    def keep_chunk(self) -> None:
        """Train as many clients at once as in the round before, where memory was short."""
        for timing in self._timings()[-1:]:
            setup = replace(self.experiment.setup, chunk=timing["chunk"])
            self.experiment = replace(self.experiment, setup=setup)

    def diverge(self, error: DivergedError) -> None:
        """End a run whose numbers are no longer finite; the round it happened in has no line."""
        self.end("failed", error.reason, diverged=True)
        self.finish()

    def add(self, outcome: RoundResult, line: Record, ended: Moment) -> None:
        """Write a round down: its probes' row, its line, and apart from both its timing."""
        seconds: dict[str, float] = {}
        if self._probes is not None:
            row, seconds = self.experiment.measure(self.snapshot.server, outcome)
            self._probes.append(row)
            ended = Moment.now()
        append(self.path / directory.TIMINGS, self._timing(outcome, ended, seconds))
        self._rounds.append(line)
        self.lines.append(line)
        self.snapshot = Snapshot(outcome.round, outcome.server, outcome.clients)
        if self._is_best(line):
            self._best = Best(outcome.round, partial(self._save_model, outcome.server))

    def _timing(self, outcome: RoundResult, ended: Moment, probes: Mapping[str, float]) -> bytes:
        """A line of timings: what differs by machine, seconds and how many clients fit at once.

        ``probes`` are the seconds of each, which those of the round include.
        """
        seconds, self._before = ended.clock - self._before, ended.clock
        timing: dict[str, Any] = {"round": outcome.round, "seconds": round(seconds, 6)}
        timing |= {"at": round(ended.date, 3), "chunk": outcome.chunk}
        if probes:
            timing["probes"] = {name: round(value, 6) for name, value in probes.items()}
        return json.dumps(timing).encode() + b"\n"

    def _timings(self) -> list[dict[str, Any]]:
        """The timings; empty if they are damaged, since only last bits depend on them."""
        try:
            return read_lines(self.path / directory.TIMINGS)
        except InputError:
            return []

    def save(self) -> None:
        """Write a checkpoint, unless this round has one or the run is over."""
        num_rounds = self.snapshot.round + 1
        if self.diverged or num_rounds == self._num_saved:
            return
        probes = Mark() if self._probes is None else self._probes.mark()
        self.checkpoints.save(self.snapshot, self._best, self._rounds.mark(), probes)
        self._num_saved = num_rounds

    def end(self, status: str, reason: str, *, diverged: bool = False) -> None:
        """Say how a run ended, and in which round; the first reason counts."""
        if not self.ended:
            self.ended = {"status": status, "reason": reason, "round": len(self.lines)}
            self.ended |= {"diverged": True} if diverged else {}
            self._is_whole = False

    def finish(self) -> dict[str, Any]:
        """Write a last checkpoint, the weights and the sealed summary, which is the result."""
        if all(each.num_lines == self.snapshot.round + 1 for each in self._journals):
            self.save()
            weights = partial(self._save_model, self.snapshot.server)
            write_atomically(self.path / directory.WEIGHTS, weights)
            self._is_whole = True
        return self.summarize()

    @property
    def _journals(self) -> list[Journal]:
        """The files with a line for each round; one that was cut short is not in all of them."""
        return [self._rounds, *([] if self._probes is None else [self._probes])]

    def close(self) -> None:
        """Delete the files, and end the processes, that are needed while the run goes on."""
        delete_spilled(self.path)
        self.experiment.close()

    def summarize(self) -> dict[str, Any]:
        """Write the summary, with a seal if all that belongs to the run is on the disk."""
        ended = self.ended or {"status": "finished"}
        made = self.experiment
        summary = {**ended, **summarize(made.config, self.lines, made.metric)}
        if privacy := spent(made.setup.algorithm, made.config, len(self.lines)):
            summary |= privacy._asdict()
        if self._is_whole:
            written = {journal.path.name: journal.mark().sha256 for journal in self._journals}
            summary[SEAL] = make_seal(self.path, summary, written)
        write_json(self.path / directory.SUMMARY, summary)
        return summary

    def _is_best(self, line: Record) -> bool:
        metric = self.experiment.metric
        value = line[f"{chosen_on(self.experiment.config)}_{metric.name}"]
        if value is None or line[f"test_{metric.name}"] is None:
            return False
        if metric.sign * value <= self._best_score:
            return False
        self._best_score = metric.sign * value
        return True

    def _save_model(self, server: Server, path: os.PathLike[str]) -> None:
        module = module_of(self.experiment.setup, server)
        save_module(Path(path), module, about_model(self.experiment))
