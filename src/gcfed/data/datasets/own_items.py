"""Data sets that give example by example, and tables that give row by row."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from PIL import Image
from torch import Tensor

from gcfed.core.seeding import drawn_since, states
from gcfed.data.datasets.arrays import Collected, as_array, channels_first, narrowed
from gcfed.data.datasets.lazy_items import RANDOM, Lazy, lazily, targets
from gcfed.data.datasets.named_inputs import from_columns, text_columns
from gcfed.data.item_reader import Items
from gcfed.errors import InputError, reason, unknown

_INPUTS = ("image", "img", "x", "pixel_values", "features")
_LABELS = ("label", "labels", "y", "target", "fine_label")


class Columns(NamedTuple):
    """The columns of a table that hold inputs and labels (found by themselves) and the client.

    Several inputs keep the names of their columns.
    """

    x: str | tuple[str, ...] | None = None
    y: str | None = None
    client: str | None = None


def from_items(source: Any, where: str) -> Collected:
    """A map-style dataset, as torch and torchvision have them."""
    return _read(source, partial(_pair, source, where), partial(targets, source), where)


def _read(
    source: Any, pair: Callable[[int], tuple[Any, Any]], labels: Callable[[], Any], where: str
) -> Collected:
    """What ``pair`` gives of each example of ``source``, read into memory.

    If the source is `Lazy`, or its examples are drawn anew at every reading, they are read later,
    and their labels are probably those that ``labels`` gives, unless it gives None.
    """
    items = Items(partial(_array_and_label, pair, where), len(source), where)
    is_random = items.size > 0 and items.is_random()
    if is_random or isinstance(source, Lazy):
        return lazily(source, items, labels(), RANDOM if is_random else "as asked")
    before = states()
    found = Collected(*_stacked(map(pair, range(items.size)), items.size, where))
    return lazily(source, items, labels(), RANDOM) if drawn_since(before) else found


def _array_and_label(
    pair: Callable[[int], tuple[Any, Any]], where: str, i: int
) -> tuple[np.ndarray, Any]:
    x, label = pair(i)
    return narrowed(_image(x, f"{where} example {i}"), where), label


def _pair(source: Any, where: str, i: int) -> tuple[Any, Any]:
    """The input and the label of an example."""
    try:
        item = source[i]
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{where} example {i} cannot be read: {reason(error)}") from error
    if not isinstance(item, list | tuple) or len(item) != 2:
        raise InputError(f"{where} example {i} is no pair of an input and a label")
    if isinstance(item[1], list | tuple):
        raise InputError(
            f"{where} example {i} has a {type(item[1]).__name__} as its label: give one "
            "number or word, or an array where there are several; the labels of a client "
            "are an array too: [(x0, y0), (x1, y1), ...]"
        )
    return item[0], item[1]


def from_table(source: Any, where: str, columns: Columns) -> Collected:
    """A Hugging Face dataset, or what has its features, column names and rows."""
    table = source.dataset if isinstance(source, Lazy) else source
    x = columns.x or text_columns(table.column_names) or _column(table, "Image", _INPUTS, where)
    y = columns.y or _column(table, "ClassLabel", _LABELS, where)
    several = () if isinstance(x, str) else tuple(x)
    for name in (*(several or [x]), y, *filter(None, [columns.client])):
        if name not in table.column_names:
            raise unknown(f"column of the {where} data", name, table.column_names)
    names = tuple(getattr(table.features[y], "names", ()))
    client = np.asarray(list(table[columns.client])) if columns.client else None
    if isinstance(x, str):
        found = _read(source, partial(_row, table, x, y), partial(_labels, table, y), where)
    else:
        inputs = {name: list(table[name]) for name in several}
        found = from_columns(inputs, list(table[y]), where, y_is_text=y in several)
    return found._replace(class_names=names, client=client)


def _labels(table: Any, y: str) -> np.ndarray:
    """The labels of a table alone, for which a transform of whole rows is left out."""
    untransformed = table.with_format(None) if hasattr(table, "with_format") else table
    return np.asarray(list(untransformed[y]))


def _row(table: Any, x: str, y: str, i: int) -> tuple[Any, Any]:
    row = table[i]
    return row[x], row[y]


def _column(table: Any, kind: str, usual: Sequence[str], where: str) -> str:
    of_kind = [n for n in table.column_names if type(table.features[n]).__name__ == kind]
    usual_names = [n for n in usual if n in table.column_names]
    found = [n for n in usual_names if n in of_kind] or of_kind or usual_names
    if not found:
        have = ", ".join(table.column_names)
        raise InputError(f"{where}: which column is it? There are {have}; say columns=(x, y)")
    return str(found[0])


def usual_label(frame: Any, where: str) -> str:
    found = [name for name in _LABELS if name in frame.columns]
    if not found:
        have = ", ".join(map(str, frame.columns))
        raise InputError(
            f"{where}: which column holds the labels? There are {have}; say "
            "columns=(None, 'name'), and all others are inputs"
        )
    return found[0]


def _stacked(
    items: Iterator[tuple[Any, Any]], size: int, where: str
) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and labels, each input copied into its place as it comes."""
    out, labels = np.empty((0,)), []
    for i, (image, label) in enumerate(items):
        value = narrowed(_image(image, f"{where} example {i}"), where)
        if i == 0:
            out = np.empty((size, *value.shape), value.dtype)
        if value.shape != out.shape[1:]:
            shapes = f"{list(value.shape)}, and the first of {list(out.shape[1:])}"
            raise InputError(f"{where} example {i} is of shape {shapes}")
        out[i] = value
        labels.append(as_array(label, where) if isinstance(label, Tensor) else label)
    return out, as_array(labels, where)


def _image(value: Any, where: str) -> np.ndarray:
    """One input; a picture as [channels, rows, columns]."""
    if isinstance(value, Image.Image):
        grey = value.mode in ("1", "L")
        array = np.asarray(value.convert("L" if grey else "RGB"))
    else:
        array = as_array(value, where)
    first: np.ndarray = channels_first(array[None], isinstance(value, Tensor))[0]
    return first
