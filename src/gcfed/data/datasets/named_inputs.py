"""Examples of several inputs by name: columns of a table, or arrays in a dict; texts are padded."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gcfed.core.ignored import IGNORED
from gcfed.core.lazy import LazyInputs
from gcfed.data.datasets.arrays import Collected, as_array
from gcfed.errors import InputError

MASK = "attention_mask"
"""What says, by ones and zeros, which tokens of a text are no padding."""

TEXT = ("input_ids", MASK, "token_type_ids")
"""The columns that a tokenizer of Hugging Face makes of a text, of which a model reads all."""

PIXELS = "pixel_values"
"""The column that an image processor of Hugging Face makes of a picture."""


def usual_inputs(names: Sequence[str]) -> str | tuple[str, ...] | None:
    """The columns that a tokenizer or an image processor of Hugging Face made for a model."""
    if TEXT[0] in names:
        return tuple(name for name in TEXT if name in names)
    return PIXELS if PIXELS in names else None


def is_named_pair(source: Any) -> bool:
    """Whether this is a pair of several inputs by name, as a tokenizer gives them, and labels."""
    return isinstance(source, tuple) and len(source) == 2 and isinstance(source[0], Mapping)


def from_columns(
    columns: Mapping[str, Sequence[Any]],
    y: Sequence[Any],
    where: str,
    pad: int,
    *,
    y_is_text: bool = False,
) -> Collected:
    """Examples whose inputs are ``columns``, of which one alone stays without a name.

    Texts are filled up with the token ``pad`` to the longest, other rows of whole numbers with
    zeros, and rows of labels with labels that do not count.  Padded texts get an attention mask,
    unless they have one.  Where the labels are the texts themselves (``y_is_text``), those of
    padding do not count.
    """
    for name, given in {**columns, "labels": y}.items():
        if not hasattr(given, "__len__") or getattr(given, "ndim", 1) == 0:
            raise InputError(f"{where}: {name} are a list or an array; not {given!r:.200}")
    if not columns:
        raise InputError(f"{where}: the dict of inputs is empty")
    x = {
        name: _padded(values, _fill(name, pad), f"{where}, {name}")
        for name, values in columns.items()
    }
    lengths = [len(row) for row in columns.get(TEXT[0], ())]
    if MASK not in x and len(set(lengths)) > 1:
        x[MASK] = (np.arange(max(lengths)) < np.array(lengths)[:, None]).astype(np.int64)
    labels = _padded(y, IGNORED, f"{where}, labels", words=True)
    if y_is_text and MASK in x:
        labels = np.where(x[MASK] == 0, IGNORED, labels)
    for name, values in x.items():
        if len(values) != len(labels):
            raise InputError(f"{where}: {len(values)} {name} have {len(labels)} labels")
    if not len(labels):
        raise InputError(f"{where}: there are no examples")
    (first, *others) = x.values()
    return Collected(x if others else first, labels)


def _fill(name: str, pad: int) -> int:
    """What stands behind the shorter rows of an input."""
    return pad if name.endswith(TEXT[0]) else 0  # decoder_input_ids are a text too


def same_width(parts: Sequence[Collected], pad: int) -> list[Collected]:
    """The same texts, all as wide as the widest: others are filled up with the token ``pad``.

    A part whose texts needed no mask gets one, if another has one or is wider.
    """
    if not any(isinstance(part.x, dict) for part in parts):
        return list(parts)
    inputs = list(map(_by_name, parts))
    widths = {x[TEXT[0]].shape[1:] for x in inputs if TEXT[0] in x}
    if len(widths) > 1 or any(MASK in x for x in inputs):
        inputs = [
            {**x, MASK: np.ones_like(x[TEXT[0]])} if MASK not in x and TEXT[0] in x else x
            for x in inputs
        ]
    first, others = list(inputs[0]), [x for x in inputs if x.keys() != inputs[0].keys()]
    if others:
        raise InputError(
            f"a part of the data has the inputs {', '.join(first)}, and another "
            f"{', '.join(others[0])}: name the columns that all have"
        )
    wide = {name: _widened([x[name] for x in inputs], _fill(name, pad)) for name in first}
    y = _widened([part.y for part in parts], IGNORED)
    return [
        part._replace(x={name: values[i] for name, values in wide.items()}, y=y[i])
        for i, part in enumerate(parts)
    ]


def _by_name(part: Collected) -> dict[str, np.ndarray]:
    if isinstance(part.x, LazyInputs):
        raise InputError("data that are read when they are needed have one input, without a name")
    return part.x if isinstance(part.x, dict) else {TEXT[0]: part.x}


def joined(parts: Sequence[Collected], client: np.ndarray, pad: int) -> Collected:
    """The examples of several clients, whose inputs have names."""
    parts = same_width(parts, pad)
    inputs = list(map(_by_name, parts))
    x = {name: np.concatenate([each[name] for each in inputs]) for name in inputs[0]}
    return parts[0]._replace(x=x, y=np.concatenate([part.y for part in parts]), client=client)


def _padded(values: Sequence[Any], fill: int, where: str, *, words: bool = False) -> np.ndarray:
    """The rows of a column as one array; rows of whole numbers may differ in length."""
    rows = [as_array(value, where) for value in values]
    shapes = {row.shape for row in rows}
    if len(shapes) > 1:
        if any(row.ndim != 1 or row.dtype.kind not in "iu" for row in rows):
            raise InputError(f"{where}: examples are of different shapes: {sorted(shapes)}")
        rows = _widened([row[None] for row in rows], fill)
        rows = [row[0] for row in rows]
    array = np.stack(rows) if rows else np.zeros(0)
    if array.dtype.kind == "U":
        if words:
            return array
        raise InputError(f"{where}: inputs are words; turn them into numbers first")
    return array if array.dtype.kind == "f" else array.astype(np.int64, copy=False)


def _widened(parts: Sequence[np.ndarray], fill: int) -> list[np.ndarray]:
    """Arrays of rows of whole numbers, with ``fill`` behind those that are not the longest."""
    if any(part.ndim != 2 or part.dtype.kind not in "iu" for part in parts):
        return list(parts)
    width = max(part.shape[1] for part in parts)
    return [
        np.pad(part, ((0, 0), (0, width - part.shape[1])), constant_values=fill) for part in parts
    ]
