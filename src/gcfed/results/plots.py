"""Pictures of runs."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.ticker import MaxNLocator

from gcfed.core.metrics import METRICS, Scale, named
from gcfed.figures import Picture
from gcfed.results.outcomes import moving_average
from gcfed.results.summary import SMOOTHED
from gcfed.simulation.evaluation import Record

HEIGHT, LONG = 4.2, 40  # inches; letters, above which a label has no place within the axes


def curves(
    groups: Mapping[str, Sequence[Sequence[Record]]],
    name: str = "test_accuracy",
    *,
    metrics: Mapping[str, Scale] | None = None,
    smooth: int = SMOOTHED,
    title: str = "",
) -> Picture:
    """One number over the rounds: a line a group, the mean over its runs, and a band of one std.

    Each run is first smoothed by a moving average over ``smooth`` evaluations, as in the paper's
    figures; thin lines show what it was before.  ``metrics`` says how values of metrics that are
    not registered are read.
    """
    scale = _scale(name, metrics or {})
    figure = Picture(figsize=(7, HEIGHT), layout="constrained")
    axes = figure.subplots()
    factor = 100 if scale.percent else 1
    for color, (label, runs) in enumerate(groups.items()):
        tested = ([line for line in run if line.get(name) is not None] for run in runs)
        found = [lines for lines in tested if lines]
        if not found:
            continue
        length = min(map(len, found))
        rounds = [line["round"] + 1 for line in found[0][:length]]
        values = factor * np.array([[line[name] for line in run[:length]] for run in found])
        smoothed = np.array([moving_average(run, smooth) for run in values.tolist()])
        mean, std = smoothed.mean(0), smoothed.std(0, ddof=1 if len(found) > 1 else 0)
        axes.plot(rounds, values.mean(0), color=f"C{color}", alpha=0.25, linewidth=0.8)
        axes.plot(rounds, mean, color=f"C{color}", label=label, linewidth=2)
        axes.fill_between(
            rounds, mean - std, mean + std, color=f"C{color}", alpha=0.15, linewidth=0
        )
    axes.set(xlabel="round", ylabel=name.replace("_", " ") + scale.unit, title=title)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    if axes.lines and max(map(len, groups)) > LONG:
        figure.set_figheight(HEIGHT + 0.25 * len(groups))
        figure.legend(frameon=False, loc="outside lower center", fontsize="small")
    elif axes.lines:
        rising = scale.better == "higher"  # the legend stands away from the curves' ends
        axes.legend(frameon=False, loc="lower right" if rising else "upper right")
    return figure


def _scale(name: str, metrics: Mapping[str, Scale]) -> Scale:
    """How a number of a round, such as ``test_accuracy``, is read."""
    metric = name.partition("_")[2]
    if metric not in metrics and metric in METRICS:
        return named(metric).scale(metric)
    return metrics.get(metric, Scale(name, "lower"))
