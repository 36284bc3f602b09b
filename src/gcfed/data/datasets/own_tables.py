"""Tables as people hold them: data frames, sparse matrices, Bunches, ``.csv`` and others."""

import math
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from gcfed.capacity import check_fits
from gcfed.data.datasets.arrays import Collected, as_array, from_arrays
from gcfed.errors import InputError, reason, unknown

FILES = {".csv": "read_csv", ".tsv": "read_table", ".parquet": "read_parquet"}
"""Files that pandas reads, and by what; ``.CSV`` is one of them too."""


def is_frame(source: Any) -> bool:
    """Whether this is a data frame, of pandas or polars."""
    return hasattr(source, "to_numpy") and hasattr(source, "columns")


def is_tabular(source: Any) -> bool:
    """Whether this is a data frame, a column of one or a sparse matrix."""
    return hasattr(source, "to_numpy") or (hasattr(source, "toarray") and hasattr(source, "nnz"))


def is_bunch(source: Any) -> bool:
    """Whether this is what scikit-learn's data sets come as."""
    return isinstance(source, Mapping) and {"data", "target"} <= source.keys()


def read_frame(path: Path) -> Any:
    """A data frame of a file of one of these kinds."""
    try:
        return getattr(import_module("pandas"), FILES[path.suffix.lower()])(path)
    except ImportError as error:
        raise InputError(f"to read {path} takes pandas: {reason(error)}") from None
    except Exception as error:  # each kind of file has its own
        raise InputError(f"{path} cannot be read: {reason(error)}") from error


def from_bunch(bunch: Mapping[str, Any], where: str) -> Collected:
    """The inputs and labels of a Bunch, and what it calls its classes."""
    pair = plain(bunch["data"], where), plain(bunch["target"], where)
    found = from_arrays(pair, where)
    has_classes = found.y.ndim == 1 and found.y.dtype.kind in "iu"
    names = bunch.get("target_names") if has_classes else None
    return found._replace(class_names=() if names is None else tuple(map(str, names)))


def from_frame(
    frame: Any, where: str, x: str | tuple[str, ...] | None, y: str, client: str | None
) -> Collected:
    """A data frame: labels in the column ``y``, and inputs in all others, or in ``x`` alone."""
    names, chosen = list(frame.columns), (x,) if isinstance(x, str) else x or ()
    for name in filter(None, (*chosen, y, client)):
        if name not in names:
            raise unknown(f"column of the {where} data", name, map(str, names))
    inputs = list(chosen) or [name for name in names if name not in (y, client)]
    features = _features(frame, inputs, where)
    found = from_arrays((features, _column(frame[y])), where)
    holders = None if client is None else as_array(_column(frame[client]), f"{where}: client")
    return found._replace(client=holders)


def plain_parts(parts: tuple[Any, ...], where: str) -> tuple[Any, ...]:
    """Each as an array where it is a table; a second one of one column holds labels."""
    if len(parts) == 2 and is_frame(parts[1]) and len(parts[1].columns) == 1:
        parts = parts[0], parts[1][parts[1].columns[0]]
    return tuple(plain(part, where) for part in parts)


def plain(value: Any, where: str) -> Any:
    """A data frame, a column of one or a sparse matrix as an array; anything else as it is."""
    if is_frame(value):
        return _features(value, list(value.columns), where)
    if not is_tabular(value):
        return value
    if hasattr(value, "to_numpy"):
        return _column(value)
    size = math.prod(value.shape) * value.dtype.itemsize
    check_fits(f"{where}: a sparse matrix of shape {list(value.shape)}, made dense,", size)
    return value.toarray()


def _features(frame: Any, names: Sequence[Any], where: str) -> np.ndarray:
    """Columns beside each other, as floats: what a table holds are features."""
    if len(frame) == 0:
        raise InputError(f"{where}: the table has no rows")
    columns = {name: as_array(_column(frame[name]), f"{where} column {name}") for name in names}
    for name, values in columns.items():
        if values.dtype.kind == "U":
            raise InputError(
                f"{where}: column {name} holds words, such as {values[0]!r:.50}: leave it out, or "
                "make numbers of it (pandas.get_dummies makes a column of each word)"
            )
    if not columns:
        raise InputError(f"{where}: beside its labels the table has no column")
    return np.column_stack(list(columns.values())).astype(np.float64)


def _column(series: Any) -> np.ndarray:
    """A column as an array; words as numpy has them."""
    values: np.ndarray = series.to_numpy()
    is_words = values.dtype.kind not in "biuf" and all(isinstance(v, str) for v in values)
    return values.astype(str) if is_words else values
