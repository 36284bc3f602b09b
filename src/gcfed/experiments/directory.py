"""A run on disk.

=====================  ===========================================================================
``config.toml``        everything the run needed, every default written out
``provenance.json``    version, commit, torch, device, engine, and the partition that was drawn
``rounds.jsonl``       a line a round; two equal runs write the same bytes
``timings.jsonl``      the seconds of each, and how many clients were trained at once
``summary.json``       status (running, finished, failed, stopped) and what came out
``model.safetensors``  the global weights
``checkpoints/``       where the run stands: see `checkpoint`
=====================  ===========================================================================
"""

import errno
import json
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_model
from torch import nn

from gcfed import tree
from gcfed.data.augmentation import ImageTransform
from gcfed.errors import InputError
from gcfed.evaluation import Record
from gcfed.experiments.config import Config
from gcfed.experiments.experiment import Experiment
from gcfed.experiments.journal import Journal, Mark
from gcfed.files import append, write_json, write_text

CONFIG, PROVENANCE, SUMMARY = "config.toml", "provenance.json", "summary.json"
ROUNDS, TIMINGS, WEIGHTS = "rounds.jsonl", "timings.jsonl", "model.safetensors"
CHECKPOINTS = "checkpoints"

RUNNING = {"status": "running"}

ABOUT = "gcfed"
OF_DATASET = "of the data set"
"""Stands for a transform that is code, which only its data set can make again."""


def create(path: Path, *, exist_ok: bool = False) -> Path:
    """A new folder; one that is there already is only written into if that is ``exist_ok``."""
    try:
        path.mkdir(parents=True, exist_ok=exist_ok)
    except OSError as error:
        raise InputError(f"{path} cannot be made: {error.strerror}") from None
    return path


def refuse_existing(path: Path) -> None:
    """Say so, before any work is done, if ``path`` is taken or lies below what is no folder."""
    if path.exists() or path.is_symlink():
        raise InputError(f"{path} exists already: name another folder")
    above = next(folder for folder in path.absolute().parents if folder.exists())
    if not above.is_dir():
        raise InputError(f"{path} cannot be made: {above} is a file, not a folder")


def unused(parent: Path, name: str) -> Path:
    """A folder that is not there yet: ``name``, ``name-2``, ``name-3``, ..."""
    path, number = parent / name, 1
    while path.exists():
        number += 1
        path = parent / f"{name}-{number}"
    return path


class RunDirectory:
    """Writes a run into a folder, line by line as it goes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rounds = Journal(path / ROUNDS)
        self._before = time.perf_counter()

    def describe(self, config: Config, provenance: Mapping[str, Any]) -> None:
        """Say what the run is; it is a run once it has a summary too."""
        write_json(self.path / PROVENANCE, provenance)
        write_text(self.path / CONFIG, config.to_toml())

    def rewind(self, mark: Mark, num_rounds: int) -> None:
        """Go on after so many rounds, at ``mark`` in their lines."""
        self.rounds.cut(mark)
        timings = self.timings()[:num_rounds]
        write_text(self.path / TIMINGS, "".join(f"{json.dumps(line)}\n" for line in timings))
        write_json(self.path / SUMMARY, RUNNING)
        for path in self.path.glob(".*.part"):  # of a process that was killed
            path.unlink()
        self._before = time.perf_counter()

    def append(self, line: Record, chunk: int | None) -> None:
        """Write a round's line, and apart from it what another machine would do otherwise.

        Which is the seconds since the line before, and how many clients there was memory for.
        """
        now = time.perf_counter()
        seconds, self._before = now - self._before, now
        timing = {"round": line["round"], "seconds": round(seconds, 6), "at": round(time.time(), 3)}
        timing |= {"chunk": chunk}
        append(self.path / TIMINGS, json.dumps(timing).encode() + b"\n")
        self.rounds.append(line)

    def timings(self) -> list[dict[str, Any]]:
        """What can be read of the timings, of which nothing depends but last bits."""
        try:
            return read_lines(self.path / TIMINGS)
        except InputError:
            return []

    def summarize(self, summary: Mapping[str, Any]) -> None:
        write_json(self.path / SUMMARY, summary)


def save_module(path: Path, module: nn.Module, about: Mapping[str, Any]) -> None:
    """Write weights, and what it takes to make their model again."""
    metadata = {ABOUT: json.dumps(about)}  # one entry: safetensors writes several in any order
    try:
        save_model(module, str(path), metadata)
    except SafetensorError as error:
        raise OSError(errno.EIO, str(error), str(path)) from error


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a file of JSON; a torn last one is left out."""
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    lines = text.split("\n")[:-1]
    try:
        return [json.loads(line) for line in lines]
    except ValueError as error:
        raise InputError(f"{path} is damaged: {error}") from None


def about_model(experiment: Experiment) -> dict[str, Any]:
    """What it takes to make the model again, and to feed it, kept with its weights."""
    setup = experiment.setup
    transform: Any = setup.transform
    if isinstance(transform, ImageTransform):
        transform = asdict(transform)
    elif transform is not None:
        transform = OF_DATASET
    return {
        "model": experiment.config.model,
        "shape": tree.map(lambda v: list(v.shape[1:]), setup.data.x),
        "num_classes": setup.data.num_classes,
        "dtype": str(next(iter(setup.model.params.values())).dtype).removeprefix("torch."),
        "transform": transform,
    }
