"""A run directory, read again."""

import json
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import UnionType
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from gcfed.config.identity import normalised
from gcfed.config.materials import load_weights, make_module, read_dataset
from gcfed.config.plugins import load_plugins
from gcfed.config.settings import Config, make, read
from gcfed.core.metrics import Scale, named
from gcfed.core.types import Transform
from gcfed.data.augmentation import ImageTransform
from gcfed.display import html_table
from gcfed.errors import InputError
from gcfed.lock import is_locked
from gcfed.results import directory
from gcfed.results.directory import read_lines, saved_best
from gcfed.results.facts import facts, last_rounds, round_columns
from gcfed.results.fields import OF_FINISHED, OF_ROUND, OF_SUMMARY, fields_of
from gcfed.results.seal import refuse_changed, warn_of_changes
from gcfed.results.summary import judged_by, summarize
from gcfed.simulation.evaluation import Record
from gcfed.values import shown, unwritable

RUN_FILES = (directory.CONFIG, directory.SUMMARY)
"""What makes a folder a run."""

BATCH = 1000  # examples that a loaded model is shown at once
LARGEST_PIXEL = 20.0  # of float images, with room for those that were normalised


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
        found = _json(path, OF_SUMMARY)
        return _json(path, OF_FINISHED) if found["status"] == "finished" else found

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
        return _json(self.path / directory.PROVENANCE, {})

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
        found = enumerate(read_lines(path)[: self.rounds], start=1)
        return [fields_of(line, f"{path}, line {number}", wanted) for number, line in found]

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
        return self._module(self.path / directory.WEIGHTS)

    @cached_property
    def best_model(self) -> nn.Module:
        """The module after the round that was best when the last checkpoint was written."""
        best = saved_best(self.path / directory.CHECKPOINTS)
        if best is None:
            raise InputError(f"{self.path} holds no best model: no round has been judged yet")
        refuse_changed(self, best.path)
        return self._module(best.path)

    def logits(self, x: Any) -> Tensor:
        """What the model says of raw examples, a tensor or an array as its data set has them."""
        parts, model = torch.split(torch.as_tensor(x), BATCH), self.model
        self._warn_of_scale(torch.as_tensor(x))
        try:
            with torch.no_grad():
                return torch.cat([model(self._read(part)) for part in parts])
        except (RuntimeError, ValueError, IndexError) as error:
            took, wanted = list(torch.as_tensor(x).shape), self._about["shape"]
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise InputError(
                f"the model of {self.path} takes examples of shape {['n', *wanted]}; not {took}: "
                f"{reason}"
            ) from error

    def predict(self, x: Any) -> Tensor:
        """The class of each of these raw examples; images are bytes to 255 or floats to 1.

        Where there are no classes, it is what the model says of them.
        """
        found = self.logits(x)
        return found.argmax(1) if self._about["num_classes"] else found

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

    def _module(self, path: Path) -> nn.Module:
        load_plugins(self.config.plugins)
        about = self._about
        shape, dtype = tuple(about["shape"]), getattr(torch, about["dtype"])
        module = make_module(about["model"], shape, num_outputs(about), dtype=dtype)
        load_weights(module, path)
        return module.eval()

    def _warn_of_scale(self, x: Tensor) -> None:
        """Warn of float images that look like bytes, where floats to 1 belong."""
        is_image = isinstance(self._transform, ImageTransform) and x.is_floating_point()
        if is_image and x.numel() and x.max() > LARGEST_PIXEL:
            warnings.warn(
                f"these images are floats up to {x.max():g}, and the model of {self.path} takes "
                "bytes up to 255 or floats up to 1: divide by 255, or give bytes",
                stacklevel=4,
            )

    def _read(self, x: Tensor) -> Any:
        return x if self._transform is None else self._transform(x, None)

    @cached_property
    def _transform(self) -> Transform | None:
        match self._about["transform"]:
            case {"mean": mean, "std": std}:
                return ImageTransform(tuple(mean), tuple(std))
            case directory.OF_DATASET:
                load_plugins(self.config.plugins)
                return read_dataset(self.config.dataset, self.config.data_dir).transform
            case _:
                return None

    @cached_property
    def _about(self) -> dict[str, Any]:
        path = self.path / directory.WEIGHTS
        if not path.is_file():
            raise InputError(f"{self.path} holds no weights yet: its run has not ended")
        refuse_changed(self, path)
        return read_about(path)


def read_about(path: Path) -> dict[str, Any]:
    """What a file of weights says of its model."""
    try:
        with safe_open(path, "pt") as file:
            return fields_of(json.loads(file.metadata()[directory.ABOUT]), str(path), {})
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is not what a run writes: {error}") from None


def num_outputs(about: Mapping[str, Any]) -> int:
    """How many numbers a model says of an example: as many as there are classes, if there are."""
    return int(about.get("num_outputs", about["num_classes"]))


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
        raise InputError(f"{path} cannot be read: {error}") from None
    return fields_of(found, str(path), wanted)
