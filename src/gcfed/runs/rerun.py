"""A recorded run beside the same run done again: what differs, in words."""

import copy
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gcfed.config.experiment import Experiment
from gcfed.config.materials import load_weights
from gcfed.core.server import Server
from gcfed.errors import DivergedError, InputError
from gcfed.results import directory
from gcfed.results.directory import saved_best
from gcfed.results.run import Run
from gcfed.results.saved_model import read_about
from gcfed.results.seal import is_sealed
from gcfed.results.summary import summarize
from gcfed.runs.weights import about_model, module_of
from gcfed.simulation.lines import Record, record, weights_sha256
from gcfed.simulation.snapshot import RoundResult, start


class Rerun:
    """A run that is done again, round after round, and compared with what is recorded of it.

    ``rounds`` are compared so far; ``differs`` is the first of them that came out otherwise.
    """

    def __init__(self, run: Run, experiment: Experiment) -> None:
        self.run, self.experiment = run, experiment
        self.rounds = 0
        self.differs: int | None = None
        self.recorded = num_recorded(run)
        self._server = self._best_server = start(experiment.setup).server
        self._best = saved_best(run.path / directory.CHECKPOINTS)
        self._names: list[str] = []

    def compare(self, outcome: RoundResult | DivergedError) -> None:
        """Compare the next round with its line and its probes' row."""
        t, lines = self.rounds, self.run.records
        if isinstance(outcome, DivergedError) or t == len(lines):
            same = isinstance(outcome, DivergedError) and t == len(lines)
            names = [] if same else ["whether it diverges"]
        else:
            names = self._differing(lines[t], outcome)
        self.rounds = t + 1
        if names and self.differs is None:
            self.differs, self._names = t, names
        if isinstance(outcome, RoundResult) and t < len(lines):
            self._server = outcome.server
            if self._best is not None and self._best.round == t:
                self._best_server = outcome.server

    def conclude(self, num_rounds: int) -> list[str]:
        """What is not as it was recorded, once ``num_rounds`` were asked for."""
        if self.differs is None and self.rounds < min(num_rounds, self.recorded):
            self.differs, self._names = self.rounds, ["whether there is such a round"]
        if self.differs is not None:
            names = ", ".join(self._names)
            otherwise = "comes out otherwise than it was recorded"
            return [f"round {self.differs + 1} {otherwise}: {names}"]
        found = _summary_differences(self.run)
        if self.rounds == self.recorded and _is_whole(self.run):
            path = self.run.path / directory.WEIGHTS
            found += _probes_left(self.run) + self._model_differences(path, self._server)
            found += self._best_differences()
        return found

    def _differing(self, line: Record, outcome: RoundResult) -> list[str]:
        made, t = self.experiment, outcome.round
        due = line["tested"] is not None or made.is_due(t)
        again = record(made.setup, outcome, made.tests, due=due)
        return [*_differing(line, again), *self._probes_differing(outcome)]

    def _probes_differing(self, outcome: RoundResult) -> list[str]:
        """What probes measure otherwise; a run that was extended had this as its last round."""
        made, t = self.experiment, outcome.round
        if t >= len(self.run.probes):
            return [f"its row in {directory.PROBES}"] if made.probes else []
        names = self._measured_otherwise(made, outcome)
        if names and t + 1 in {
            each["after_rounds"] for each in self.run.provenance.get("resumed", [])
        }:
            schedule = replace(made.setup.schedule, rounds=t + 1)
            ended = replace(made, setup=replace(made.setup, schedule=schedule))
            names = self._measured_otherwise(ended, outcome)
        return names

    def _measured_otherwise(self, made: Experiment, outcome: RoundResult) -> list[str]:
        measured = made.measure(self._server, outcome).row if made.probes else {}
        return _differing(self.run.probes[outcome.round], measured)

    def _best_differences(self) -> list[str]:
        """What the model of the best round is otherwise than it should be, if it is still there."""
        if self._best is None or not self._best.path.is_file():
            return []
        lines = self.run.records[: self._best.rounds]
        best = summarize(self.run.config, lines, self.run.metric)["best_round"]
        if best == self._best.round:
            return self._model_differences(self._best.path, self._best_server)
        return [f"{self._best.path.name} is not the model of the best round"]

    def _model_differences(self, path: Path, server: Server) -> list[str]:
        """What a file of weights holds otherwise than the run came to."""
        if not path.is_file():
            return [f"{path.name} is missing"]
        module = module_of(self.experiment.setup, server)
        held = copy.deepcopy(module)
        try:
            load_weights(held, path)
            about = read_about(path)
        except InputError as error:
            return [str(error)]
        found = []
        if weights_sha256(held.state_dict()) != weights_sha256(module.state_dict()):
            found.append(f"the weights in {path.name} are not those that the run came to")
        # the model's text may have got another argument since
        again = {**about_model(self.experiment), "model": about.get("model")}
        if names := _differing(about, again):
            found.append(f"{path.name} says otherwise of its model: {', '.join(names)}")
        return found


def num_recorded(run: Run) -> int:
    """How many rounds are recorded, with the one that diverged, which has no line."""
    return len(run.records) + ("diverged" in run.summary)


def _differing(recorded: Mapping[str, Any], again: Mapping[str, Any]) -> list[str]:
    """The names of what is recorded and came out otherwise; what was not recorded is none."""
    return [
        name
        for name, value in recorded.items()
        if name not in again or json.dumps(value) != json.dumps(again[name])
    ]


def _summary_differences(run: Run) -> list[str]:
    """What the summary says otherwise than the lines do."""
    if not _is_whole(run):
        return []
    summary, num_lines = run.summary, len(run.records)
    through = "finished" if num_lines >= run.config.rounds else "stopped"
    status = {"status": "failed" if "diverged" in summary else through, "round": num_lines}
    again = {**status, **summarize(run.config, run.records, run.metric)}
    recorded = {name: summary[name] for name in again if name in summary}
    return [
        f"{directory.SUMMARY} says {name} = {recorded[name]!r}, and its rounds come to "
        f"{again[name]!r}"
        for name in _differing(recorded, again)
    ]


def _probes_left(run: Run) -> list[str]:
    rows, lines = len(run.probes), len(run.records)
    return [f"{directory.PROBES} has {rows} rows for {lines} rounds"] if rows > lines else []


def _is_whole(run: Run) -> bool:
    """Whether a run ended by itself; what it was killed in the midst of is nobody's fault."""
    return is_sealed(run) or run.summary["status"] == "finished"
