"""Data sets of people's own."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gcfed.core import tree
from gcfed.core.lazy import LazyInputs, Stored
from gcfed.core.types import Examples, Inputs, Transform
from gcfed.data.datasets.arrays import Collected
from gcfed.data.datasets.collect import collect
from gcfed.data.datasets.dataset import DATASETS, Dataset, seeded_generator
from gcfed.data.datasets.named_inputs import same_width
from gcfed.data.datasets.normalisation import normalisation
from gcfed.data.datasets.own_files import arrays_of_npz, folder_of_images
from gcfed.data.datasets.own_items import Columns
from gcfed.errors import InputError, unknown
from gcfed.values import check_range, checked

FLOATS = {torch.float32: np.float32, torch.float64: np.float64}

MOST_CLASSES = 1_000_000
"""More are taken for a mistake, such as an identifier in the place of a label."""


InputsAndLabels = tuple[str | tuple[str, ...] | None, str]
"""The columns of a table: one or several of inputs, or all others, and that of the labels."""


def dataset_from(
    train: Any,
    test: Any = None,
    *,
    num_classes: int | None = None,
    class_names: Sequence[str] = (),
    transform: Transform | None = None,
    columns: InputsAndLabels | None = None,
    client: str | None = None,
    pad: int = 0,
    takes: Sequence[str] = (),
    dtype: torch.dtype = torch.float32,
    test_fraction: float = 0.2,
    seed: int = 0,
) -> Dataset:
    """A `Dataset` of one's own examples.

    ``train``, and ``test`` likewise, is a map-style dataset of (image, label), a pair of arrays or
    tensors, a data frame, a Hugging Face dataset, or the path of an ``.npz``, ``.csv``, ``.tsv``,
    ``.parquet`` or of a folder of images by class.  A list of any of these holds the examples of
    one client each; so does, in a table, every value of the column ``client``.  Who holds what is
    then ``keys["client"]``.  ``columns`` names the columns of a table that hold inputs and labels,
    if they must be named: ``(("input_ids", "attention_mask"), "labels")``, say; the inputs of a
    data frame are all others where None is in their place.  Several inputs go to the model by
    these names; texts of different lengths are filled up with the token ``pad``.  A pair may have a
    dict of arrays as its inputs.  ``takes`` are the names that the model's ``forward`` takes: if
    the usual input of a table is among them, it gets all other columns of numbers that are, too.

    Images may be tensors, arrays or PIL's; bytes stay bytes.  Labels are numbers from 0 or words.
    Other numbers that are not whole become ``dtype``.  Without ``test``, every class (or every
    client, where they are known) gives ``test_fraction`` of its examples, drawn by ``seed``.
    Without ``transform``, images of bytes are normalised by the mean and deviation of the train
    examples; other inputs are left as they are.

    >>> import numpy as np
    >>> images = np.zeros((50, 28, 28), np.uint8)
    >>> mine = dataset_from((images, np.arange(50) % 5))
    >>> len(mine.train.y), len(mine.test.y), mine.num_classes
    (40, 10, 5)
    """
    checked("test_fraction", test_fraction, float)
    checked("class_names", class_names, Sequence[str])
    if num_classes is not None:
        check_range("num_classes", checked("num_classes", num_classes, int), "at least 0")
    texts = tuple[str | tuple[str, ...] | None, ...] | None
    x, y = checked("columns", columns, texts) or (None, None)
    train, test = _both(train, test)
    check_range("pad", checked("pad", pad, int), "at least 0")
    named = Columns(x, y, client, pad, checked("takes", takes, Sequence[str]))
    if dtype not in FLOATS:
        raise InputError(f"dtype is torch.float32 or torch.float64; not {dtype!r:.200}")
    found = collect(train, "train", named)
    held = None if test is None else collect(test, "test", named)
    if held is not None:
        found, held = same_width([found, held], pad)
    names = tuple(class_names) or found.class_names or _words(found.y)
    everything = _examples(found, names, "train", dtype)
    keys = {} if found.client is None else {"client": found.client}
    if held is not None:
        kept, tested = everything, _examples(held, names, "test", dtype)
    else:
        mask = _held_out(_groups(found, everything.y), test_fraction, seed)
        kept, tested = (everything.take(torch.from_numpy(m.nonzero()[0])) for m in (~mask, mask))
        keys = {name: values[~mask] for name, values in keys.items()}
    shapes = ([part.shape[1:] for _, part in tree.leaves(x)] for x in (kept.x, tested.x))
    if len({tuple(each) for each in shapes}) > 1:
        raise InputError("train and test examples are of different shapes")
    if num_classes is None:
        num_classes = len(names) or _count(everything.y)
    return Dataset(
        train=kept,
        test=tested,
        num_classes=num_classes,
        transform=transform or normalisation(kept.x),
        class_names=names,
        keys=keys,
        note=found.note,
    )


def with_test(dataset: Dataset, test: Any, pad: int = 0) -> Dataset:
    """The data set with ``test``, of any form that `dataset_from` takes, as its test examples.

    Where ``test`` is None they stay the data set's own.
    """
    if test is None:
        return dataset
    if isinstance(test, Dataset):
        raise InputError(
            "test is examples and not a Dataset, which has train examples too: give test.test"
        )
    if isinstance(test, Examples):
        tested = test
    else:
        floats = [v.dtype for _, v in tree.leaves(dataset.train.x) if v.is_floating_point()]
        dtype = floats[0] if floats else torch.float32
        found = collect(test, "test", Columns(pad=pad))
        tested = _examples(found, dataset.class_names, "test", dtype)
    shapes = [[list(v.shape[1:]) for _, v in tree.leaves(x)] for x in (dataset.train.x, tested.x)]
    if shapes[0] != shapes[1]:
        raise InputError("train and test examples are of different shapes")
    return replace(dataset, test=tested)


@DATASETS.register("folder")
def folder(
    root: Path, *, path: str, size: int = 0, test_fraction: float = 0.2, seed: int = 0
) -> Dataset:
    """Your images, a folder for every class: path/CLASS, or path/train/CLASS and path/test/CLASS.

    ``path`` is looked for where the command runs, then in the folder of data.  With ``size`` all
    images are resized to so many rows and columns.  Without a folder test (or val), some images of
    every class, drawn by ``seed``, are held out.
    """
    if size < 0:
        raise InputError(f"folder(size=...) is at least 0; not {size}")
    found = _find(root, path)
    train, test = (
        next((found / n for n in names if (found / n).is_dir()), None)
        for names in (("train",), ("test", "val"))
    )
    if train is None or test is None:
        images = folder_of_images(found, size)
        return dataset_from(images, test_fraction=test_fraction, seed=seed)
    return dataset_from(folder_of_images(train, size), folder_of_images(test, size))


@DATASETS.register("npz")
def npz(root: Path, *, path: str, test_fraction: float = 0.2, seed: int = 0) -> Dataset:
    """Your arrays, in one .npz: x_train, y_train, x_test and y_test; or x and y, and maybe client.

    ``path`` is looked for where the command runs, then in the folder of data.  Of x and y some of
    every class, drawn by ``seed``, are held out for testing.
    """
    return dataset_from(_find(root, path), test_fraction=test_fraction, seed=seed)


def settled(text: str, root: Path) -> str:
    """The data set that ``text`` names, its hyper-parameters written out and its path absolute.

    So it means the same wherever it is read again.
    """
    bound: partial[Dataset] = DATASETS.parse(text)
    if bound.func not in (folder, npz):
        return DATASETS.canonical(text)
    values = {**bound.keywords, "path": str(_find(root, bound.keywords["path"]).absolute())}
    written = ", ".join(f"{key}={value!r}" for key, value in values.items())
    return DATASETS.canonical(f"{DATASETS.name_of(bound.func)}({written})")


def _both(train: Any, test: Any) -> tuple[Any, Any]:
    """The two splits, where one object holds both."""
    if isinstance(train, Mapping) and "train" in train:
        held = (train[name] for name in ("test", "validation") if name in train)
        return train["train"], next(held, None) if test is None else test
    if isinstance(train, str | Path) and Path(train).suffix.lower() == ".npz":
        kept, held_out = arrays_of_npz(Path(train))
        return kept, held_out if test is None else test
    return train, test


def _find(root: Path, path: str) -> Path:
    if not path.strip():
        raise InputError("path is empty: name a file or a folder, as in path='photos'")
    places = (Path(path).expanduser(), root / path)
    found = next((p for p in places if p.exists()), None)
    if found is None:
        raise InputError(f"there is neither {places[0].absolute()} nor {places[1]}")
    return found


def _words(y: np.ndarray) -> tuple[str, ...]:
    return tuple(map(str, np.unique(y))) if y.dtype.kind == "U" else ()


def _examples(found: Collected, names: tuple[str, ...], where: str, dtype: torch.dtype) -> Examples:
    x: Stored = found.x if isinstance(found.x, LazyInputs) else _tensors(found.x)
    x = tree.map(lambda v: v.to(dtype) if v.is_floating_point() else v, x)
    if found.y.dtype.kind == "f":
        return Examples(x, torch.from_numpy(found.y.astype(FLOATS[dtype])))
    y = found.y
    if y.dtype.kind == "U":
        if y.ndim != 1:
            raise InputError(f"{where}: an example has one word as its label; not {y[0]!r:.200}")
        labels = {name: label for label, name in enumerate(names)}
        strange = [i for i, word in enumerate(y) if word not in labels]
        if strange:
            raise unknown(f"class of {where} example {strange[0]}", str(y[strange[0]]), names)
        y = np.array([labels[word] for word in y])
    if y.ndim == 1 and (y < 0).any():
        bad = int(np.argmax(y < 0))
        raise InputError(
            f"{where} example {bad} has the label {y[bad]}; they count from 0, unless they are "
            "numbers to predict: give these as floats"
        )
    return Examples(x, torch.from_numpy(y.astype(np.int64)))


def _tensors(x: np.ndarray | dict[str, np.ndarray]) -> Inputs:
    if isinstance(x, dict):
        return {name: torch.from_numpy(values) for name, values in x.items()}
    return torch.from_numpy(np.require(x, requirements=["C", "W"]))


def _is_class(y: Tensor) -> bool:
    return y.ndim == 1 and not y.is_floating_point()


def _count(y: Tensor) -> int:
    """The number of classes, which are counted from 0."""
    if not _is_class(y):
        return 0
    if (count := int(y.max()) + 1) > MOST_CLASSES:
        raise InputError(
            f"example {int(y.argmax())} has the label {count - 1}, which makes {count:,} classes: "
            f"labels count from 0; if there are more than {MOST_CLASSES:,}, give num_classes"
        )
    return count


def _groups(found: Collected, y: Tensor) -> np.ndarray:
    """What every part of gives the same share of its examples: clients, or else classes."""
    if found.client is not None:
        return found.client
    return y.numpy() if _is_class(y) else np.zeros(len(y))


def _held_out(groups: np.ndarray, fraction: float, seed: int) -> np.ndarray:
    """Which examples are for testing: at least one of every group, and never all of it."""
    if not 0 < fraction < 1:
        raise InputError(f"test_fraction lies between 0 and 1; not {fraction}")
    rng, mask = seeded_generator(seed), np.zeros(len(groups), bool)
    for group in np.unique(groups):
        members = np.flatnonzero(groups == group)
        size = min(max(1, round(fraction * len(members))), len(members) - 1)
        mask[rng.choice(members, size, replace=False)] = True
    if not mask.any():
        raise InputError("there are too few examples to hold some out for testing: give test too")
    return mask
