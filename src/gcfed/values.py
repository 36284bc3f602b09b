"""Values of hyper-parameters: whether one is of its declared type and within its declared range."""

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from gcfed.errors import InputError

Range = Literal[
    "positive", "at least 0", "at least 1", "between 0 and 1", "at least 0 and less than 1"
]
"""The numbers that a hyper-parameter may be; None, where its type allows it, is in every range."""

_RANGES: Mapping[Range, Callable[[float], bool]] = {
    "positive": lambda value: value > 0,
    "at least 0": lambda value: value >= 0,
    "at least 1": lambda value: value >= 1,
    "between 0 and 1": lambda value: 0 <= value <= 1,
    "at least 0 and less than 1": lambda value: 0 <= value < 1,
}


def checked(where: str, value: Any, hint: Any) -> Any:
    """The value as plain Python has it, if it is of the type ``hint``; ``where`` is for errors.

    A number of numpy's becomes one of Python's, and a list a tuple where a tuple is wanted.
    """
    value = _plain(value, hint)
    if not _fits(value, hint):
        raise InputError(f"{where} is {_describe(hint)}, not {shown(value)}")
    for part in value if isinstance(value, tuple | list) else [value]:
        _refuse_extreme(where, part)
    return value


def check_range(where: str, value: Any, wanted: Range) -> None:
    """Refuse a number outside of a range."""
    if value is not None and not _RANGES[wanted](value):
        raise InputError(f"{where} is {wanted}; not {value}")


def check_ranges(owner: str, ranges: Mapping[str, Any]) -> None:
    """Refuse ranges that are declared in words which mean nothing."""
    for name, wanted in ranges.items():
        if wanted not in get_args(Range):
            known = ", ".join(map(repr, get_args(Range)))
            raise InputError(f"{owner}: the range of {name} is one of {known}; not {wanted!r}")


def type_hints(documented: Any) -> dict[str, Any]:
    """The types that a class or a function declares; none if one of them cannot be found."""
    try:
        return get_type_hints(documented)
    except (NameError, TypeError, AttributeError):  # such as a name that is imported for mypy alone
        return {}


def _plain(value: Any, hint: Any) -> Any:
    if isinstance(value, list) and get_origin(hint) is not list:
        return tuple(value)
    if type(value) in (bool, int, float):
        return value
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, Real) else value


def _fits(value: Any, hint: Any) -> bool:
    arguments = get_args(hint)
    if get_origin(hint) in (UnionType, Union):
        return any(_fits(value, h) for h in arguments)
    if get_origin(hint) is Literal:
        return isinstance(value, str | int) and value in arguments
    if get_origin(hint) in (tuple, list, Sequence):
        return isinstance(value, tuple | list) and all(_fits(v, arguments[0]) for v in value)
    if hint in (int, float):
        return type(value) is int or type(value) is hint
    if hint is None or hint is type(None):
        return value is None
    try:
        return isinstance(value, hint)
    except TypeError:  # Any, a Callable, a Protocol: these are not looked at
        return True


def _refuse_extreme(where: str, value: Any) -> None:
    """Refuse numbers that no tensor holds, and texts that no file holds."""
    if isinstance(value, int) and abs(value) > sys.maxsize:
        raise InputError(f"{where} takes whole numbers below 2^63; not {shown(value)}")
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"{where} is a finite number; not {value}")
    if isinstance(value, str) and (wrong := unwritable(value)):
        raise InputError(f"{where} holds {wrong}")


def unwritable(text: str) -> str | None:
    """What a text holds that neither a path nor a file can, in words; None where all is well."""
    if "\0" in text:
        return "a character of code 0, which no path may hold"
    if any(0xD800 <= ord(character) <= 0xDFFF for character in text):
        return f"what is not Unicode: {text!r:.200}"
    return None


def shown(value: Any) -> str:
    """A value in a message: of a long one the beginning."""
    if isinstance(value, int) and abs(value) > 10**100:
        return "a number of more than 100 digits"
    text = " ".join(repr(value).split("\n"))
    return text if len(text) <= 200 else f"{text[:200]}..."


_SINGULAR = {bool: "True or False", int: "a whole number", float: "a number", str: "a text"}
_PLURAL = {int: "whole numbers", float: "numbers", str: "texts"}


def _describe(hint: Any) -> str:
    """What a value of this type is, in plain words."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return f"one of {', '.join(map(repr, arguments))}"
    if origin in (UnionType, Union):
        return " or ".join(map(_describe, arguments))
    if origin in (tuple, list, Sequence):
        return f"a list of {_PLURAL.get(arguments[0], str(arguments[0]))}"
    if hint is None or hint is type(None):
        return "None"
    return _SINGULAR.get(hint) or (hint.__name__ if isinstance(hint, type) else str(hint))


def between_commas(text: str) -> list[str]:
    """The parts of a text between commas that are not within parentheses or quotes.

    >>> between_commas("drift, cka(layers=('fc1', 'fc2'), against=('new',))")
    ['drift', "cka(layers=('fc1', 'fc2'), against=('new',))"]
    """
    parts, depth, quote = [""], 0, ""
    for letter in text:
        if quote or letter in "'\"":
            quote = "" if letter == quote else quote or letter
        elif letter in "()[]{}":
            depth += 1 if letter in "([{" else -1
        if letter == "," and not quote and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]
