"""What a sweep is made of: the cells of a grid, read from a TOML file or a dict.

Keys at the top are shared by all cells, ``seeds`` are trained together, ``[grid]`` holds a list for
each key that is varied, and ``[tune]`` one for each that is chosen on the validation examples.
"""

import itertools
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gcfed.config.settings import KEYS, Config, add_plugins, make, unknown_key
from gcfed.config.toml import read
from gcfed.errors import InputError

TABLES = ("grid", "tune")


@dataclass(frozen=True)
class Cell:
    """One value of each key that is varied, with every seed: runs that are trained together.

    ``point`` holds its values of ``[grid]``, ``candidate`` those of ``[tune]``.
    """

    number: int
    point: dict[str, Any]
    candidate: dict[str, Any]
    configs: tuple[Config, ...]

    @property
    def settings(self) -> dict[str, Any]:
        return self.point | self.candidate

    @property
    def name(self) -> str:
        return describe(self.settings) or self.configs[0].algorithm

    @property
    def rounds(self) -> int:
        return self.configs[0].rounds


@dataclass(frozen=True)
class Grid:
    """All cells, in the order written; ``values`` are what they were made of, and ``where``."""

    name: str
    where: str
    values: dict[str, Any]
    cells: tuple[Cell, ...]

    @property
    def is_tuned(self) -> bool:
        return bool(self.values.get("tune"))

    @property
    def seeds(self) -> list[int]:
        return [config.seed for config in self.cells[0].configs]


GridSource = str | Path | Mapping[str, Any] | Grid
"""A TOML file, what would be in it, or cells that are no product of lists."""


def read_grid(source: GridSource, *, name: str | None = None, plugins: Iterable[Path] = ()) -> Grid:
    """The grid of a file, called after it, or of a dict; ``plugins`` are added to its own."""
    if isinstance(source, Grid):
        return source
    if isinstance(source, str | Path):
        values, where, stem = read(Path(source)), str(source), Path(source).stem
    else:
        values, where, stem = dict(source), "the grid", "sweep"
    values = add_plugins(values, plugins)
    points, candidates = (_table(values, table, where) for table in TABLES)
    shared = _shared(values, (points, candidates), where)
    seeds = _seeds(values, where)
    cells: list[Cell] = []
    for point, candidate in itertools.product(_product(points), _product(candidates)):
        number, settings = len(cells) + 1, point | candidate
        title = f"{where}: cell {number} ({describe(settings)})" if settings else where
        configs = tuple(make(shared | settings | {"seed": seed}, title) for seed in seeds)
        if candidates and not configs[0].validation:
            raise InputError(
                f"{title}: [tune] selects on validation examples, and there are none: "
                "set validation, such as 0.1"
            )
        cells.append(Cell(number, point, candidate, configs))
    return Grid(_safe(name or stem), where, values, tuple(cells))


def describe(settings: Mapping[str, Any]) -> str:
    """Settings as a line of a table says them.

    >>> describe({"algorithm": "fedavg", "alpha": 0.1})
    'fedavg, alpha=0.1'
    """
    return ", ".join(str(v) if k == "algorithm" else f"{k}={v}" for k, v in settings.items())


def _table(values: Mapping[str, Any], table: str, where: str) -> dict[str, list[Any]]:
    """A table of lists, none of them empty or with a value twice."""
    found = values.get(table, {})
    if not isinstance(found, Mapping):
        raise InputError(f"{where}: {table} is a table, [{table}], of keys and lists of values")
    for key, choices in found.items():
        what = f"{where}: {key} in [{table}]"
        if key in ("seed", "seeds"):
            raise InputError(f"{what}: seeds stand at the top, as seeds = [0, 1, 2]")
        if key not in KEYS:
            raise InputError(f"{where}: [{table}]: {unknown_key(key)}")
        if not isinstance(choices, list | tuple):
            raise InputError(f"{what} is a list of values, such as [{json.dumps(choices)}]")
        if not choices:
            raise InputError(f"{what} is an empty list: give it values, or leave it out")
        texts = [json.dumps(choice, default=str) for choice in choices]
        if twice := [text for text in texts if texts.count(text) > 1]:
            raise InputError(f"{what} has the value {twice[0]} twice")
    return {key: list(choices) for key, choices in found.items()}


def _shared(
    values: Mapping[str, Any], varied: tuple[Mapping[str, Any], Mapping[str, Any]], where: str
) -> dict[str, Any]:
    """What all cells have in common; no key has two places."""
    for key in values:
        if key not in (*KEYS, *TABLES, "seeds"):
            raise InputError(f"{where}: {unknown_key(key, [*TABLES, 'seeds'])}")
    for table, keys in zip(TABLES, varied, strict=True):
        if both := [key for key in keys if key in values]:
            raise InputError(f"{where}: {both[0]} stands at the top and in [{table}]: in one place")
    if both := [key for key in varied[0] if key in varied[1]]:
        raise InputError(f"{where}: {both[0]} stands in [grid] and in [tune]: in one place")
    return {key: value for key, value in values.items() if key not in (*TABLES, "seed", "seeds")}


def _seeds(values: Mapping[str, Any], where: str) -> list[Any]:
    if "seeds" not in values:
        seed = values.get("seed", 0)
        if isinstance(seed, list | tuple):
            raise InputError(f"{where}: seed is one number; several are seeds = {list(seed)}")
        return [seed]
    if "seed" in values:
        raise InputError(f"{where}: give seed or seeds, not both")
    seeds = values["seeds"]
    if not isinstance(seeds, list | tuple) or not seeds:
        raise InputError(f"{where}: seeds is a list of numbers, such as [0, 1, 2]; not {seeds!r}")
    if twice := [seed for seed in seeds if list(seeds).count(seed) > 1]:
        raise InputError(f"{where}: seeds has the value {twice[0]} twice")
    return list(seeds)


def _product(lists: Mapping[str, list[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values())]


def _safe(name: str) -> str:
    """A name that is one folder's, wherever it came from."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-") or "sweep"
