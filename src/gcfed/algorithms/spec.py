"""Algorithms as text: ``"fedlc(tau=0.1) + gcfed(layers=['fc2'])"``.

``"feddyn@authors"`` stands for FedDyn as the authors of GC-Fed ran it.
"""

import ast
from dataclasses import fields
from functools import partial

from gcfed.algorithms import ALGORITHMS
from gcfed.algorithms.authors import AUTHORS
from gcfed.core.algorithm import Algorithm
from gcfed.core.chain import chain, parts
from gcfed.errors import InputError, unknown
from gcfed.registry import expression


def parse(text: str) -> Algorithm:
    """Build the chain that ``text`` names; ``+`` composes left to right, values are literals.

    ``name@authors`` stands for a method as the authors of GC-Fed ran it (``gcfed list authors``);
    without it, a method is at its defaults.
    """
    return chain(*(make() for make in _terms(expression(text, "algorithm"))))


def short(text: str) -> str:
    """``text`` without the hyper-parameters that have their defaults.

    >>> short("fedprox(mu=0.5) + gcfed(axis='output', min_ndim=2, lam=None, layers=None)")
    'fedprox(mu=0.5) + gcfed'
    """
    return " + ".join(map(ALGORITHMS.short, _terms(expression(text, "algorithm"))))


def _terms(node: ast.expr) -> "list[partial[Algorithm]]":
    match node:
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _terms(left) + _terms(right)
        case ast.BinOp(left=left, op=ast.MatMult(), right=ast.Name(id="authors")):
            return _as_authors_ran(ALGORITHMS.bind(left))
        case ast.BinOp(op=ast.MatMult()):
            raise InputError("after @ stands authors alone, as in feddyn@authors")
        case _:
            return [ALGORITHMS.bind(node)]


def _as_authors_ran(method: "partial[Algorithm]") -> "list[partial[Algorithm]]":
    """The parts of a method as the authors ran it, with the hyper-parameters that are given."""
    name = str(ALGORITHMS.name_of(method.func))
    if name not in AUTHORS:
        raise unknown("method of the authors", name, AUTHORS)
    first, *others = _terms(expression(AUTHORS[name].text, "algorithm"))
    if both := [key for key in method.keywords if key in first.keywords]:
        raise InputError(
            f"{name}@authors is {AUTHORS[name].text}: it sets {both[0]} itself; "
            f"leave {both[0]} out, or @authors"
        )
    return [partial(first.func, **first.keywords, **method.keywords), *others]


def to_text(algorithm: Algorithm) -> str:
    """The text that `parse` makes ``algorithm`` of, every hyper-parameter written out."""
    return " + ".join(map(_term, parts(algorithm)))


def _term(part: Algorithm) -> str:
    name = ALGORITHMS.name_of(type(part)) or type(part).__name__
    values = ", ".join(f"{f.name}={getattr(part, f.name)!r}" for f in fields(part))
    return f"{name}({values})" if values else name
