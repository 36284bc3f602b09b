"""Algorithms and tasks as a table or a figure names them."""

import ast
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from gcfed.algorithms import spec
from gcfed.data import PARTITIONS
from gcfed.errors import InputError
from gcfed.registry import expression, hyper_parameters

PARTICIPATION = ("cohort", "clients")
FIRST = ("dataset", "model", *PARTICIPATION, "partition")
"""What a caption says first, in this order; the first two go without their key."""


def short(text: str) -> str:
    """An algorithm without the hyper-parameters that have their defaults."""
    try:
        return spec.short(text)
    except InputError:  # of a plugin that is not loaded, alone or in a chain
        first, plus, last = text.rpartition(" + ")
        return f"{short(first)} + {short(last)}" if plus else text


Written = list[tuple[str, dict[str, Any]]]
"""The parts of an algorithm by name, with the hyper-parameters that its text sets."""


def written(text: str) -> Written:
    """What `short` leaves of an algorithm, however it is written; nothing of what names none.

    >>> written("mine(b=[1],a=1)+gcfed") == written("mine(a=1.0, b=(1,)) + gcfed(axis='output')")
    True
    """
    try:
        summands = map(ast.unparse, _summands(expression(text, "algorithm")))
        shortened = (expression(short(each), "algorithm") for each in summands)
        return [_part(part) for each in shortened for part in _summands(each)]
    except (InputError, ValueError, TypeError, RecursionError):
        return []


def _summands(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        yield from _summands(node.left)
        yield from _summands(node.right)
    else:
        yield node


def _part(node: ast.expr) -> tuple[str, dict[str, Any]]:
    match node:
        case ast.Name(id=name):
            return name, {}
        case ast.Call(func=ast.Name(id=name), args=[], keywords=keywords):
            values = {str(each.arg): ast.literal_eval(each.value) for each in keywords}
            return name, {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
    raise ValueError("no part of an algorithm")


def caption(settings: Mapping[str, Any], keys: Collection[str]) -> str:
    """What settings have for these keys, in a few words.

    >>> caption({"dataset": "cifar10", "partition": "dirichlet", "cohort": 5, "clients": 100},
    ...         ("partition", "cohort", "dataset"))
    'cifar10, 5/100 clients, α = 0.1'
    """
    asked = [key for key in FIRST if key in keys] + [key for key in keys if key not in FIRST]
    if set(PARTICIPATION) & set(asked) and settings.get("clients") is not None:
        place = min(asked.index(key) for key in PARTICIPATION if key in asked)
        asked = [key for key in asked if key not in PARTICIPATION]
        asked.insert(place, "participation")
    return ", ".join(_said(settings, key) for key in asked)


def partition_caption(text: str) -> str:
    """A Dirichlet partition by its alpha; any other as it is written.

    >>> partition_caption("dirichlet"), partition_caption("classes(k=2)")
    ('α = 0.1', 'classes(k=2)')
    >>> partition_caption("dirichlet(alpha=0.5, mode='capped')")
    "α = 0.5, mode = 'capped'"
    """
    if (alpha := alpha_of(text)) is None:
        return text
    others = {k: v for k, v in PARTITIONS.parse(text).keywords.items() if k != "alpha"}
    defaults = hyper_parameters(PARTITIONS["dirichlet"])
    told = [f"{k} = {v!r}" for k, v in others.items() if v != defaults[k][1]]
    return ", ".join([f"α = {str(alpha).removesuffix('.0')}", *told])


def alpha_of(text: str) -> float | None:
    """The alpha of a Dirichlet partition, be it the default."""
    if text.partition("(")[0].strip() != "dirichlet":
        return None
    try:
        given = PARTITIONS.parse(text).keywords
    except InputError:  # written by a version that knew other hyper-parameters
        return None
    return float(given.get("alpha", hyper_parameters(PARTITIONS["dirichlet"])["alpha"][1]))


def _said(settings: Mapping[str, Any], key: str) -> str:
    value = settings.get(key)
    match key:
        case "participation":
            return f"{settings.get('cohort')}/{settings['clients']} clients"
        case "partition":
            return partition_caption(str(value))
        case "dataset" | "model":
            return str(value)
        case _:
            return f"{key} = {value}"
