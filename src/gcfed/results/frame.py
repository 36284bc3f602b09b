"""Runs as pandas tables, for a notebook."""

from importlib import import_module
from typing import Any

from gcfed.errors import InputError
from gcfed.results.captions import short
from gcfed.results.groups import Runs, collect
from gcfed.results.seal import SEAL


def frame(paths: Runs) -> Any:
    """A DataFrame with a row a round: run, seed, algorithm, its line and what probes measured."""
    rows = [
        {
            "run": str(run.path),
            "seed": run.config.seed,
            "algorithm": short(run.config.algorithm),
            **line,
            **probed.get(line["round"], {}),
        }
        for run in collect(paths)
        for probed in [{row["round"]: row for row in run.probes}]
        for line in run.records
    ]
    return _pandas().DataFrame(rows, columns=None if rows else ["run", "seed", "algorithm"])


def summaries(paths: Runs) -> Any:
    """A DataFrame with a row a run: where it is, what came out of it, and every setting."""
    rows = [
        {
            "run": str(run.path),
            **run.config.model_dump(mode="json"),
            **{key: value for key, value in run.summary.items() if key != SEAL},
            "rounds": len(run.records),
            "algorithm": short(run.config.algorithm),
        }
        for run in collect(paths)
    ]
    return _pandas().DataFrame(rows)


def _pandas() -> Any:
    try:
        return import_module("pandas")
    except ImportError:
        raise InputError("a DataFrame needs pandas: pip install 'gcfed[notebook]'") from None
