"""Algorithms and tasks as a table or a figure names them."""

from collections.abc import Collection, Mapping
from typing import Any

from gcfed.algorithms import spec
from gcfed.data import PARTITIONS
from gcfed.errors import InputError
from gcfed.registry import hyper_parameters

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
