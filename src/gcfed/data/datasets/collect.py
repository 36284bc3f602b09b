"""People's own data, in whatever form they hold it, as arrays."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import DataLoader

from gcfed.core.lazy import LazyInputs
from gcfed.data.datasets.arrays import Collected, from_arrays
from gcfed.data.datasets.lazy_items import Lazy, joined_lazily
from gcfed.data.datasets.named_inputs import TEXT, from_columns, is_named_pair, joined
from gcfed.data.datasets.own_files import folder_of_images
from gcfed.data.datasets.own_items import (
    Columns,
    from_items,
    from_pairs_with_dicts,
    from_table,
    usual_label,
)
from gcfed.data.datasets.own_rows import holds_dicts, holds_pairs_with_dicts, is_table
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
from gcfed.errors import InputError

FORMS = (
    "a dataset whose items are pairs of image and label, a pair of arrays (the first may be a dict "
    "of several by name), a data frame, a Hugging Face dataset, the path of an .npz, a .csv, a "
    ".tsv, a .parquet or a folder of images by class, or a list of any of these, one a client"
)


def collect(source: Any, where: str, columns: Columns) -> Collected:
    """Every example of ``source``, which ``where`` names in errors."""
    if isinstance(source, tuple) and not isinstance(source, Collected):
        source = plain_parts(source, where)
    if isinstance(source, str | Path) and Path(source).suffix.lower() in FILES:
        source = read_frame(Path(source))
    if isinstance(source, Collected):
        found = source
    elif _is_pair_of_arrays(source):
        found = from_arrays(source, where)
    elif is_bunch(source):
        found = from_bunch(source, where)
    elif is_frame(source):
        y = columns.y or usual_label(source, where)
        found = from_frame(source, where, columns.x, y, columns.client)
    elif is_named_pair(source):
        found = from_columns(source[0], source[1], where, columns.pad)
    elif isinstance(source, str | Path):
        found = _folder(Path(source))
    elif is_table(source.dataset if isinstance(source, Lazy) else source) or holds_dicts(source):
        found = from_table(source, where, columns)
    elif _is_by_client(source):
        _refuse_broken_pair(source)
        _refuse_loose_inputs(source)
        return _by_client(source, columns)
    elif holds_pairs_with_dicts(source):
        found = from_pairs_with_dicts(source, where, columns)
    elif _is_map_style(source):
        found = from_items(source, where)
    else:
        kind = type(source).__name__
        if isinstance(source, DataLoader):
            raise InputError(f"{where} data is a {kind}: give its dataset, loader.dataset")
        if isinstance(source, Tensor | np.ndarray):
            raise InputError(
                f"{where} data is a {kind} alone: give a pair of images and labels, as in "
                "fit(module, (images, labels))"
            )
        raise InputError(f"{where} data is {FORMS}; not {kind}")
    _check(found, where)
    return found


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


def _folder(path: Path) -> Collected:
    if not path.is_dir():
        kinds = ", ".join(FILES)
        raise InputError(
            f"{path} is not a folder of images by class, nor a file that is read (.npz, {kinds})"
        )
    return folder_of_images(path)


def _is_pair_of_arrays(source: Any) -> bool:
    """Whether this is a tuple of inputs and labels; the labels may be a list."""
    if not isinstance(source, tuple) or is_named_pair(source):
        return False
    kinds = [Tensor | np.ndarray, list]
    is_listed = len(source) == 2 and all(map(isinstance, source, kinds))
    return is_listed or _is_data_of_client(source)


def _is_listed(value: Any) -> bool:
    return isinstance(value, list | tuple) or np.ndim(value) > 0


def _is_data_of_client(item: Any) -> bool:
    """Whether an item of a list is two arrays: the inputs and labels of a client."""
    if is_named_pair(item):
        texts = item[0].get(TEXT[0], ())  # one text alone is an example
        return _is_listed(item[1]) and (len(texts) == 0 or _is_listed(texts[0]))
    return (
        isinstance(item, list | tuple)
        and len(item) == 2
        and all(is_tabular(v) or (isinstance(v, Tensor | np.ndarray) and v.ndim >= 1) for v in item)
    )


def _is_by_client(source: Any) -> bool:
    return isinstance(source, list | tuple) and bool(source) and not _is_example(source[0])


def _is_example(item: Any) -> bool:
    """Whether an item of a list is an input and its label, and not what a client holds."""
    if not isinstance(item, list | tuple) or len(item) != 2 or isinstance(item[1], Mapping):
        return False
    return not _is_data_of_client(item)


def _refuse_broken_pair(parts: Sequence[Any]) -> None:
    """Refuse ``[x, y]``, which would be two clients that each hold inputs without labels."""
    if len(parts) == 2 and (isinstance(parts[0], Tensor | np.ndarray) or _is_of_numbers(parts[1])):
        raise InputError(
            f"a pair is a tuple of two arrays, (x, y); not a {type(parts).__name__} of "
            f"{' and '.join(type(part).__name__ for part in parts)}. A list holds the data of one "
            "client each: [(x0, y0), (x1, y1), ...]"
        )


def _refuse_loose_inputs(source: Any) -> None:
    """Refuse inputs one by one in a list, beside the labels of all, as if they were clients."""
    if not isinstance(source, tuple) or len(source) != 2 or not isinstance(source[0], list):
        return
    inputs, labels = source
    loose = all(isinstance(x, Tensor | np.ndarray) for x in inputs[:2])
    if inputs and loose and isinstance(labels, Tensor | np.ndarray | list) and np.ndim(labels) == 1:
        raise InputError(
            "the inputs of a pair are one array, and not a list of the inputs of each example: "
            "give torch.stack(inputs) or numpy.stack(inputs)"
        )


def _is_of_numbers(part: Any) -> bool:
    return isinstance(part, list | tuple) and bool(part) and isinstance(part[0], int | float | str)


def _by_client(parts: Sequence[Any], columns: Columns) -> Collected:
    pairs = [tuple(part) if _is_data_of_client(part) else part for part in parts]
    found = [collect(part, f"client {k}", columns) for k, part in enumerate(pairs)]
    client = np.repeat(np.arange(len(found)), [len(part.y) for part in found])
    if any(isinstance(part.x, dict) for part in found):
        return joined(found, client, columns.pad)
    inputs = [part.x for part in found if not isinstance(part.x, dict)]
    shapes = {tuple(x.shape[1:]) for x in inputs}
    if len(shapes) > 1:
        raise InputError(f"clients hold examples of different shapes: {sorted(shapes)}")
    arrays = [x for x in inputs if isinstance(x, np.ndarray)]
    x = np.concatenate(arrays) if len(arrays) == len(inputs) else joined_lazily(inputs)
    return found[0]._replace(x=x, y=np.concatenate([part.y for part in found]), client=client)
