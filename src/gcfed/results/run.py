"""A run directory, read again."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import UnionType
from typing import Any

from torch import Tensor, nn

from gcfed.config.identity import normalised
from gcfed.config.settings import Config, make
from gcfed.config.toml import read
from gcfed.core.measures import likeliest
from gcfed.core.metrics import Scale, named
from gcfed.display import html_table
from gcfed.errors import InputError
from gcfed.files import quoted
from gcfed.lock import is_locked
from gcfed.results import directory
from gcfed.results.directory import read_lines, saved_best
from gcfed.results.facts import facts, last_rounds, round_columns
from gcfed.results.fields import OF_FINISHED, OF_ROUND, OF_SUMMARY, fields_of
from gcfed.results.saved_model import SavedModel, read_about
from gcfed.results.seal import refuse_changed, warn_of_changes
from gcfed.results.summary import judged_by, summarize
from gcfed.simulation.lines import Record
from gcfed.values import shown, unwritable

RUN_FILES = (directory.CONFIG, directory.SUMMARY)
"""What makes a folder a run."""


@dataclass(frozen=True)
class Run:
    """A run directory, read when asked.  ``load_run("runs/x").predict(images)`` gives classes.

    With ``rounds``, as it was after so many, if it has more.
    """

    path: Path
    rounds: int | None = None

    def until(self, rounds: int) -> "Run":
        """The run as it was after so many rounds; with fewer, as it is."""
        done = self.num_rounds
        has_more = done > rounds or done == rounds < self.config.rounds  # it was killed there
        return Run(self.path, rounds) if has_more else self

    @cached_property
    def config(self) -> Config:
        config = make(read(self.path / directory.CONFIG), str(self.path / directory.CONFIG))
        return config if self.rounds is None else config.model_copy(update={"rounds": self.rounds})

    @cached_property
    def summary(self) -> dict[str, Any]:
        if self.rounds is not None:
            return {"status": "finished", **summarize(self.config, self.records, self.metric)}
        path = self.path / directory.SUMMARY
        if not path.exists():
            return directory.RUNNING
        try:
            found = _json(path, OF_SUMMARY)
            return _json(path, OF_FINISHED) if found["status"] == "finished" else found
        except InputError as error:
            raise InputError(f"{error}; gcfed resume {quoted(self.path)} makes it again") from None

    @property
    def status(self) -> str:
        """``finished``, ``failed``, ``stopped`` or ``running``; ``killed`` where nobody goes on."""
        status = str(self.summary["status"])
        return "killed" if status == "running" and not is_locked(self.path) else status

    @cached_property
    def metrics(self) -> dict[str, Scale]:
        """What was measured on its test set, what it is judged by first; older runs do not say."""
        if "metrics" in self.provenance:
            return {each["name"]: Scale(**each) for each in self.provenance["metrics"]}
        first, loss = judged_by(self.config, Run(self.path).summary), named("loss").scale("loss")
        return {first.name: first, loss.name: loss}

    @property
    def metric(self) -> Scale:
        """What its rounds are chosen by, and what it is compared by with others."""
        return next(iter(self.metrics.values()))

    @cached_property
    def provenance(self) -> dict[str, Any]:
        try:
            return _json(self.path / directory.PROVENANCE, {})
        except InputError as error:
            raise InputError(f"{error}; {self.remedy}") from None

    @property
    def remedy(self) -> str:
        """What to do where nobody knows any more what the run is made of."""
        return f"without it no run can go on: {self._again}"

    @property
    def _again(self) -> str:
        config = quoted(self.path / directory.CONFIG)
        return f"gcfed run {config} --out FOLDER does it again"

    @cached_property
    def identity(self) -> dict[str, Any]:
        """What its numbers depend on, as today's code would say it; empty if it is not recorded."""
        return normalised(self.provenance.get("identity"))

    @cached_property
    def records(self) -> list[Record]:
        """Its rounds; a torn last line is left out."""
        return self._lines(directory.ROUNDS, OF_ROUND)

    @cached_property
    def probes(self) -> list[Record]:
        """What probes measured in its rounds; empty where none was asked for."""
        return self._lines(directory.PROBES, {"round": int})

    @property
    def num_rounds(self) -> int:
        """How many rounds are written down, whether they can be read or not."""
        path = self.path / directory.ROUNDS
        found = path.read_bytes().count(b"\n") if path.exists() else 0
        return found if self.rounds is None else min(found, self.rounds)

    def num_evaluations(self, metric: str | None = None) -> int:
        """In how many rounds a metric has a value; by default what the run is judged by."""
        test = f"test_{metric or self.metric.name}"
        return sum(line.get(test) is not None for line in self.records)

    @cached_property
    def timings(self) -> list[dict[str, Any]]:
        """What rounds took: seconds, and where there are probes, those of each."""
        found = self._lines(directory.TIMINGS, {"seconds": int | float})
        for number, line in enumerate(found, start=1):
            probes = line.setdefault("probes", {})
            where = f"{self.path / directory.TIMINGS}, line {number}, probes"
            wanted = dict.fromkeys(probes if isinstance(probes, dict) else (), int | float)
            fields_of(probes, where, wanted)
        return found

    def _lines(self, name: str, wanted: Mapping[str, type | UnionType]) -> list[dict[str, Any]]:
        path = self.path / name
        try:
            found = enumerate(read_lines(path)[: self.rounds], start=1)
            return [fields_of(line, f"{path}, line {number}", wanted) for number, line in found]
        except InputError as error:
            raise InputError(f"{error}; {self._again}") from None

    @cached_property
    def model(self) -> nn.Module:
        """The trained module, on the host and in evaluation mode; it reads transformed examples.

        With ``buffers = "local"`` its buffers are those of the start: clients keep their own.
        """
        if self.rounds is not None:
            there = Run(self.path).num_rounds
            raise InputError(
                f"{self.path} holds the weights after {there} rounds, not {self.rounds}"
            )
        return self._saved.module(self.path / directory.WEIGHTS)

    @cached_property
    def best_model(self) -> nn.Module:
        """The module after the round that was best when the last checkpoint was written."""
        best = saved_best(self.path / directory.CHECKPOINTS)
        if best is None:
            raise InputError(f"{self.path} holds no best model: no round has been judged yet")
        refuse_changed(self, best.path)
        return self._saved.module(best.path)

    def logits(self, x: Any) -> Tensor:
        """What the model says of raw examples, arrays or tensors as its data set has them."""
        model = self.model
        return self._saved.logits(model, x)

    def predict(self, x: Any) -> Tensor:
        """The class of each of these raw examples; images are bytes to 255 or floats to 1.

        Where an example has no class, or one for each of its tokens, it is what the model says.  So
        it is where labels are numbers to the loss, whole or not, and where a model gives one number
        that is not known to be a logit.
        """
        found, loss = self.logits(x), self.config.loss
        is_class = self._saved.about["num_classes"] and found.ndim == 2 and loss != "mse"
        return likeliest(found) if is_class and (found.shape[1] > 1 or loss == "bce") else found

    @cached_property
    def _saved(self) -> SavedModel:
        path = self.path / directory.WEIGHTS
        if not path.is_file():
            raise InputError(f"{self.path} holds no weights yet: its run has not ended")
        refuse_changed(self, path)
        return SavedModel(self.path, self.config, read_about(path))

    def together(self) -> list["Run"]:
        """The runs whose clients were trained at once with this one's, itself among them."""
        names = self.provenance["runs_together"]
        paths = [Path(os.path.normpath(self.path / name)) for name in names]
        missing = [path for path in paths if not (path / directory.CONFIG).is_file()]
        if missing:
            others = " and ".join(map(str, missing))
            raise InputError(
                f"{self.path} was trained together with {others}, which is not there: "
                "its bits depend on those runs, so put them back beside it"
            )
        return list(map(Run, paths))

    def _repr_html_(self) -> str:
        columns = round_columns(self.metrics)
        tables = [
            html_table(("run", str(self.path)), facts(self)),
            html_table(columns, last_rounds(self.records, columns)),
        ]
        return "\n".join(tables)


def load_run(path: str | Path) -> Run:
    """The run in a folder; a warning says what was changed in it since it ended."""
    run = open_run(path)
    warn_of_changes([run])
    return run


def open_run(path: str | Path) -> Run:
    """The run in a folder, whether or not it was changed since it ended."""
    check_path(path)
    for name in RUN_FILES:
        if not (Path(path) / name).is_file():
            raise InputError(f"{path} is not a run: it holds no {name}")
    return Run(Path(path))


def check_path(path: Any) -> None:
    """Refuse what cannot be the path of a folder."""
    if not isinstance(path, str | Path) or unwritable(str(path)):
        raise InputError(f"runs are named by the path of a folder; not {shown(path)}")


def _json(path: Path, wanted: Mapping[str, type | UnionType]) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{path} cannot be read: {reason}") from None
    return fields_of(found, str(path), wanted)
