"""Pictures of runs."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.ticker import MaxNLocator

from gcfed.figures import Picture
from gcfed.results.outcomes import moving_average
from gcfed.results.summary import SMOOTHED
from gcfed.simulation.evaluation import Record

AXES = {"test_accuracy": "test accuracy (%)", "test_loss": "test loss", "train_loss": "train loss"}

HEIGHT, LONG = 4.2, 40  # inches; letters, above which a label has no place within the axes


def curves(
    groups: Mapping[str, Sequence[Sequence[Record]]],
    name: str = "test_accuracy",
    *,
    smooth: int = SMOOTHED,
    title: str = "",
) -> Picture:
    """One number over the rounds: a line a group, the mean over its runs, and a band of one std.

    Each run is first smoothed by a moving average over ``smooth`` evaluations, as in the paper's
    figures; thin lines show what it was before.
    """
    figure = Picture(figsize=(7, HEIGHT), layout="constrained")
    axes = figure.subplots()
    scale = 100 if name.endswith("accuracy") else 1
    for color, (label, runs) in enumerate(groups.items()):
        tested = ([line for line in run if line.get(name) is not None] for run in runs)
        found = [lines for lines in tested if lines]
        if not found:
            continue
        length = min(map(len, found))
        rounds = [line["round"] + 1 for line in found[0][:length]]
        values = scale * np.array([[line[name] for line in run[:length]] for run in found])
        smoothed = np.array([moving_average(run, smooth) for run in values.tolist()])
        mean, std = smoothed.mean(0), smoothed.std(0, ddof=1 if len(found) > 1 else 0)
        axes.plot(rounds, values.mean(0), color=f"C{color}", alpha=0.25, linewidth=0.8)
        axes.plot(rounds, mean, color=f"C{color}", label=label, linewidth=2)
        axes.fill_between(
            rounds, mean - std, mean + std, color=f"C{color}", alpha=0.15, linewidth=0
        )
    axes.set(xlabel="round", ylabel=AXES.get(name, name), title=title)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    if axes.lines and max(map(len, groups)) > LONG:
        figure.set_figheight(HEIGHT + 0.25 * len(groups))
        figure.legend(frameon=False, loc="outside lower center", fontsize="small")
    elif axes.lines:
        axes.legend(frameon=False, loc="lower right" if scale == 100 else "upper right")
    return figure
