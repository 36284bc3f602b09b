"""The seal of a run that ended: hashes in its summary, by which later changes are noticed.

`provenance.json` holds its own hash: it differs between two runs whose other files are equal.
"""

import hashlib
import json
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gcfed.errors import InputError
from gcfed.files import quoted
from gcfed.results.directory import (
    CHECKPOINTS,
    CONFIG,
    PROBES,
    PROVENANCE,
    ROUNDS,
    SUMMARY,
    WEIGHTS,
    saved_best,
)

if TYPE_CHECKING:
    from gcfed.results.run import Run

SEAL = "seal"
"""What the seal is called in a summary, and in a provenance."""

SEALED = (CONFIG, ROUNDS, PROBES, WEIGHTS)
"""What a seal holds the hashes of, besides the summary itself and the model of the best round."""


def make_seal(
    folder: Path, summary: Mapping[str, Any], written: Mapping[str, str]
) -> dict[str, str]:
    """The seal of a run that ends, by file; ``written`` are hashes that are known already."""
    best = saved_best(folder / CHECKPOINTS)
    names = [*SEALED, *([] if best is None else [_name(folder, best.path)])]
    found = {name: written.get(name) or _sha256(folder / name) for name in names}
    seal = {name: sha256 for name, sha256 in found.items() if sha256 is not None}
    return {**seal, SUMMARY: _sha256_of_values(summary)}


def with_seal(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """A provenance with the hash of all that it says."""
    return {**provenance, SEAL: _sha256_of_values(provenance)}


def is_sealed(run: "Run") -> bool:
    """Whether a run has a seal; one that goes on, was killed or is of before has none."""
    return SEAL in _as_it_is(run).summary


def unsealed_files(run: "Run") -> list[str]:
    """The files of a sealed run that are not sealed, though those of newer runs are."""
    return [PROVENANCE] if is_sealed(run) and SEAL not in _as_it_is(run).provenance else []


def broken_seals(run: "Run") -> list[str]:
    """What was changed in a run since it ended, in words; a run without a seal tells little."""
    now = _as_it_is(run)
    seal = now.summary.get(SEAL, {})
    if not isinstance(seal, Mapping):
        return [f"the seal in {SUMMARY} is damaged"]
    found = []
    if SEAL in now.summary:
        names = dict.fromkeys((*SEALED, *seal))
        found += [_change(run.path, name, seal) for name in names if name != SUMMARY]
        if seal.get(SUMMARY) != _sha256_of_values(now.summary):
            found.append(f"{SUMMARY} was changed after the run ended")
    return [change for change in (*found, _provenance_change(now), _lines_missing(now)) if change]


def refuse_changed(run: "Run", path: Path) -> None:
    """Refuse to use a file of weights that is not the one that its run ended with."""
    if not is_sealed(run):
        return
    seal, name = _as_it_is(run).summary[SEAL], _name(run.path, path)
    if not isinstance(seal, Mapping) or name not in seal or _change(run.path, name, seal):
        raise InputError(
            f"{path} is not what its run ended with, so its weights are not used: "
            f"gcfed verify {quoted(run.path)} says what was changed"
        )


def warn_of_changes(runs: Iterable["Run"]) -> None:
    """Warn of every run that was changed since it ended."""
    for run in runs:
        if changes := broken_seals(run):
            advice = f"gcfed verify {quoted(run.path)} does it again and compares"
            warnings.warn(f"{run.path}: {'; '.join(changes)}; {advice}", stacklevel=3)


def _as_it_is(run: "Run") -> "Run":
    """The whole run as its files are now: what was read of it before may be out of date."""
    return replace(run, rounds=None)


def _change(folder: Path, name: str, seal: Mapping[str, Any]) -> str:
    """What happened to a file since it was sealed; nothing if it is the same."""
    there = (folder / name).exists()
    if not there and (name not in seal or name.startswith(CHECKPOINTS)):
        return ""  # checkpoints are for going on, and may be deleted
    if not there:
        return f"{name} is missing"
    if name not in seal:
        return f"{name} was added after the run ended"
    return "" if _sha256(folder / name) == seal[name] else f"{name} was changed after the run ended"


def _provenance_change(run: "Run") -> str:
    """Whether a provenance says otherwise than it did when it was written."""
    if not (run.path / PROVENANCE).exists():
        return f"{PROVENANCE} is missing"
    try:
        said = run.provenance
    except InputError as error:
        return str(error)
    same = said.get(SEAL, ...) in (..., _sha256_of_values(said))
    return "" if same else f"{PROVENANCE} was changed after it was written"


def _lines_missing(run: "Run") -> str:
    """Whether a run that ended has other than as many lines as its summary says."""
    path, said = run.path / ROUNDS, run.summary.get("rounds")
    is_whole = SEAL in run.summary or run.summary["status"] == "finished"
    if not is_whole or path.is_dir() or run.num_rounds == said:
        return ""
    return f"{ROUNDS} has {run.num_rounds} lines, and {SUMMARY} says {said}"


def _name(folder: Path, path: Path) -> str:
    return path.relative_to(folder).as_posix()


def _sha256(path: Path) -> str | None:
    """The hash of a file; None if it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


def _sha256_of_values(found: Mapping[str, Any]) -> str:
    """The hash of all that a summary or a provenance says, without its seal."""
    values = {key: value for key, value in found.items() if key != SEAL}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
