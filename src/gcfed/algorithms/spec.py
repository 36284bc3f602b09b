"""Algorithms as text: ``"fedlc(tau=0.1) + gcfed(layers=['fc2'])"``."""

import ast
from dataclasses import fields
from functools import partial

from gcfed.algorithms import ALGORITHMS
from gcfed.core.algorithm import Algorithm, chain, parts
from gcfed.registry import expression


def parse(text: str) -> Algorithm:
    """Build the chain that ``text`` names; ``+`` composes left to right, values are literals."""
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
        case _:
            return [ALGORITHMS.bind(node)]


def to_text(algorithm: Algorithm) -> str:
    """The text that `parse` makes ``algorithm`` of, every hyper-parameter written out."""
    return " + ".join(map(_term, parts(algorithm)))


def _term(part: Algorithm) -> str:
    name = ALGORITHMS.name_of(type(part)) or type(part).__name__
    values = ", ".join(f"{f.name}={getattr(part, f.name)!r}" for f in fields(part))
    return f"{name}({values})" if values else name
