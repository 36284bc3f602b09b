"""Examples that come one by one as dicts: items of a dataset, and rows that a transform makes."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from torch import Tensor

from gcfed.core.seeding import generators_kept
from gcfed.data.datasets.lazy_items import targets
from gcfed.errors import InputError, reason


class RowTable:
    """Examples that are dicts, as a table of columns; the first one says which there are.

    They are read whenever they are asked for, since they may be drawn anew each time.
    """

    def __init__(self, source: Any, where: str) -> None:
        if not len(source):
            raise InputError(f"{where}: there are no examples")
        self.source = source
        with generators_kept():
            self.column_names = list(read_item(source, where, 0))
        features = getattr(source, "features", None) or {}
        self.features = {name: features.get(name) for name in self.column_names}

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, i: int) -> Any:
        return self.source[i]


def is_table(source: Any) -> bool:
    """Whether this is a Hugging Face dataset, or has its features and names of columns."""
    return all(hasattr(source, name) for name in ("features", "column_names", "__len__"))


def is_transformed(table: Any) -> bool:
    """Whether a function of its owner makes the rows of a Hugging Face dataset (with_transform).

    Its columns are then not what rows hold.
    """
    made_as = getattr(table, "format", None)
    return isinstance(made_as, Mapping) and made_as.get("type") == "custom"


class PairRows:
    """Items that are pairs of inputs by name and a label, as dicts that hold both."""

    LABEL = "label of the pair"

    def __init__(self, source: Any) -> None:
        self.source, self.targets = source, targets(source)

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, i: int) -> Any:
        inputs, label = self.source[i]
        return {**inputs, self.LABEL: label}


def holds_dicts(source: Any) -> bool:
    """Whether the items of a list or of a map-style dataset are dicts."""
    return isinstance(_first(source), Mapping)


def holds_pairs_with_dicts(source: Any) -> bool:
    """Whether they are pairs of inputs by name and a label."""
    first = _first(source)
    if not isinstance(first, list | tuple) or len(first) != 2:
        return False
    return isinstance(first[0], Mapping) and not isinstance(first[1], Mapping)


def _first(source: Any) -> Any:
    """The first item of a list or of a map-style dataset, if it has one that can be read."""
    if isinstance(source, Mapping | Tensor | np.ndarray) or not hasattr(source, "__getitem__"):
        return None
    if not hasattr(source, "__len__") or len(source) == 0:
        return None
    with generators_kept(), suppress(Exception):  # what is wrong with it shows where it is read
        return source[0]
    return None


def read_item(source: Any, where: str, i: int) -> Any:
    """An item of a dataset; an error of people's own code is one sentence that names it."""
    try:
        return source[i]
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{where} example {i} cannot be read: {reason(error)}") from error
