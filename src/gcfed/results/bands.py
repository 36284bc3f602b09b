"""Curves of runs that differ in their seed: smoothed, their mean, and how far they spread."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gcfed.core.metrics import METRICS, Scale, named
from gcfed.results.outcomes import smoothed
from gcfed.results.summary import SMOOTHED
from gcfed.simulation.lines import Record

Lines = Sequence[Sequence[Record]]
"""The rounds of several runs."""

Panels = Mapping[str, Mapping[str, Lines]]
"""The rounds that a figure shows, by panel and method."""

DECILES = "clients.decile"
"""What the probe ``clients`` calls the deciles of the clients' accuracies."""


@dataclass(frozen=True)
class Band:
    """A number after some rounds, counted from 1: its mean over runs, and the deviation.

    The deviation of a single run is zero.
    """

    rounds: tuple[int, ...]
    mean: np.ndarray
    std: np.ndarray


def band(runs: Lines, name: str, window: int = 1, at: Sequence[int] | None = None) -> Band:
    """The mean of a number over the runs that have it in a round, each smoothed first.

    ``at`` are the rounds that are wanted, all `rounds_of` the runs by default.
    """
    rounds = rounds_of(runs) if at is None else at
    values = np.zeros((len(runs), len(rounds)))
    has = np.zeros(values.shape, dtype=bool)
    for i, run in enumerate(runs):
        place = {line["round"]: end for end, line in enumerate(run, 1)}
        has[i] = [t in place for t in rounds]
        ends = [place[t] for t in rounds if t in place]
        values[i, has[i]] = smoothed([line[name] for line in run], ends, window)
    count = has.sum(0)
    mean = values.sum(0) / count
    spread = np.where(has, (values - mean) ** 2, 0.0).sum(0)
    std = np.sqrt(spread / np.maximum(count - 1, 1))
    return Band(tuple(t + 1 for t in rounds), mean, std)


def rounds_of(runs: Lines) -> list[int]:
    """The rounds that any of the runs has, as far as all of them got."""
    last = min(run[-1]["round"] for run in runs)
    return sorted({line["round"] for run in runs for line in run if line["round"] <= last})


def tested(runs: Lines, name: str) -> Lines:
    """The rounds that have the number, of those runs that have some."""
    found = [[line for line in run if line.get(name) is not None] for run in runs]
    return [lines for lines in found if lines]


def window_for(found: Iterable[Lines]) -> int:
    """How many evaluations are averaged: a fifth of the longest run, and no more than ten."""
    longest = max((len(run) for runs in found for run in runs), default=1)
    return min(max(longest // 5, 1), SMOOTHED)


def last_deciles(run: Sequence[Record]) -> list[Record]:
    """The deciles of a run's last measurement, as points of a curve whose rounds are percents."""
    for line in reversed(run):
        if f"{DECILES}.10" not in line:
            continue
        values = {n: line.get(f"{DECILES}.{n}") for n in range(10, 100, 10)}
        if None not in values.values():
            return [{"round": n - 1, DECILES: value} for n, value in values.items()]
    return []


def deciles_by_group(groups: Mapping[str, Sequence[Sequence[Record]]]) -> dict[str, Lines]:
    """`last_deciles` of the runs of each group that has any."""
    ends = {label: list(filter(None, map(last_deciles, runs))) for label, runs in groups.items()}
    return {label: runs for label, runs in ends.items() if runs}


def scale_of(name: str, metrics: Mapping[str, Scale]) -> Scale:
    """How a number of a round, such as ``test_accuracy``, is read."""
    metric = name.partition("_")[2]
    if metric not in metrics and metric in METRICS:
        return named(metric).scale(metric)
    return metrics.get(metric, Scale(name, "lower"))
