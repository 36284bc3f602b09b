"""A picture of what a data set looks like: a few images of every class."""

import math

import numpy as np
from torch import Tensor

from gcfed.core.lazy import LazyInputs, loaded
from gcfed.data.datasets.dataset import Dataset, class_name
from gcfed.data.partitions.partition import stable_sort
from gcfed.errors import InputError
from gcfed.figures import Picture

INK = "#333333"
ROWS = 25
"""Classes below each other, beyond which another column of them begins."""


def draw_gallery(dataset: Dataset, per_class: int | None = None) -> Picture:
    """The first ``per_class`` train images of every class, a row each; 8, of many classes 4."""
    x = _images(dataset)
    rows = _rows(dataset)
    per_class = per_class or (8 if len(rows) <= ROWS else 4)
    if per_class < 1:
        raise InputError(f"a picture shows at least 1 image of a class; not {per_class}")
    num_columns = -(-len(rows) // ROWS)
    num_rows = -(-len(rows) // num_columns)
    names = list(rows)
    tile = 0.62
    label = 0.35 + 0.075 * max(map(len, names))
    height, width = x.shape[2:]
    size = num_columns * (tile * per_class * width / height + label), tile * num_rows + 0.2
    figure = Picture(figsize=size, layout="constrained")
    for column, axes in enumerate(figure.subplots(1, num_columns, squeeze=False)[0]):
        shown = names[column * num_rows : (column + 1) * num_rows]
        mosaic = _mosaic(x, [rows[name][:per_class] for name in shown], num_rows, per_class)
        axes.imshow(mosaic, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        names_of_rows = [name.replace("$", r"\$") for name in shown]  # no formulas
        axes.set_yticks((np.arange(len(shown)) + 0.5) * (height + 1) - 1, names_of_rows)
        axes.set_xticks([])
        axes.tick_params(colors=INK, labelsize=9, length=0)
        axes.spines[:].set_visible(False)
    return figure


def _images(dataset: Dataset) -> Tensor | LazyInputs:
    x = dataset.train.x
    if isinstance(x, dict) or x.ndim != 4 or x.shape[1] not in (1, 3):
        raise InputError("these examples are no images of 1 or 3 channels: there is no picture")
    return x


def _rows(dataset: Dataset) -> dict[str, np.ndarray]:
    """The examples of each class that has some, by its name; of a task without classes, all."""
    labels = dataset.pool.labels
    if labels is None:
        return {"": np.arange(dataset.pool.size)}
    ordered, order = stable_sort(labels)
    members = np.split(order, np.flatnonzero(np.diff(ordered)) + 1)
    return {class_name(dataset, int(labels[m[0]])): m for m in members}


def _mosaic(
    x: Tensor | LazyInputs, rows: list[np.ndarray], num_rows: int, num_columns: int
) -> np.ndarray:
    """Images beside and below each other on white, a pixel apart, in [0, 1]."""
    _, channels, height, width = x.shape
    out = np.ones((num_rows * (height + 1), num_columns * (width + 1), channels))
    for r, members in enumerate(rows):
        for c, image in enumerate(_brightness(loaded(x[members]).cpu().numpy())):
            top, left = r * (height + 1), c * (width + 1)
            out[top : top + height, left : left + width] = image.transpose(1, 2, 0)
    return out.squeeze(2) if channels == 1 else out


def _brightness(images: np.ndarray) -> np.ndarray:
    """Bytes and floats in [0, 1] as they are; other numbers from the least to the largest."""
    if images.dtype == np.uint8:
        return images / 255
    low, high = float(images.min()), float(images.max())
    if low >= 0 and high <= 1:
        return images
    return (images - low) / (high - low or math.inf)
