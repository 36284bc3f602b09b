"""How figures look: their widths in a paper, and the colour and marker of each method."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from typing import Literal
from zlib import crc32

FigureSize = Literal["one column", "two columns"]

WIDTHS: dict[FigureSize, float] = {"one column": 3.3, "two columns": 6.9}
"""Inches, as most papers of two columns have them."""

COLOURS = (
    *("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000"),
    "#882255",
)
"""Those of Okabe and Ito, which colour-blind people tell apart; wine replaces their yellow, which
is hard to see on white."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*")
LINES = ("-", "--", "-.")

KNOWN = (
    *("fedavg", "gcfed", "fedprox", "scaffold", "feddyn", "fedntd", "moon", "fedsam"),
    *("fedavgm", "fedacg", "fedlc", "fedadam", "fedsol", "fedvarp", "feddecorr", "localgc"),
    *("globalgc", "fedyogi", "fedadagrad", "clip", "clip_update", "noise"),
)
"""Algorithms of the package; each keeps its place, and so its style: new ones go to the end."""


@dataclass(frozen=True)
class Style:
    """What a method's curve looks like."""

    colour: str
    marker: str
    line: str


ALL = [Style(c, m, line) for line, m, c in product(LINES, MARKERS, COLOURS)]
"""Every style there is."""


def styles(methods: Iterable[str]) -> dict[str, Style]:
    """The style of each method: the same in every figure, as far as a figure leaves it free.

    A method has the style of its algorithm, be it written as in its paper (``GC-Fed``); of several
    with one algorithm, and of all that are not known, the name alone decides.  Should two names
    come to one style, the second gets the next.
    """
    found: dict[str, Style] = {}
    for method in methods:
        taken = found.values()
        algorithm = method.split(", ")[0].lower().replace("-", "")
        style = _known(algorithm) if algorithm in KNOWN else None
        if style is None or style in taken:
            free = [each for each in _from_name(method) if each not in taken]
            style = free[0] if free else ALL[0]
        found[method] = style
    return found


def _known(algorithm: str) -> Style:
    """The colours one after another, with another marker and line each time around."""
    place = KNOWN.index(algorithm)
    turn = place // len(COLOURS)
    return Style(COLOURS[place % len(COLOURS)], MARKERS[place % len(MARKERS)], LINES[turn])


def _from_name(method: str) -> list[Style]:
    """All styles but those of known algorithms, from one that the name decides."""
    reserved = {_known(name) for name in KNOWN}
    others = [style for style in ALL if style not in reserved]
    start = crc32(method.encode()) % len(others)
    return others[start:] + others[:start]
