"""Who holds which examples: the partition of a run, drawn again from its settings and its data."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from gcfed.config.materials import divide_data, read_dataset
from gcfed.data import Dataset
from gcfed.data.downloads.download import offline
from gcfed.data.partitions.skew import partition_statistics
from gcfed.errors import InputError
from gcfed.report.charts import Json
from gcfed.results.run import Run
from gcfed.results.tables import Entry, Section, Table

MOST_CLIENTS, MOST_CELLS = 50, 4000
"""That a chart of clients by classes has."""

MOST_PARTITIONS = 20
"""That a report draws again: each takes a moment."""

DECIDES = ("dataset", "data_dir", "validation", "partition", "clients", "partition_seed", "seed")
"""The settings on which a partition depends."""

COLUMNS = (
    *("setting", "clients", "examples", "examples per client", "Gini of sizes"),
    *("classes per client", "label distance"),
)
LEVELS = ("min", "median", "max")


def holdings(runs: Sequence[Run]) -> list[Json]:
    """What the clients of each run hold, class by class, or why that cannot be said."""
    found: dict[str, Json] = {}
    answers = []
    for run in runs:
        key = run.config.model_dump_json(include=set(DECIDES))
        if key not in found and len(found) < MOST_PARTITIONS:
            found[key] = _held(run)
        many = f"only the first {MOST_PARTITIONS} partitions are drawn"
        answers.append(found.get(key, {"reason": many}))
    return answers


def skew_table(runs: dict[str, Run]) -> Table:
    """How skewed the partitions of runs are, by title, as each run recorded it when it began."""
    rows = tuple(tuple(map(Entry, (title, *_skew(run)))) for title, run in runs.items())
    notes = (
        f"per client: {', '.join(LEVELS)}",
        "label distance: total variation between the labels of a client and those of all, 0 to 1",
    )
    return Table(COLUMNS, (Section("", rows),), notes)


def _held(run: Run) -> Json:
    try:
        return {**_counts(run), "seed": run.config.seed}
    except InputError as error:
        return {"reason": str(error)}


def _counts(run: Run) -> Json:
    """Examples of each class that the first clients hold, a row a class."""
    config, recorded = run.config, run.provenance.get("partition", {})
    divided = divide_data(config, _dataset(config.dataset, config.data_dir))
    held = partition_statistics(divided.partition, divided.dataset.pool)
    again = held.to_json()
    if any(again[key] != recorded[key] for key in again.keys() & recorded.keys()):
        raise InputError("these data, divided again, are not what the run recorded of its clients")
    if not held.has_labels:
        raise InputError("these examples have no classes")
    num_classes, num_clients = len(held.class_sizes), len(held.sizes)
    shown = min(num_clients, MOST_CLIENTS, max(MOST_CELLS // num_classes, 1))
    counts = np.zeros((num_classes, shown), np.int64)
    among = held.client < shown
    counts[held.label[among], held.client[among]] = held.count[among]
    names = divided.dataset.class_names or [str(label) for label in range(num_classes)]
    return {"classes": list(names), "counts": counts.tolist(), "clients": num_clients}


@lru_cache(maxsize=2)
def _dataset(text: str, folder: str | None) -> Dataset:
    """A data set that is on this machine; nothing is fetched for a report."""
    with offline():
        return read_dataset(text, folder)


def _skew(run: Run) -> tuple[str, ...]:
    found = run.provenance.get("partition", {})
    return (
        _count(found.get("clients")),
        _count(found.get("examples")),
        _levels(found.get("size")),
        "-" if "size_gini" not in found else f"{found['size_gini']:.3f}",
        _levels(found.get("classes_per_client")),
        _levels(found.get("label_distance")),
    )


def _count(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"


def _levels(summary: dict[str, float] | None) -> str:
    """Shown as the smallest, the median and the largest."""
    return "-" if summary is None else ", ".join(f"{summary[level]:.4g}" for level in LEVELS)
