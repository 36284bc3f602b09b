"""Runs in folders: which there are, and which cannot be read."""

import os
import warnings
from pathlib import Path

from gcfed.errors import InputError
from gcfed.files import quoted
from gcfed.results import directory
from gcfed.results.run import RUN_FILES, Run, check_path


def find_runs(folder: str | Path) -> list[Run]:
    """The run in a folder, or all runs below it, by path; damaged ones are left out and named."""
    runs, damaged = sort_runs(folder)
    for path, reason in damaged.items():
        warnings.warn(f"{path} is left out: {reason}", stacklevel=2)
    return runs


def sort_runs(folder: str | Path) -> tuple[list[Run], dict[Path, str]]:
    """The run in a folder, or all runs below it, by path, and why others cannot be read."""
    check_path(folder)
    runs: list[Run] = []
    damaged: dict[Path, str] = {}

    def left_out(error: OSError) -> None:
        path = Path(error.filename)
        if not isinstance(error, PermissionError):
            return  # there is no such folder
        if path == Path(folder):
            raise InputError(f"{path} cannot be read: {error.strerror}")
        damaged[path] = f"it cannot be read: {error.strerror}"

    for name, below, files in os.walk(folder, onerror=left_out):
        path, missing = Path(name), [each for each in RUN_FILES if each not in files]
        if missing and directory.ROUNDS not in files:
            below.sort()
            continue
        below.clear()  # what is in a run is its own, and may be many files
        reason = f"it holds no {missing[0]}" if missing else ""
        if missing == [directory.SUMMARY]:
            reason += _way_out(Run(path))
        if not missing and path != Path(folder):
            reason = damage(Run(path))
        if reason:
            damaged[path] = reason
        else:
            runs.append(Run(path))
    return runs, damaged


def no_runs(place: str | Path) -> InputError:
    """That there is no run in a place, which may be what a shell made of ``runs/*``."""
    said, path = f"{place} is neither a run nor a folder of runs", Path(place)
    if any(path.glob(f"*/{directory.SWEEP}")):
        said += f": it holds the records of sweeps, whose runs lie beside it, in {path.parent}"
    return InputError(said)


def _way_out(run: Run) -> str:
    """What to do about a run whose summary is lost."""
    if not (run.path / directory.PROVENANCE).is_file():
        return f" and no {directory.PROVENANCE}; {run.remedy}"
    return f"; gcfed resume {quoted(run.path)} makes it again"


def damage(run: Run) -> str:
    """Why a run cannot be read; nothing if it can."""
    try:
        run.config, run.summary, run.provenance, run.records, run.probes  # noqa: B018
    except InputError as error:
        return str(error)
    return ""
