"""How much of a table or figure is done: which cells and methods, and at what scale."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gcfed.config.settings import make, override
from gcfed.errors import InputError, unknown
from gcfed.paper.item import PaperCell, PaperItem
from gcfed.paper.protocol import paper_protocol
from gcfed.sweeps.grid import Cell, Grid

REDUCED: dict[str, Any] = {
    **{"dataset": "fashion10k", "model": "mlp", "rounds": 10, "epochs": 1},
    "engine": "sequential",
}
"""What a reduced scale puts in the place of the paper's data, model and rounds.

The processes of the engine ``workers`` take longer to start than so few rounds take.
"""

REDUCED_CLIENTS = 100
"""The most clients that the embedded data are divided among."""


class Part(NamedTuple):
    """One method in one cell, with the settings that its runs share."""

    cell: PaperCell
    method: str
    settings: dict[str, Any]


@dataclass(frozen=True)
class Extent:
    """What is to be done of an item.

    ``rounds`` and ``changes`` replace settings of the paper, and ``is_reduced`` its data and models
    by those that a laptop can train with.  ``stand_ins`` are data sets by those that they replace.
    """

    item: PaperItem
    cells: tuple[PaperCell, ...]
    methods: tuple[str, ...]
    seeds: int
    rounds: int | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)
    is_reduced: bool = False
    data_dir: str | None = None
    stand_ins: Mapping[str, str] = field(default_factory=dict)

    @property
    def distinct(self) -> list[PaperCell]:
        """The cells; of those that a reduced scale makes equal, the first."""
        written = (json.dumps(self._settings(cell), default=str) for cell in reversed(self.cells))
        found = dict(zip(written, reversed(self.cells), strict=True))
        return [cell for cell in self.cells if cell in found.values()]

    def said(self, cell: PaperCell) -> dict[str, Any]:
        """What the item says of a cell's settings, with all that is not as in the paper."""
        printed, done = Extent(self.item, (), (), self.seeds)._settings(cell), self._settings(cell)
        changed = {key: v for key, v in done.items() if printed.get(key) != v}
        return override(cell.settings, changed)

    @property
    def parts(self) -> list[Part]:
        """Every method in every cell that is `distinct`."""
        return [
            Part(cell, method, {**self._settings(cell), "algorithm": self.item.algorithm(method)})
            for cell in self.distinct
            for method in self.methods
            if method in cell.methods
        ]

    @property
    def name(self) -> str:
        """What its record goes by; parts of an item may be done side by side."""
        words = [self.item.name]
        if len(self.cells) < len(self.item.cells):
            words += [self.cells[0].name, f"{len(self.cells) - 1}-more"][: len(self.cells)]
        return "-".join([*words, "reduced"] if self.is_reduced else words)

    def grid(self) -> Grid:
        """All of it as the grid of one sweep."""
        where = f"gcfed reproduce {self.item.name}"
        cells = []
        for number, part in enumerate(self.parts, start=1):
            point = {"cell": part.cell.name, "method": part.method}
            seeds = range(self.seeds)
            configs = tuple(make(part.settings | {"seed": seed}, where) for seed in seeds)
            cells.append(Cell(number, point, {}, configs))
        values = {"item": self.item.name, "seeds": list(range(self.seeds))}
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", self.name)
        return Grid(name, where, values, tuple(cells))

    def _settings(self, cell: PaperCell) -> dict[str, Any]:
        own = {"model": "cnn", "cohort": 1, **cell.settings}
        named = {key: own.pop(key) for key in ("dataset", "model", "cohort", "clients", "alpha")}
        values = {**paper_protocol(**named), **own}
        if self.is_reduced:
            clients = min(values["clients"], REDUCED_CLIENTS)
            values |= {**REDUCED, "clients": clients, **self.item.reduced}
        if self.rounds is not None:
            values["rounds"] = self.rounds
        if self.data_dir is not None:
            values["data_dir"] = self.data_dir
        values["dataset"] = self.stand_ins.get(values["dataset"], values["dataset"])
        return override(values, self.changes)


def extent(
    item: PaperItem,
    *,
    cells: Sequence[str] = (),
    methods: Sequence[str] = (),
    seeds: int = 3,
    rounds: int | None = None,
    changes: Mapping[str, Any] | None = None,
    is_reduced: bool = False,
    data_dir: str | None = None,
) -> Extent:
    """What is asked for of an item: all of it, if no cells or methods are named.

    A text names the cells whose names have all its words: ``"cifar10 0.1"`` those of CIFAR-10 with
    this alpha.  A method goes by the paper's name or by ours: ``GC-Fed`` or ``gcfed``.
    """
    chosen = [cell for text in cells for cell in _cells(item, text)]
    named = [_method(item, text) for text in methods]
    wanted = Extent(
        item=item,
        cells=tuple(cell for cell in item.cells if not cells or cell in chosen),
        methods=tuple(method for method in item.methods if not methods or method in named),
        seeds=seeds,
        rounds=rounds,
        changes=changes or {},
        is_reduced=is_reduced,
        data_dir=data_dir,
    )
    if not wanted.parts:
        held = "; ".join(f"{cell.name}: {', '.join(cell.methods)}" for cell in wanted.cells)
        raise InputError(f"no cell that was asked for has {', '.join(wanted.methods)}: {held}")
    wanted.grid()  # a setting that is wrong is refused, whatever becomes of the cells
    return wanted


def _cells(item: PaperItem, text: str) -> list[PaperCell]:
    words = set(text.split())
    found = [cell for cell in item.cells if words <= set(cell.name.split())]
    if not found or not words:
        raise unknown(f"cell of {item.name}", text, [cell.name for cell in item.cells])
    return found


def _method(item: PaperItem, text: str) -> str:
    names = {_plain(method): method for method in item.methods}
    if _plain(text) not in names:
        raise unknown(f"method of {item.name}", text, item.methods)
    return names[_plain(text)]


def _plain(name: str) -> str:
    """A name without case, spaces and dashes."""
    return re.sub(r"[\s-]+", "", name).lower()
