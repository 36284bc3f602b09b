"""The files of a run directory.

=====================  ===========================================================================
``config.toml``        everything the run needed, every default written out
``provenance.json``    version, commit, torch, device, engine, and the partition that was drawn
``rounds.jsonl``       a line a round; two equal runs write the same bytes
``probes.jsonl``       what probes measured in each, where some were asked for
``timings.jsonl``      the seconds of each and of its probes, and how many clients were at once
``summary.json``       status (running, finished, failed, stopped), what came out, and the seal
``model.safetensors``  the global weights
``left_out.jsonl``     of a deployment: which nodes were left out of a round, and why
``checkpoints/``       where the run stands: see `runs.checkpoint`
=====================  ===========================================================================
"""

import contextlib
import hashlib
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from gcfed.errors import InputError

CONFIG, PROVENANCE, SUMMARY = "config.toml", "provenance.json", "summary.json"
ROUNDS, TIMINGS, WEIGHTS = "rounds.jsonl", "timings.jsonl", "model.safetensors"
PROBES = "probes.jsonl"
LEFT_OUT = "left_out.jsonl"
CHECKPOINTS = "checkpoints"
SWEEP = "sweep.json"
DEPLOYED = "deployed"
"""In the provenance of a run that was deployed: the name by which nodes know it."""

STORE = Path("runs")
"""The folder in which runs are kept, where no other is named."""

RUNNING = {"status": "running"}

ABOUT = "gcfed"
OF_DATASET = "of the data set"
"""Stands for a transform that is code, which only its data set can make again."""


WATCHED = (CONFIG, SUMMARY, ROUNDS, PROBES)
"""The files that change when a run begins, goes on or ends."""


def stamp(folder: Path) -> str:
    """A text that changes when a run in a folder, or the run that it is, does."""
    found = hashlib.sha256()
    for name, below, files in os.walk(folder):
        below.sort()
        if CONFIG in files:
            below.clear()  # what is in a run is its own, and may be many files
        for file in sorted(set(WATCHED) & set(files)):
            path = Path(name, file)
            with contextlib.suppress(FileNotFoundError):  # it was replaced just now
                about = path.stat()
                found.update(f"{path} {about.st_size} {about.st_mtime_ns}\n".encode())
    return found.hexdigest()


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a file of JSON; a torn last one is left out."""
    found: list[dict[str, Any]] = []
    try:
        text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
        for line in text.split("\n")[:-1]:
            found.append(json.loads(line))
    except (ValueError, RecursionError) as error:
        reason = getattr(error, "msg", error)
        raise InputError(f"{path} is damaged in line {len(found) + 1}: {reason}") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    return found


def manifests(folder: Path) -> list[Path]:
    """The manifests in a folder of checkpoints, the last first."""
    found = [p for p in folder.glob("*.json") if p.stem.isdecimal()]
    return sorted(found, key=lambda p: int(p.stem), reverse=True)


class SavedBest(NamedTuple):
    """The model of the best round, as the checkpoint after so many rounds has it."""

    rounds: int
    round: int
    path: Path


def saved_best(folder: Path) -> SavedBest | None:
    """The model of the best round in a folder of checkpoints, as the last of them has it."""
    for manifest in manifests(folder)[:1]:
        try:
            if best := json.loads(manifest.read_bytes())["best"]:
                return SavedBest(int(manifest.stem), best["round"], folder / str(best["file"]))
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise InputError(f"{manifest} is damaged: {error}") from None
    return None
