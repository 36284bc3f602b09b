"""Data sets that need neither files nor a network."""

import math
from importlib.resources import as_file, files
from pathlib import Path

import numpy as np
import torch

from gcfed.capacity import check_fits
from gcfed.core.types import Examples
from gcfed.data.augmentation import ImageTransform
from gcfed.data.datasets.dataset import DATASETS, Dataset, seeded_generator
from gcfed.errors import InputError

FASHION_CLASSES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
FASHION_STATISTICS = ((0.2860,), (0.3530,))
"""Mean and deviation of Fashion-MNIST's 60,000 train images."""


@DATASETS.register("fashion10k")
def fashion10k(root: Path) -> Dataset:
    """Fashion-MNIST, 10,000 train and 2,000 test images of 10 classes; part of gcfed (MIT licence).

    Drawn by ``tools/make_fashion10k.py`` from the official train and test images, as many of every
    class, in their official order.  ``root`` is not looked at.
    """
    with (
        as_file(files("gcfed.data.datasets") / "embedded" / "fashion10k.npz") as path,
        np.load(path, allow_pickle=False) as arrays,
    ):
        train, test = (
            Examples(torch.from_numpy(arrays[f"x_{s}"]), torch.from_numpy(arrays[f"y_{s}"]).long())
            for s in ("train", "test")
        )
    return Dataset(
        train=train,
        test=test,
        num_classes=len(FASHION_CLASSES),
        transform=ImageTransform(*FASHION_STATISTICS),
        class_names=FASHION_CLASSES,
    )


@DATASETS.register("synthetic")
def synthetic(
    root: Path,
    *,
    num_classes: int = 10,
    train: int = 2000,
    test: int = 500,
    shape: tuple[int, ...] = (1, 8, 8),
    noise: float = 1.0,
    seed: int = 0,
) -> Dataset:
    """Gaussian clouds around one random prototype a class, drawn by a seed.

    Prototypes are about 3 sqrt(2) apart whatever the shape, so at ``noise`` 1 the best classifier
    of 10 classes errs on about one example in ten.  ``root`` is not looked at.
    """
    if min(num_classes, train, test, *shape) < 1 or not 0 <= noise < math.inf:
        raise InputError(
            "synthetic takes a positive num_classes, train, test and shape, and a finite noise >= 0"
        )
    numbers = (num_classes + train + test) * math.prod(shape)
    check_fits(f"synthetic(train={train}, test={test}, shape={shape}, ...)", 8 * numbers)
    rng = seeded_generator(seed)
    prototypes = 3 * rng.standard_normal((num_classes, *shape)) / math.sqrt(math.prod(shape))

    def draw(size: int) -> Examples:
        y = rng.permutation(np.arange(size) % num_classes)
        x = prototypes[y] + noise * rng.standard_normal((size, *shape))
        return Examples(torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y))

    return Dataset(train=draw(train), test=draw(test), num_classes=num_classes)


@DATASETS.register("blank")
def blank(
    root: Path,
    *,
    num_classes: int = 10,
    train: int = 50000,
    test: int = 10000,
    shape: tuple[int, ...] = (3, 32, 32),
) -> Dataset:
    """Black images, which take no memory, of equally many of each class: for costs, not to learn.

    ``root`` is not looked at.
    """
    if min(num_classes, train, test, *shape) < 1:
        raise InputError("blank takes a positive num_classes, train, test and shape")

    def make(size: int) -> Examples:
        x = torch.zeros((), dtype=torch.uint8).expand(size, *shape)
        return Examples(x, torch.arange(size) % num_classes)

    still = ImageTransform((0.5,) * shape[0], (0.5,) * shape[0])
    return Dataset(train=make(train), test=make(test), num_classes=num_classes, transform=still)
