"""Doing a table or figure of the paper again: one sweep, or partitions alone."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from gcfed.config.materials import read_dataset
from gcfed.data.partitions.skew import partition_statistics
from gcfed.data.partitions.ways import divide
from gcfed.paper.agreement import OurNumber
from gcfed.paper.extent import Extent, Part
from gcfed.paper.item import Column
from gcfed.paper.quantities import of_partition, quantity
from gcfed.paper.reproduction import Circumstances, Curve, Reproduction
from gcfed.results.outcomes import moving_average
from gcfed.results.run import Run
from gcfed.sweeps.state import CellState
from gcfed.sweeps.sweep import Sweep

CURVE = 80
"""Points of a curve that is kept."""


def reproduced(extent: Extent, sweep: Sweep, command: str) -> Reproduction:
    """What the runs of a sweep come to; cells that are not over, or crashed, have no numbers."""
    numbers: dict[Column, dict[str, OurNumber]] = {}
    curves: dict[str, dict[str, list[Curve]]] = {}
    over = [(p, s) for p, s in zip(extent.parts, sweep.cells, strict=True) if _is_over(s)]
    for part, state in over:
        for name in extent.item.quantities:
            found = _number(part, state.runs, name)
            numbers.setdefault(Column(part.cell.name, name), {})[part.method] = found
        finished = [run for run in state.runs if run.summary["status"] == "finished"]
        curves.setdefault(part.cell.name, {})[part.method] = list(map(_curve, finished))
    runs = [run for _, state in over for run in state.runs]
    made = _circumstances(extent, command, runs, busy_seconds(runs))
    ordered = {column: numbers[column] for column in extent.item.columns if column in numbers}
    return Reproduction(extent.item, ordered, curves, made)


def divided(extent: Extent, command: str) -> Reproduction:
    """The data distribution: partitions drawn by each seed, and no training."""
    numbers: dict[Column, dict[str, OurNumber]] = {}
    for part in extent.parts:
        settings = part.settings
        pool = read_dataset(settings["dataset"], settings.get("data_dir")).pool
        found = [
            of_partition(
                partition_statistics(
                    divide(settings["partition"], pool, settings["clients"], seed), pool
                ).to_json()
            )
            for seed in range(extent.seeds)
        ]
        for name in extent.item.quantities:
            values = tuple(each[name] for each in found)
            number = OurNumber(values, extent.seeds)
            numbers[Column(part.cell.name, name)] = {part.method: number}
    return Reproduction(extent.item, numbers, {}, _circumstances(extent, command, [], None))


def _is_over(state: CellState) -> bool:
    return state.status in ("done", "diverged")


def _number(part: Part, runs: Sequence[Run], name: str) -> OurNumber:
    finished = [run for run in runs if run.summary["status"] == "finished"]
    values = [quantity(name).of(run, part.cell) for run in finished]
    known = tuple(value for value in values if value is not None)
    missing = len(finished) - len(known)  # a quantity that a run does not have is no failure
    return OurNumber(known, len(runs) - missing, _chance(runs) if name == "accuracy" else None)


def _chance(runs: Sequence[Run]) -> float | None:
    """The accuracy of guessing, in points: the paper's tables show failed runs so."""
    classes = runs[0].provenance.get("partition", {}).get("classes")
    return 100 / classes if classes else None


def _curve(run: Run) -> Curve:
    """Rounds and smoothed accuracies, of few rounds and with few digits."""
    tested = [line for line in run.records if line["tested"] is not None]
    values = moving_average([line[f"test_{run.metric.name}"] for line in tested])
    every = max(-(-len(tested) // CURVE), 1)
    kept = range(len(tested) - 1, -1, -every)
    return [(tested[i]["round"] + 1, round(values[i], 4)) for i in reversed(kept)]


def busy_seconds(runs: Sequence[Run]) -> float:
    """How long at least one of the runs was at a round; some are trained beside each other."""
    timings = [timing for run in runs for timing in run.timings if "at" in timing]
    total, until = 0.0, -math.inf
    for begin, end in sorted((t["at"] - t["seconds"], t["at"]) for t in timings):
        total += max(end - max(begin, until), 0.0)
        until = max(until, end)
    return total


def _circumstances(
    extent: Extent, command: str, runs: Sequence[Run], seconds: float | None
) -> Circumstances:
    made: Mapping[str, Any] = runs[0].provenance if runs else {}
    return Circumstances(
        command=command,
        seeds=extent.seeds,
        is_reduced=extent.is_reduced,
        rounds=extent.rounds,
        changes=dict(extent.changes),
        device=made.get("device"),
        commit=made.get("commit"),
        seconds=seconds,
    )
