"""Algorithms as a table or a figure names them."""

from gcfed.algorithms import spec
from gcfed.errors import InputError


def short(text: str) -> str:
    """An algorithm without the hyper-parameters that have their defaults."""
    try:
        return spec.short(text)
    except InputError:  # of a plugin that is not loaded
        return text
