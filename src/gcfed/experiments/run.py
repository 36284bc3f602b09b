"""Runs: started, watched, written down, and read again."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from gcfed.data.augmentation import ImageTransform
from gcfed.errors import DivergedError, InputError
from gcfed.evaluation import Record
from gcfed.experiments import directory
from gcfed.experiments.config import Config, make, read
from gcfed.experiments.directory import RunDirectory
from gcfed.experiments.experiment import Experiment, build, load_weights
from gcfed.models import MODELS
from gcfed.round import RoundResult, start
from gcfed.simulation import simulate_together

Observer = Callable[[int, Record, float], None]
"""Told of each round as it ends: which run, its line, and its seconds."""

SMOOTHED = 10  # the paper's tables average the last ten rounds


def run(config: Config, path: Path, observe: Observer | None = None) -> dict[str, Any]:
    """Do the run that ``config`` describes and write it to ``path``, a folder to make; its summary.

    A run that diverges, or is stopped by Ctrl-C, keeps its lines and its last finite weights.
    """
    return run_together([config], [path], observe)[0]


def run_together(
    configs: Sequence[Config], paths: Sequence[Path], observe: Observer | None = None
) -> list[dict[str, Any]]:
    """Do several runs that differ in their seeds, the clients of all trained together."""
    experiments: list[Experiment] = []
    for config in configs:
        experiments.append(build(config, beside=experiments[0] if experiments else None))
    writers = [RunWriter(e, path) for e, path in zip(experiments, paths, strict=True)]
    try:
        for outcomes in simulate_together([e.setup for e in experiments], keep_uploads=False):
            for i, outcome in outcomes.items():
                seconds = writers[i].add(outcome)
                if observe is not None and isinstance(outcome, RoundResult):
                    observe(i, writers[i].lines[-1], seconds)
    except KeyboardInterrupt:
        for writer in writers:
            writer.stop()
    return [writer.finish() for writer in writers]


class RunWriter:
    """Keeps a run as it goes: its lines, its last weights and how it ended."""

    def __init__(self, experiment: Experiment, path: Path) -> None:
        self.experiment = experiment
        self.directory = RunDirectory(directory.create(path), experiment)
        self.lines: list[Record] = []
        self.server = start(experiment.setup).server
        self.end: dict[str, Any] = {"status": "finished"}

    def add(self, outcome: RoundResult | DivergedError) -> float:
        """Write a round down; gives its seconds."""
        if isinstance(outcome, DivergedError):
            self.end = {"status": "failed", "reason": outcome.reason, "round": outcome.round}
            return 0.0
        self.server = outcome.server
        self.lines.append(self.experiment.record(outcome))
        return self.directory.append(self.lines[-1])

    def stop(self) -> None:
        if self.end["status"] == "finished":
            self.end = {"status": "stopped", "reason": "interrupted", "round": len(self.lines)}

    def finish(self) -> dict[str, Any]:
        """Write the weights and the summary, which is the result."""
        summary = {**self.end, **summarize(self.experiment.config, self.lines)}
        model = self.experiment.setup.model
        module = model.module(self.server.params, self.server.buffers)
        self.directory.finish(summary, module, directory.about_model(self.experiment))
        return summary


def summarize(config: Config, lines: Sequence[Record]) -> dict[str, Any]:
    """What came out of a run; accuracies are fractions, ``test_accuracy`` smoothed."""
    tested = [line for line in lines if line["test_accuracy"] is not None]
    scores = [line["test_accuracy"] for line in tested]
    last = scores[-SMOOTHED:]
    split = "validation_accuracy" if config.validation else "test_accuracy"
    best = max(tested, key=lambda line: line[split], default=None)
    return {
        "algorithm": config.algorithm,
        "dataset": config.dataset,
        "model": config.model,
        "seed": config.seed,
        "rounds": len(lines),
        "test_accuracy": sum(last) / len(last) if last else None,
        "test_accuracy_last": scores[-1] if scores else None,
        "test_accuracy_best": best and best["test_accuracy"],
        "best_round": best and best["round"],
        "test_loss": next((line["test_loss"] for line in reversed(tested)), None),
        "bytes_up": sum(line["bytes_up"] for line in lines),
        "bytes_down": sum(line["bytes_down"] for line in lines),
        "weights_sha256": lines[-1]["weights_sha256"] if lines else None,
    }


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
        """The trained module, in evaluation mode."""
        about = self._about
        make_module = MODELS.parse(about["model"])
        module = make_module(tuple(json.loads(about["shape"])), json.loads(about["num_classes"]))
        load_weights(module, self.path / directory.WEIGHTS)
        return module.eval()  # type: ignore[no-any-return]

    def logits(self, x: Tensor) -> Tensor:
        """What the model says of raw examples, as its data set has them."""
        if (text := self._about.get("transform")) is not None:
            fields = json.loads(text)
            x = ImageTransform(tuple(fields["mean"]), tuple(fields["std"]))(x, None)  # type: ignore[assignment]
        with torch.no_grad():
            return self.model(x)  # type: ignore[no-any-return]

    def predict(self, x: Tensor) -> Tensor:
        """The class of each of these raw examples."""
        return self.logits(x).argmax(1)

    @cached_property
    def _about(self) -> dict[str, str]:
        path = self.path / directory.WEIGHTS
        if not path.is_file():
            raise InputError(f"{self.path} holds no weights yet: its run has not ended")
        with safe_open(path, "pt") as file:
            return dict(file.metadata())


def load_run(path: str | Path) -> Run:
    """The run in a folder."""
    if not (Path(path) / directory.CONFIG).is_file():
        raise InputError(f"{path} is not a run: it holds no {directory.CONFIG}")
    return Run(Path(path))


def _json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))  # type: ignore[no-any-return]
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}") from None


def _lines(path: Path) -> list[dict[str, Any]]:
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    whole, _, _ = text.rpartition("\n")
    return [json.loads(line) for line in whole.splitlines()]
