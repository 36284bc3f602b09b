"""Runs: started, watched, written down, and read again."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from gcfed.context import Transform
from gcfed.data.augmentation import ImageTransform
from gcfed.errors import DivergedError, InputError
from gcfed.evaluation import Record
from gcfed.experiments import directory
from gcfed.experiments.config import Config, make, read
from gcfed.experiments.directory import RunDirectory
from gcfed.experiments.experiment import (
    Experiment,
    build,
    load_weights,
    make_module,
    read_dataset,
)
from gcfed.experiments.plugins import load_plugins
from gcfed.round import RoundResult, start
from gcfed.simulation import simulate_together

Observer = Callable[[Mapping[int, Record]], None]
"""Told of each round as it ends: the lines of the runs that got through it."""

BATCH = 1000  # examples that a loaded model is shown at once
SMOOTHED = 10  # the paper's tables average the last ten rounds


def run(config: Config, path: str | Path, observe: Observer | None = None) -> dict[str, Any]:
    """Do the run that ``config`` describes and write it to ``path``, a folder to make; its summary.

    A run that diverges, or is stopped by Ctrl-C, keeps its lines and its last finite weights.
    """
    return run_together([config], [Path(path)], observe)[0]


def run_together(
    configs: Sequence[Config], paths: Sequence[Path], observe: Observer | None = None
) -> list[dict[str, Any]]:
    """Do several runs that differ in their seeds, the clients of all trained together."""
    for path in paths:
        directory.refuse_existing(path)
    experiments: list[Experiment] = []
    for config in configs:
        experiments.append(build(config, beside=experiments[0] if experiments else None))
    seeds = [config.seed for config in configs]
    writers = [RunWriter(e, path, seeds) for e, path in zip(experiments, paths, strict=True)]
    try:
        for outcomes in simulate_together([e.setup for e in experiments], keep_uploads=False):
            lines = {i: writers[i].add(outcome) for i, outcome in outcomes.items()}
            if observe is not None:
                observe({i: line for i, line in lines.items() if line is not None})
    except KeyboardInterrupt:
        for writer in writers:
            writer.end("stopped", "interrupted")
    except Exception as error:
        for writer in writers:
            writer.end("failed", str(error) or type(error).__name__)
            writer.finish()
        raise
    return [writer.finish() for writer in writers]


class RunWriter:
    """Keeps a run as it goes: its lines, its last weights and how it ended."""

    def __init__(self, experiment: Experiment, path: Path, together: Sequence[int]) -> None:
        self.experiment = experiment
        self.directory = RunDirectory(path, experiment, together)
        self.lines: list[Record] = []
        self.server = start(experiment.setup).server
        self.ended: dict[str, Any] = {}

    def add(self, outcome: RoundResult | DivergedError) -> Record | None:
        """Write a round down; gives its line, if it has one."""
        if isinstance(outcome, DivergedError):
            self.end("failed", outcome.reason)
            return None
        line = self.experiment.record(outcome)
        self.directory.append(line)
        self.lines.append(line)
        self.server = outcome.server
        return line

    def end(self, status: str, reason: str) -> None:
        """Say how a run ended before its last round, and in which; the first reason counts."""
        if not self.ended and len(self.lines) < self.experiment.config.rounds:
            self.ended = {"status": status, "reason": reason, "round": len(self.lines)}

    def finish(self) -> dict[str, Any]:
        """Write the weights and the summary, which is the result."""
        ended = self.ended or {"status": "finished"}
        summary = {**ended, **summarize(self.experiment.config, self.lines)}
        model = self.experiment.setup.model
        module = model.module(self.server.params, self.server.buffers)
        self.directory.finish(summary, module, directory.about_model(self.experiment))
        return summary


def summarize(config: Config, lines: Sequence[Record]) -> dict[str, Any]:
    """What came out of a run; accuracies are fractions.

    ``test_accuracy`` is the mean of the last ten evaluations; the best one is chosen on the
    validation examples where there are any.
    """
    tested = [line for line in lines if line["tested"] is not None]
    scored = [line for line in tested if line["test_accuracy"] is not None]
    split = "validation_accuracy" if config.validation else "test_accuracy"
    best = max(scored, key=lambda line: line[split], default=None)
    summary = {
        "algorithm": config.algorithm,
        "dataset": config.dataset,
        "model": config.model,
        "seed": config.seed,
        "rounds": len(lines),
        "test_accuracy": _mean_of_last(scored, "test_accuracy"),
        "test_accuracy_last": scored[-1]["test_accuracy"] if scored else None,
        "test_accuracy_best": best and best["test_accuracy"],
        "best_round": best and best["round"],
        "test_loss": tested[-1]["test_loss"] if tested else None,
        "bytes_up": sum(line["bytes_up"] for line in lines),
        "bytes_down": sum(line["bytes_down"] for line in lines),
        "weights_sha256": lines[-1]["weights_sha256"] if lines else None,
    }
    if config.validation:
        summary["validation_accuracy"] = _mean_of_last(scored, "validation_accuracy")
    return summary


def _mean_of_last(lines: Sequence[Record], name: str) -> float | None:
    values = [line[name] for line in lines[-SMOOTHED:]]
    return sum(values) / len(values) if values else None


@dataclass(frozen=True)
class Run:
    """A run directory, read when asked.  ``load_run("runs/x").predict(images)`` gives classes."""

    path: Path

    @cached_property
    def config(self) -> Config:
        return make(read(self.path / directory.CONFIG), str(self.path / directory.CONFIG))

    @cached_property
    def summary(self) -> dict[str, Any]:
        return _json(self.path / directory.SUMMARY)

    @cached_property
    def provenance(self) -> dict[str, Any]:
        return _json(self.path / directory.PROVENANCE)

    @cached_property
    def records(self) -> list[Record]:
        """Its rounds; a torn last line is left out."""
        return _lines(self.path / directory.ROUNDS)

    @cached_property
    def timings(self) -> list[dict[str, Any]]:
        return _lines(self.path / directory.TIMINGS)

    @cached_property
    def model(self) -> nn.Module:
        """The trained module, on the host and in evaluation mode; it reads transformed examples.

        With ``buffers = "local"`` its buffers are those of the start: clients keep their own.
        """
        load_plugins(self.config.plugins)
        about, path = self._about, self.path / directory.WEIGHTS
        shape, dtype = tuple(about["shape"]), getattr(torch, about["dtype"])
        module = make_module(about["model"], shape, about["num_classes"], dtype=dtype)
        load_weights(module, path)
        return module.eval()

    def logits(self, x: Any) -> Tensor:
        """What the model says of raw examples, a tensor or an array as its data set has them."""
        parts = torch.split(torch.as_tensor(x), BATCH)
        with torch.no_grad():
            return torch.cat([self.model(self._read(part)) for part in parts])

    def predict(self, x: Any) -> Tensor:
        """The class of each of these raw examples."""
        return self.logits(x).argmax(1)

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
        try:
            with safe_open(path, "pt") as file:
                return json.loads(file.metadata()[directory.ABOUT])  # type: ignore[no-any-return]
        except (SafetensorError, KeyError, TypeError) as error:
            raise InputError(f"{path} is not what a run writes: {error}") from None


def load_run(path: str | Path) -> Run:
    """The run in a folder."""
    for name in (directory.CONFIG, directory.SUMMARY):
        if not (Path(path) / name).is_file():
            raise InputError(f"{path} is not a run: it holds no {name}")
    return Run(Path(path))


def find_runs(folder: Path) -> list[Run]:
    """The run in a folder, or all runs below it, by path."""
    configs = sorted(folder.rglob(directory.CONFIG))
    return [Run(c.parent) for c in configs if (c.parent / directory.SUMMARY).is_file()]


def _json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))  # type: ignore[no-any-return]
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}") from None


def _lines(path: Path) -> list[dict[str, Any]]:
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    whole, _, _ = text.rpartition("\n")
    return [json.loads(line) for line in whole.splitlines()]
