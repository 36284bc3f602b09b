"""Runs as pandas tables, for a notebook."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from gcfed.config.identity import shortened
from gcfed.errors import InputError
from gcfed.results.captions import alpha_of, short
from gcfed.results.forgetting import with_forgetting
from gcfed.results.groups import Runs, collect
from gcfed.results.run import Run
from gcfed.results.seal import SEAL
from gcfed.simulation.lines import Record


def frame(paths: Runs) -> Any:
    """A DataFrame with a row a round: its line, what probes measured, and the run's settings.

    Rounds count from 1.  The setting ``clients`` is ``num_clients`` here: a line's ``clients`` are
    those that took part.
    """
    rows: list[dict[str, Any]] = []
    for run in collect(paths):
        named = {"run": str(run.path), "seed": run.config.seed}
        settings = _settings(run)
        named["algorithm"] = settings["algorithm"]
        settings["num_clients"] = settings.pop("clients")
        for line in with_probes(run.records, run.probes):
            rows.append({**named, **line, "round": line["round"] + 1, **settings})
    return _pandas().DataFrame(rows, columns=None if rows else ["run", "seed", "algorithm"])


def with_probes(records: Sequence[Record], probes: Sequence[Record]) -> list[Record]:
    """The lines of rounds, each with what probes measured in it and what follows from that."""
    probed = {row["round"]: row for row in with_forgetting(probes)}
    return [{**line, **probed.get(line["round"], {})} for line in records]


def summaries(paths: Runs) -> Any:
    """A DataFrame with a row a run: where it is, every setting, and what came out of it.

    ``rounds`` are those that were done, and ``best_round`` counts from 1.  A run that failed has no
    final value, so that a mean of final values is of those that finished, and their number says so.
    """
    return _pandas().DataFrame([_summary(run) for run in collect(paths)])


def _summary(run: Run) -> dict[str, Any]:
    row = {"run": str(run.path), **run.summary, **_settings(run)}
    row |= {"status": run.status, "rounds": len(run.records)}
    row.pop(SEAL, None)
    if run.status == "failed":
        finals = (f"{split}_{run.metric.name}" for split in ("test", "validation"))
        row |= {name: None for name in finals if name in row}
    if row.get("best_round") is not None:
        row["best_round"] += 1
    return row


def _settings(run: Run) -> dict[str, Any]:
    """Every setting of a run, texts without what has its default, and its alpha as a number."""
    values = shortened(run.config.model_dump(mode="json"))
    return {
        **values,
        "algorithm": short(run.config.algorithm),
        "alpha": alpha_of(run.config.partition),
    }


def _pandas() -> Any:
    try:
        return import_module("pandas")
    except ImportError:
        raise InputError("a DataFrame needs pandas: pip install 'gcfed[notebook]'") from None
