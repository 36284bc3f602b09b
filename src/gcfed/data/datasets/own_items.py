"""Data sets that give example by example, and tables that give row by row."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from PIL import Image
from torch import Tensor

from gcfed.core.seeding import drawn_since, generators_kept, states
from gcfed.data.datasets.arrays import Collected, as_array, channels_first, narrowed
from gcfed.data.datasets.lazy_items import RANDOM, Lazy, lazily, targets
from gcfed.data.datasets.named_inputs import from_columns, usual_inputs
from gcfed.data.datasets.own_rows import PairRows, RowTable, is_table, is_transformed, read_item
from gcfed.data.item_reader import Items
from gcfed.errors import InputError, unknown

_INPUTS = ("image", "img", "x", "pixel_values", "features")
_LABELS = ("label", "labels", "y", "target", "fine_label")


class Columns(NamedTuple):
    """The columns of a table that hold inputs and labels (found by themselves) and the client.

    Several inputs keep the names of their columns.  Texts are filled up with the token ``pad``.
    ``takes`` are the names of inputs that the model takes.
    """

    x: str | tuple[str, ...] | None = None
    y: str | None = None
    client: str | None = None
    pad: int = 0
    takes: Sequence[str] = ()


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
    item = read_item(source, where, i)
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
    """A Hugging Face dataset, what has its features, column names and rows, or items like rows."""
    given = source.dataset if isinstance(source, Lazy) else source
    table = given if is_table(given) and not is_transformed(given) else RowTable(given, where)
    x, y = _inputs_and_labels(table, columns, where)
    inputs = (x,) if isinstance(x, str) else x
    if isinstance(x, str):
        found = _read(source, partial(_row, table, where, x, y), partial(_labels, given, y), where)
    elif isinstance(source, Lazy):
        raise _only_in_memory(inputs, "Lazy", "give the dataset itself, without Lazy", where)
    else:
        cells = _cells(table, inputs, y, where)
        by_name = {name: cells[name] for name in inputs}
        found = from_columns(by_name, cells[y], where, columns.pad, y_is_text=y in inputs)
    return found._replace(
        class_names=tuple(getattr(table.features[y], "names", ())),
        client=_clients(given, columns.client, where),
        note=_note(table.column_names, inputs, y, columns.client),
    )


def from_pairs_with_dicts(source: Any, where: str, columns: Columns) -> Collected:
    """A map-style dataset of pairs: inputs by name, of which all are read, and a label."""
    lazy = isinstance(source, Lazy)
    rows = PairRows(source.dataset if lazy else source)
    names = tuple(name for name in RowTable(rows, where).column_names if name != rows.LABEL)
    alone = len(names) == 1 and names != usual_inputs(names)  # a text stays a column, to be padded
    x = columns.x or (names[0] if alone else names)
    named = columns._replace(x=x, y=rows.LABEL)
    return from_table(replace(source, dataset=rows) if lazy else rows, where, named)


def _inputs_and_labels(
    table: Any, columns: Columns, where: str
) -> tuple[str | tuple[str, ...], str]:
    """The columns of inputs and of labels, as they are given, or called as usual.

    Where the model takes the usual inputs by name, columns of numbers that it takes too are inputs,
    unless the first is a picture, whose bytes are normalised.
    """
    names = table.column_names
    y = columns.y or _column(table, "ClassLabel", _LABELS, where)
    x = columns.x or usual_inputs(names) or _column(table, "Image", _INPUTS, where)
    found = (x,) if isinstance(x, str) else tuple(x)
    for name in (*found, y):
        if name not in names:
            raise unknown(f"column of the {where} data", name, names)
    if columns.x is None and found[0] in columns.takes:
        used = {*found, y, columns.client, *_LABELS}
        more = [name for name in names if name in columns.takes and name not in used]
        with generators_kept():
            row = read_item(table, where, 0) if more else {}
        if more and not _is_picture(row[found[0]], where):
            found = (*found, *(name for name in more if _is_numbers(row[name])))
    return (x if isinstance(x, str) and len(found) == 1 else found), y


def _is_numbers(value: Any) -> bool:
    try:
        return as_array(value, "").dtype.kind != "U"
    except InputError:
        return False


def _is_picture(value: Any, where: str) -> bool:
    """Whether an input is of bytes, or its channels are not where a model has them."""
    image = _image(value, where)
    return image.dtype == np.uint8 or image.shape != np.shape(value)


def _note(names: Sequence[str], x: Sequence[str], y: str, client: str | None) -> str:
    """What of a table is read and what is left out; nothing where all is read."""
    left = [name for name in names if name not in (*x, y, client)]
    if not left:
        return ""
    return f"inputs: {', '.join(x)}; labels: {y}; columns that are left out: {', '.join(left)}"


def _cells(table: Any, several: tuple[str, ...], y: str, where: str) -> dict[str, list[Any]]:
    """The columns of inputs and labels in memory; what is another at each reading is refused."""
    if not isinstance(table, RowTable):
        return {name: list(table[name]) for name in {*several, y}}
    readers = [partial(_row, table, where, name, y) for name in several]
    items = [Items(partial(_array_and_label, read, where), len(table), where) for read in readers]
    is_random, before = any(each.is_random() for each in items), states()
    cells: dict[str, list[Any]] = {name: [] for name in (*several, y)}
    for i in () if is_random else range(len(table)):
        row = _complete(table, where, i, tuple(cells))
        for name, column in cells.items():
            column.append(row[name])
    if is_random or drawn_since(before):
        todo = "draw them once before training, as datasets.Dataset.map does"
        raise _only_in_memory(several, "drawn anew at every reading", todo, where)
    return cells


def _only_in_memory(names: Sequence[str], but: str, todo: str, where: str) -> InputError:
    return InputError(
        f"{where}: texts, and several inputs by name, are read once before training, and "
        f"{', '.join(names)} are {but}: {todo}; or name one input alone, as columns=(x, y)"
    )


def _labels(source: Any, y: str) -> np.ndarray | None:
    """The labels as a dataset states them, without a transform of whole rows, if it does."""
    if y not in getattr(source, "column_names", ()):
        return targets(source)
    untransformed = source.with_format(None) if hasattr(source, "with_format") else source
    return np.asarray(list(untransformed[y]))


def _clients(source: Any, name: str | None, where: str) -> np.ndarray | None:
    """Who holds each example, by the column ``name``."""
    if name is None:
        return None
    if is_table(source):
        if name not in source.column_names:
            raise unknown(f"column of the {where} data", name, source.column_names)
        return _labels(source, name)
    with generators_kept():
        rows = (_complete(source, where, i, (name,)) for i in range(len(source)))
        return np.asarray([row[name] for row in rows])


def _row(table: Any, where: str, x: str, y: str, i: int) -> tuple[Any, Any]:
    row = _complete(table, where, i, (x, y))
    return row[x], row[y]


def _complete(table: Any, where: str, i: int, names: Sequence[str]) -> Mapping[str, Any]:
    """A row that has all of these columns."""
    row: Mapping[str, Any] = read_item(table, where, i)
    missing = [name for name in names if name not in row]
    if missing:
        raise InputError(f"{where} example {i} has no {missing[0]}; it has {', '.join(row)}")
    return row


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
