"""Algorithms as a table or a figure names them."""

from dataclasses import fields

from gcfed.algorithms import ALGORITHMS
from gcfed.algorithms.spec import parse
from gcfed.core.algorithm import Algorithm, parts
from gcfed.errors import InputError


def short(text: str) -> str:
    """An algorithm without the hyper-parameters that have their defaults.

    >>> short("fedprox(mu=0.5) + gcfed(axis='output', min_ndim=2, lam=None, layers=None)")
    'fedprox(mu=0.5) + gcfed'
    """
    try:
        return " + ".join(map(_short, parts(parse(text))))
    except InputError:  # of a plugin that is not loaded
        return text


def _short(part: Algorithm) -> str:
    name = ALGORITHMS.name_of(type(part)) or type(part).__name__
    given = {f.name: getattr(part, f.name) for f in fields(part)}
    values = [f"{f.name}={given[f.name]!r}" for f in fields(part) if given[f.name] != f.default]
    return f"{name}({', '.join(values)})" if values else name
