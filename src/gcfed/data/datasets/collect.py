"""People's own data, in whatever form they hold it, as arrays."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image
from torch import Tensor

from gcfed.core.lazy import LazyInputs
from gcfed.core.seeding import drawn_since, states
from gcfed.data.datasets.arrays import (
    Collected,
    as_array,
    channels_first,
    from_arrays,
    narrowed,
)
from gcfed.data.datasets.lazy_items import RANDOM, Lazy, joined_lazily, lazily, targets
from gcfed.data.datasets.named_inputs import (
    RowTable,
    from_columns,
    is_named_pair,
    joined,
    text_columns,
)
from gcfed.data.datasets.own_files import folder_of_images
from gcfed.data.datasets.own_tables import (
    FILES,
    from_bunch,
    from_frame,
    is_bunch,
    is_frame,
    is_tabular,
    plain_parts,
    read_frame,
)
from gcfed.data.item_reader import Items
from gcfed.errors import InputError, reason, unknown

FORMS = (
    "a dataset whose items are pairs of image and label, a pair of arrays (the first may be a dict "
    "of several by name), a data frame, a Hugging Face dataset, the path of an .npz, a .csv, a "
    ".parquet or a folder of images by class, or a list of any of these, one a client"
)

_INPUTS = ("image", "img", "x", "pixel_values", "features")
_LABELS = ("label", "labels", "y", "target", "fine_label")


class Columns(NamedTuple):
    """The columns of a table that hold inputs and labels (found by themselves) and the client.

    Several inputs keep the names of their columns.
    """

    x: str | tuple[str, ...] | None = None
    y: str | None = None
    client: str | None = None


def collect(source: Any, where: str, columns: Columns) -> Collected:
    """Every example of ``source``, which ``where`` names in errors."""
    if isinstance(source, tuple) and not isinstance(source, Collected):
        source = plain_parts(source, where)
    if isinstance(source, str | Path) and Path(source).suffix in FILES:
        source = read_frame(Path(source))
    if isinstance(source, Collected):
        found = source
    elif _is_pair_of_arrays(source):
        found = from_arrays(source, where)
    elif is_bunch(source):
        found = from_bunch(source, where)
    elif is_frame(source):
        y = columns.y or _usual_label(source, where)
        found = from_frame(source, where, columns.x, y, columns.client)
    elif is_named_pair(source):
        found = from_columns(source[0], source[1], where)
    elif isinstance(source, str | Path):
        found = folder_of_images(Path(source))
    elif _is_table(source.dataset if isinstance(source, Lazy) else source):
        found = _from_table(source, where, columns)
    elif RowTable.suits(source):
        found = _from_table(RowTable(source), where, columns)
    elif _is_by_client(source):
        _refuse_broken_pair(source)
        return _by_client(source, columns)
    elif _is_map_style(source):
        found = _from_items(source, where)
    else:
        raise InputError(f"{where} data is {FORMS}; not {type(source).__name__}")
    _check(found, where)
    return found


def _is_table(source: Any) -> bool:
    return all(hasattr(source, name) for name in ("features", "column_names", "__len__"))


def _is_map_style(source: Any) -> bool:
    return (
        hasattr(source, "__getitem__")
        and hasattr(source, "__len__")
        and not isinstance(source, Mapping | Tensor | np.ndarray)
    )


def _check(found: Collected, where: str) -> None:
    if isinstance(found.x, dict):
        for x in found.x.values():
            _check(found._replace(x=x), where)
        return
    for what, values in (("examples", found.x), ("labels", found.y)):
        if 0 in values.shape[1:]:
            raise InputError(f"{where}: {what} of shape {list(values.shape[1:])} hold nothing")
    if len(found.x) != len(found.y):
        raise InputError(f"{where}: {len(found.x)} examples have {len(found.y)} labels")
    if found.client is not None and len(found.client) != len(found.y):
        raise InputError(f"{where}: {len(found.y)} examples have {len(found.client)} clients")
    if not len(found.x):
        raise InputError(f"{where}: there are no examples")
    for what, values in (("holds", found.x), ("has a label with", found.y)):
        if isinstance(values, LazyInputs) or values.dtype.kind != "f":
            continue
        for start in range(0, len(values), 4096):
            rows = np.isfinite(values[start : start + 4096]).reshape(-1, values[0].size).all(1)
            if not rows.all():
                bad = start + int(np.argmin(rows))
                raise InputError(f"{where} example {bad} {what} a number that is not finite")


def _is_pair_of_arrays(source: Any) -> bool:
    return isinstance(source, tuple) and _is_data_of_client(source) and not is_named_pair(source)


def _is_data_of_client(item: Any) -> bool:
    """Whether an item of a list is two arrays: the inputs and labels of a client."""
    if is_named_pair(item):
        return np.ndim(item[1]) > 0
    return (
        isinstance(item, list | tuple)
        and len(item) == 2
        and all(is_tabular(v) or (isinstance(v, Tensor | np.ndarray) and v.ndim >= 1) for v in item)
    )


def _is_by_client(source: Any) -> bool:
    return isinstance(source, list | tuple) and bool(source) and not _is_example(source[0])


def _is_example(item: Any) -> bool:
    return isinstance(item, list | tuple) and len(item) == 2 and not _is_data_of_client(item)


def _refuse_broken_pair(parts: Sequence[Any]) -> None:
    """Refuse ``[x, y]``, which would be two clients that each hold inputs without labels."""
    if len(parts) == 2 and (isinstance(parts[0], Tensor | np.ndarray) or _is_of_numbers(parts[1])):
        raise InputError(
            f"a pair is a tuple of two arrays, (x, y); not a {type(parts).__name__} of "
            f"{' and '.join(type(part).__name__ for part in parts)}. A list holds the data of one "
            "client each: [(x0, y0), (x1, y1), ...]"
        )


def _is_of_numbers(part: Any) -> bool:
    return isinstance(part, list | tuple) and bool(part) and isinstance(part[0], int | float | str)


def _by_client(parts: Sequence[Any], columns: Columns) -> Collected:
    pairs = [tuple(part) if _is_data_of_client(part) else part for part in parts]
    found = [collect(part, f"client {k}", columns) for k, part in enumerate(pairs)]
    client = np.repeat(np.arange(len(found)), [len(part.y) for part in found])
    if any(isinstance(part.x, dict) for part in found):
        return joined(found, client)
    inputs = [part.x for part in found if not isinstance(part.x, dict)]
    shapes = {tuple(x.shape[1:]) for x in inputs}
    if len(shapes) > 1:
        raise InputError(f"clients hold examples of different shapes: {sorted(shapes)}")
    arrays = [x for x in inputs if isinstance(x, np.ndarray)]
    x = np.concatenate(arrays) if len(arrays) == len(inputs) else joined_lazily(inputs)
    return Collected(x, np.concatenate([part.y for part in found]), found[0].class_names, client)


def _from_items(source: Any, where: str) -> Collected:
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


def _from_table(source: Any, where: str, columns: Columns) -> Collected:
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


def _usual_label(frame: Any, where: str) -> str:
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
