"""Data sets and partitions in words: the rows of tables."""

from typing import Any

from torch import Tensor

from gcfed.core.lazy import LazyInputs
from gcfed.data import DATASETS, Dataset
from gcfed.data.augmentation import ImageTransform
from gcfed.data.datasets.dataset import class_name
from gcfed.data.downloads.fetch import DatasetInfo, FileStatus, FileVerdict
from gcfed.data.partitions.skew import ClientLabels, PartitionStatistics
from gcfed.errors import unknown

STATUSES: dict[FileVerdict, str] = {
    "verified": "its md5 is the published one",
    "unverified": "it can be read, and no md5 is published for it",
    "different": "it is not the published file; delete it and run gcfed data fetch",
    "folder": "a folder lies where the file belongs; move it and run gcfed data fetch",
    "empty": "the folder holds no file; delete it and run gcfed data fetch",
    "missing": "it is not there; run gcfed data fetch",
}
SKEW = ("alpha", "examples per client", "Gini", "classes per client", "label distance", "moved")
BAR = 20
NAMED = 4


def dataset_row(found: DatasetInfo) -> tuple[str, str, str, str]:
    """Of the table of data sets."""
    size = f"{found.size / 1e6:,.0f} MB" if found.sources else "-"
    return found.name, size, _where(found), found.description


def _where(found: DatasetInfo) -> str:
    if not found.sources:
        ours = DATASETS[found.name].__module__ == "gcfed.data.datasets.builtin"
        return "built in" if ours else "yours"
    if not found.present:
        return "missing"
    number = len(found.present) + len(found.missing)
    return f"{len(found.present)} of {number} files" if found.missing else "present"


def dataset_facts(dataset: Dataset) -> list[tuple[str, str]]:
    """What there is to say of a data set as a whole."""
    x = dataset.train.x
    inputs = x if isinstance(x, dict) else {"": x}
    rows = [
        ("train examples", f"{len(dataset.train.y):,}"),
        ("test examples", f"{len(dataset.test.y):,}"),
        *((f"shape {name}".strip(), _shape(v)) for name, v in inputs.items()),
        ("classes", f"{dataset.num_classes:,}" if dataset.has_classes else "none: other targets"),
        ("transform", _transform(dataset)),
    ]
    for key, values in dataset.keys.items():
        rows.append(("key", f"{key}, of {len(set(values.tolist())):,} values"))
    return rows


def _shape(x: Tensor | LazyInputs) -> str:
    sides = " x ".join(map(str, x.shape[1:])) or "one number"
    return f"{sides}, {str(x.dtype).removeprefix('torch.')}"


def _transform(dataset: Dataset) -> str:
    t = dataset.transform
    if not isinstance(t, ImageTransform):
        return "none" if t is None else type(t).__name__
    train = [f"crop with a padding of {t.padding}"] if t.padding else []
    train += ["flip"] if t.flip else []
    numbers = (", ".join(f"{v:.4g}" for v in values) for values in (t.mean, t.std))
    normal = "normalise by means {} and deviations {}".format(*numbers)
    return f"in training {' and '.join(train)}; {normal}" if train else normal


def label_histogram(dataset: Dataset) -> list[tuple[str, ...]]:
    """A line a class: how many examples of it there are, and a bar of those to train on."""
    train, test = (
        split.y.bincount(minlength=dataset.num_classes).tolist()
        for split in (dataset.train, dataset.test)
    )
    most = max(train)
    return [
        (str(c), class_name(dataset, c), f"{train[c]:,}", f"{test[c]:,}", _bar(train[c] / most))
        for c in range(dataset.num_classes)
    ]


def _bar(share: float) -> str:
    return "#" * (max(1, round(BAR * share)) if share else 0)


def skew_row(title: str, skew: PartitionStatistics) -> tuple[str, ...]:
    """Of the table of several partitions."""
    short = skew.to_json()
    size, distance = short["size"], short.get("label_distance")
    return (
        title,
        f"{size['min']:,.0f} to {size['max']:,.0f}, median {size['median']:,.0f}",
        f"{skew.gini:.3f}",
        f"{short['classes_per_client']['mean']:.1f} of {short['classes']}" if distance else "-",
        f"{distance['mean']:.3f}" if distance else "-",
        f"{skew.moved:,}",
    )


def client_row(dataset: Dataset, held: ClientLabels) -> tuple[str, ...]:
    """Of the table of clients."""
    by_size = sorted(held.counts.items(), key=lambda item: -item[1])
    words = [f"{class_name(dataset, label)}: {count:,}" for label, count in by_size[:NAMED]]
    if len(by_size) > NAMED:
        words.append(f"{len(by_size) - NAMED} more")
    distance = f"{held.distance:.3f}" if held.counts else "-"
    number = str(len(held.counts)) if held.counts else "-"
    return str(held.client), f"{held.size:,}", number, distance, ", ".join(words)


def client_json(held: ClientLabels) -> dict[str, Any]:
    out: dict[str, Any] = {"client": held.client, "examples": held.size}
    if held.counts:
        out |= {"label_distance": held.distance, "labels": held.counts}
    return out


def named(text: str) -> str:
    """The data set that is meant, of whose arguments files know nothing."""
    name = text.partition("(")[0].strip()
    if name not in DATASETS:
        raise unknown("data set", name, DATASETS)
    return name


def is_bad(found: list[FileStatus]) -> bool:
    return any(f.status in ("missing", "different", "folder", "empty") for f in found)
