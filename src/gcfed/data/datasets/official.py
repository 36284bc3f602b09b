"""The published data sets, read from their official files, which are fetched if they are missing.

Transforms are those of the paper's experiments: random crops and flips in training unless
``augment`` is false, and CIFAR-10's statistics for all three sets of colour images.
"""

import string
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from gcfed.core.types import Examples
from gcfed.data.augmentation import ImageTransform
from gcfed.data.datasets import tinyimagenet as tiny
from gcfed.data.datasets.builtin import FASHION_CLASSES, FASHION_STATISTICS
from gcfed.data.datasets.dataset import DATASETS, Dataset
from gcfed.data.downloads import formats
from gcfed.data.downloads.cache import Decoded, cached
from gcfed.data.downloads.catalog import PUBLICATIONS, File
from gcfed.data.downloads.fetch import CACHE, ensure

CIFAR10_STATISTICS = ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
"""Mean and deviation of CIFAR-10's 50,000 train images, channel by channel."""

EMNIST_STATISTICS = ((0.1751,), (0.3333,))
MNIST_STATISTICS = ((0.1307,), (0.3081,))

Places = Mapping[str, tuple[Path, File]]
"""The files of a data set by the last part of their names, and where they lie."""

Split = Literal["byclass", "balanced", "letters"]

_EMNIST_CLASSES: Mapping[Split, str] = {
    "byclass": string.digits + string.ascii_uppercase + string.ascii_lowercase,
    "balanced": string.digits + string.ascii_uppercase + "abdefghnqrt",
    "letters": string.ascii_lowercase,
}


@DATASETS.register("cifar10")
def cifar10(root: Path, *, augment: bool = True) -> Dataset:
    """CIFAR-10, 50,000 train and 10,000 test photographs of 32 x 32 in 10 classes."""

    def decode(places: Places) -> Decoded:
        batches = [places[f"data_batch_{i}"] for i in range(1, 6)]
        return Decoded(
            _examples(*formats.cifar_batches(batches, "labels", 10)),
            _examples(*formats.cifar_batches([places["test_batch"]], "labels", 10)),
            formats.cifar_names(*places["batches.meta"], "label_names"),
        )

    return _dataset(_load("cifar10", root, decode), 10, _colour(4, augment))


@DATASETS.register("cifar100")
def cifar100(root: Path, *, augment: bool = True) -> Dataset:
    """CIFAR-100, 50,000 train and 10,000 test photographs of 32 x 32 in 100 classes."""

    def decode(places: Places) -> Decoded:
        return Decoded(
            _examples(*formats.cifar_batches([places["train"]], "fine_labels", 100)),
            _examples(*formats.cifar_batches([places["test"]], "fine_labels", 100)),
            formats.cifar_names(*places["meta"], "fine_label_names"),
        )

    return _dataset(_load("cifar100", root, decode), 100, _colour(4, augment))


@DATASETS.register("tinyimagenet")
def tinyimagenet(root: Path, *, augment: bool = True) -> Dataset:
    """Tiny ImageNet, 100,000 train and 10,000 test photographs of 64 x 64 in 200 classes.

    The test examples are those of its val split: the labels of its own test split are not public.
    """

    def decode(places: Places) -> Decoded:
        ((path, _),) = places.values()
        train, val, names = tiny.read(path)
        return Decoded(_examples(*train), _examples(*val), names)

    return _dataset(_load("tinyimagenet", root, decode), 200, _colour(8, augment))


@DATASETS.register("emnist")
def emnist(root: Path, *, split: Split = "byclass", augment: bool = True) -> Dataset:
    """EMNIST, handwritten digits and letters of 28 x 28: byclass (62), balanced (47), letters (26).

    Images stand upright, which the official files have transposed, and labels begin at 0, which
    those of letters do not.
    """
    names = _EMNIST_CLASSES[split]

    def decode(places: Places) -> Decoded:
        pairs = (_idx_pair(places, f"emnist-{split}-{part}") for part in ("train", "test"))
        first = 1 if split == "letters" else 0
        train, test = (_examples(x.swapaxes(2, 3), y - first) for x, y in pairs)
        return Decoded(train, test, tuple(names))

    transform = ImageTransform(*EMNIST_STATISTICS, padding=4 * augment, flip=augment)
    return _dataset(_load("emnist", root, decode, f"emnist-{split}-"), len(names), transform)


@DATASETS.register("fashionmnist")
def fashionmnist(root: Path) -> Dataset:
    """Fashion-MNIST, 60,000 train and 10,000 test pictures of clothes of 28 x 28 in 10 classes."""
    loaded = _load("fashionmnist", root, lambda places: _mnist(places, FASHION_CLASSES))
    return _dataset(loaded, 10, ImageTransform(*FASHION_STATISTICS))


@DATASETS.register("mnist")
def mnist(root: Path) -> Dataset:
    """MNIST, 60,000 train and 10,000 test handwritten digits of 28 x 28."""
    loaded = _load("mnist", root, lambda places: _mnist(places, tuple(string.digits)))
    return _dataset(loaded, 10, ImageTransform(*MNIST_STATISTICS))


def _load(name: str, root: Path, decode: Callable[[Places], Decoded], prefix: str = "") -> Decoded:
    """Find, decode and keep the files of a data set whose names begin with ``prefix``."""
    published = PUBLICATIONS[name]
    wanted = {
        last: file
        for file in published.files
        if (last := file.name.rpartition("/")[2]).startswith(prefix)
    }
    paths = ensure(published, list(wanted.values()), root)
    places = {last: (paths[file.name], file) for last, file in wanted.items()}
    sources = [source for path in paths.values() for source in tiny.origins(path)]
    key = prefix.strip("-") or name
    return cached(root / CACHE, key, sources, lambda: decode(places))


def _mnist(places: Places, names: tuple[str, ...]) -> Decoded:
    train, test = (_examples(*_idx_pair(places, part)) for part in ("train", "t10k"))
    return Decoded(train, test, names)


def _idx_pair(places: Places, stem: str) -> tuple[np.ndarray, np.ndarray]:
    images, labels = (places[f"{stem}-{kind}-ubyte"] for kind in ("images-idx3", "labels-idx1"))
    return formats.idx_split(images, labels)


def _examples(x: np.ndarray, y: np.ndarray) -> Examples:
    x = np.require(x, requirements=["C", "W"])  # a copy, if x still lies in the bytes of its file
    return Examples(torch.from_numpy(x), torch.tensor(y).long())


def _colour(padding: int, augment: bool) -> ImageTransform:
    return ImageTransform(*CIFAR10_STATISTICS, padding=padding * augment, flip=augment)


def _dataset(decoded: Decoded, num_classes: int, transform: ImageTransform) -> Dataset:
    train, test, names = decoded
    return Dataset(
        train=train, test=test, num_classes=num_classes, transform=transform, class_names=names
    )
