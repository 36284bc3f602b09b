"""What the files of a run hold by name, checked when it is read: one may be damaged by anything."""

from collections.abc import Mapping
from types import UnionType
from typing import Any

from gcfed.errors import InputError
from gcfed.values import shown

NUMBER = int | float | None

OF_SUMMARY: Mapping[str, type | UnionType] = {"status": str}
OF_FINISHED: Mapping[str, type | UnionType] = {"status": str, "rounds": int}
OF_ROUND: Mapping[str, type | UnionType] = {
    "round": int,
    "tested": str | None,
    "test_accuracy": NUMBER,
    "test_loss": NUMBER,
    "train_loss": NUMBER,
    "update_norm": NUMBER,
    "bytes_up": int,
    "bytes_down": int,
}


class Fields(dict[str, Any]):
    """Values by name; to ask for a name that is missing is an `InputError` that says ``where``."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        super().__init__(values)
        self.where = where

    def __missing__(self, name: str) -> Any:
        raise InputError(f"{self.where} is damaged: it lacks {name!r}")


def fields_of(values: Any, where: str, wanted: Mapping[str, type | UnionType]) -> Fields:
    """The values, if they are by name and those that are ``wanted`` are there and of their type."""
    if not isinstance(values, dict):
        raise InputError(f"{where} is damaged: it holds {shown(values)}, not values by name")
    fields = Fields(values, where)
    for name, kind in wanted.items():
        if not isinstance(fields[name], kind):
            raise InputError(f"{where} is damaged: {name} is {shown(fields[name])}")
    return fields
