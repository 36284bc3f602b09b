"""Writing the files of a run directory, which `results.directory` names."""

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

from gcfed.config.build import Experiment
from gcfed.config.settings import Config
from gcfed.core import tree
from gcfed.data.augmentation import ImageTransform
from gcfed.errors import InputError
from gcfed.files import append, write_json, write_text
from gcfed.results.directory import (
    ABOUT,
    CONFIG,
    OF_DATASET,
    PROBES,
    PROVENANCE,
    ROUNDS,
    RUNNING,
    SUMMARY,
    TIMINGS,
    read_lines,
)
from gcfed.runs.journal import Journal, Mark
from gcfed.simulation.evaluation import Record


class RunFolder:
    """Writes a run into a folder, line by line as it goes."""

    def __init__(self, path: Path, *, has_probes: bool = False) -> None:
        self.path = path
        self.rounds = Journal(path / ROUNDS)
        self.probes = Journal(path / PROBES) if has_probes else None
        self._before = time.perf_counter()

    def describe(self, config: Config, provenance: Mapping[str, Any]) -> None:
        """Say what the run is; it is a run once it has a summary too."""
        write_json(self.path / PROVENANCE, provenance)
        write_text(self.path / CONFIG, config.to_toml())

    def rewind(self, num_rounds: int, lines: Mark, probed: Mark) -> None:
        """Go on after so many rounds, at these marks in their lines and in what was measured."""
        self.rounds.cut(lines)
        if self.probes is not None:
            self.probes.cut(probed)
        timings = self.timings()[:num_rounds]
        write_text(self.path / TIMINGS, "".join(f"{json.dumps(line)}\n" for line in timings))
        write_json(self.path / SUMMARY, RUNNING)
        for path in self.path.glob(".*.part"):  # of a process that was killed
            path.unlink()
        self._before = time.perf_counter()

    def marks(self) -> tuple[Mark, Mark]:
        """How far the lines have come, and what was measured, once both are safe on the disk."""
        return self.rounds.mark(), Mark() if self.probes is None else self.probes.mark()

    def append(self, line: Record, probed: Record, chunk: int | None) -> None:
        """Write a round's line and its probes' row.

        Apart from them, in the timings, stands what another machine would do otherwise: the seconds
        since the line before, and how many clients there was memory for.
        """
        if self.probes is not None:
            self.probes.append(probed)
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
