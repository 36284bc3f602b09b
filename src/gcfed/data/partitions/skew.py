"""What a partition achieved: sizes, label histograms, and how far clients are from the whole."""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from gcfed.data.partitions.partition import Partition, Pool

LEVELS = {"min": 0.0, "5%": 0.05, "median": 0.5, "95%": 0.95, "max": 1.0}


class ClientLabels(NamedTuple):
    """One client: how many examples it holds, of which classes, how far from the whole."""

    client: int
    size: int
    counts: dict[int, int]
    distance: float


@dataclass(frozen=True, eq=False)
class PartitionStatistics:
    """The skew of a partition.

    Client ``client[i]`` holds ``count[i]`` examples of class ``label[i]``; what is not listed is 0,
    and entries stand by client, then by label.  Without labels there are none.
    """

    sizes: np.ndarray
    client: np.ndarray
    label: np.ndarray
    count: np.ndarray
    moved: int

    @property
    def has_labels(self) -> bool:
        return len(self.client) > 0

    @cached_property
    def class_sizes(self) -> np.ndarray:
        """How many examples of each class all clients hold together."""
        return np.bincount(self.label, self.count).astype(np.int64)

    @cached_property
    def classes_per_client(self) -> np.ndarray:
        """How many classes each client holds."""
        return np.bincount(self.client, minlength=len(self.sizes))

    @cached_property
    def distance(self) -> np.ndarray:
        """Total variation between each client's label distribution and that of all: 0 to 1.

        Half the sum of |q - p| over classes, which is the sum of q - p where a client holds more
        than its share: only classes it holds need a look.
        """
        of_client = self.count / self.sizes[self.client]
        of_all = (self.class_sizes / self.class_sizes.sum())[self.label]
        excess = np.maximum(of_client - of_all, 0)
        return np.bincount(self.client, excess, minlength=len(self.sizes))

    @cached_property
    def gini(self) -> float:
        """Inequality of sizes: 0 where all are equal, near 1 where one client holds nearly all."""
        rank = np.arange(1, len(self.sizes) + 1)
        weighted = float(rank @ np.sort(self.sizes).astype(np.float64))
        total = float(self.sizes.sum())
        return (2 * weighted / total - (len(self.sizes) + 1)) / len(self.sizes)

    def first(self, number: int) -> list[ClientLabels]:
        """The first clients, one by one."""
        sizes = self.sizes[:number].tolist()
        ends = np.searchsorted(self.client, np.arange(len(sizes) + 1)).tolist()
        distances = self.distance[:number].tolist() if self.has_labels else [0.0] * len(sizes)
        rows = (slice(*pair) for pair in pairwise(ends))
        counts = (
            dict(zip(self.label[r].tolist(), self.count[r].tolist(), strict=True)) for r in rows
        )
        return [
            ClientLabels(*row)
            for row in zip(range(len(sizes)), sizes, counts, distances, strict=True)
        ]

    def to_json(self) -> dict[str, Any]:
        """Numbers that say it in short, whatever the number of clients."""
        out: dict[str, Any] = {
            "clients": len(self.sizes),
            "examples": int(self.sizes.sum()),
            "moved": self.moved,
            "size": _summary(self.sizes),
            "size_gini": self.gini,
        }
        if self.has_labels:
            out["classes"] = int((self.class_sizes > 0).sum())
            out["classes_per_client"] = _summary(self.classes_per_client)
            out["label_distance"] = _summary(self.distance)
        return out

    def rows(self) -> list[tuple[str, str]]:
        """Name and value of each line of a table."""
        short = self.to_json()
        rows = [("clients", f"{short['clients']:,}"), ("examples", f"{short['examples']:,}")]
        if self.moved:
            rows.append(("moved to reach the minimum", f"{self.moved:,}"))
        rows.append(_line("examples per client", short["size"]))
        rows.append(("Gini coefficient of sizes", f"{self.gini:.3f}"))
        if self.has_labels:
            rows.append(("classes", f"{short['classes']:,}"))
            rows.append(_line("classes per client", short["classes_per_client"]))
            rows.append(_line("label distance (total variation)", short["label_distance"]))
        return rows


def partition_statistics(partition: Partition, pool: Pool) -> PartitionStatistics:
    """The sizes and the label histograms of clients, in memory that grows with the examples."""
    sizes = partition.sizes.numpy()
    if pool.labels is None:
        none = np.zeros(0, np.int32)
        return PartitionStatistics(sizes, none, none, none, partition.moved)
    labels = pool.labels[partition.indices.numpy()]
    width = int(labels.max()) + 1
    cells = np.repeat(np.arange(len(sizes)) * width, sizes)
    cells += labels
    cells.sort()
    starts = np.flatnonzero(np.diff(cells, prepend=-1))
    count = np.diff(starts, append=len(cells)).astype(np.int32)
    client, label = np.divmod(cells[starts], width)
    return PartitionStatistics(
        sizes, client.astype(np.int32), label.astype(np.int32), count, partition.moved
    )


def _summary(values: np.ndarray) -> dict[str, float]:
    levels = np.quantile(values, list(LEVELS.values()))
    return {"mean": float(values.mean()), **dict(zip(LEVELS, map(float, levels), strict=True))}


def _line(name: str, summary: dict[str, float]) -> tuple[str, str]:
    return name, ", ".join(f"{level} {value:,.4g}" for level, value in summary.items())
