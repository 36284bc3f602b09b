"""A run on disk.

=====================  ===========================================================================
``config.toml``        everything the run needed, every default written out
``provenance.json``    version, commit, torch, device, engine, and the partition that was drawn
``rounds.jsonl``       a line a round; two equal runs write the same bytes
``timings.jsonl``      the seconds of each
``summary.json``       status (running, finished, failed, stopped) and what came out
``model.safetensors``  the global weights
=====================  ===========================================================================
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors.torch import save_model
from torch import nn

from gcfed import tree
from gcfed.data.augmentation import ImageTransform
from gcfed.errors import InputError
from gcfed.evaluation import Record
from gcfed.experiments.experiment import Experiment
from gcfed.experiments.provenance import provenance
from gcfed.files import write_atomically, write_json, write_text

CONFIG, PROVENANCE, SUMMARY = "config.toml", "provenance.json", "summary.json"
ROUNDS, TIMINGS, WEIGHTS = "rounds.jsonl", "timings.jsonl", "model.safetensors"

ABOUT = "gcfed"
OF_DATASET = "of the data set"
"""Stands for a transform that is code, which only its data set can make again."""


def create(path: Path) -> Path:
    """A new folder; one that is there already is never written into."""
    try:
        path.mkdir(parents=True)
    except OSError as error:
        raise InputError(f"{path} cannot be made: {error.strerror}") from None
    return path


def refuse_existing(path: Path) -> None:
    """Say so, before any work is done, if ``path`` is taken or lies below what is no folder."""
    if path.exists() or path.is_symlink():
        raise InputError(f"{path} exists already: name another folder with --out")
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

    def __init__(self, path: Path, experiment: Experiment, together: Sequence[int]) -> None:
        self.path = create(path)
        write_text(path / CONFIG, experiment.config.to_toml())
        write_json(path / PROVENANCE, provenance(experiment, together))
        write_json(path / SUMMARY, {"status": "running"})
        for name in (ROUNDS, TIMINGS):
            (path / name).touch()
        self._before = time.perf_counter()

    def append(self, line: Record) -> None:
        """Write a round's line, and the seconds since the one before."""
        now = time.perf_counter()
        seconds, self._before = now - self._before, now
        timing = {"round": line["round"], "seconds": round(seconds, 6), "at": round(time.time(), 3)}
        for name, value in ((ROUNDS, line), (TIMINGS, timing)):
            with (self.path / name).open("a", encoding="utf-8") as file:
                file.write(json.dumps(value, allow_nan=False) + "\n")

    def finish(
        self, summary: Mapping[str, Any], module: nn.Module, about: Mapping[str, Any]
    ) -> None:
        """Write the weights, then the summary that says they are there."""
        metadata = {ABOUT: json.dumps(about)}  # one entry: safetensors writes several in any order
        write_atomically(self.path / WEIGHTS, lambda p: save_model(module, str(p), metadata))
        write_json(self.path / SUMMARY, summary)


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
