"""Pictures of runs."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from gcfed.core.metrics import Scale
from gcfed.errors import InputError, unknown
from gcfed.figures import Picture
from gcfed.results.bands import (
    DECILES,
    Lines,
    Panels,
    band,
    deciles_by_group,
    scale_of,
    tested,
    window_for,
)
from gcfed.results.styles import WIDTHS, FigureSize, Style, styles

Looks = Mapping[str, Style]
"""The styles of methods, by name."""

FONT, SMALL = 8, 7  # points
FONTS: dict[Any, Any] = {
    **dict.fromkeys(("font.size", "axes.titlesize", "figure.titlesize"), FONT),
    "axes.linewidth": 0.6,
}
LETTER, LINE = 0.06, 0.16  # inches, of small print, and rather too much than too little
NO_BREAK = "\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}"
HANDLE = 0.5  # inches, what stands before a label of the legend
NUM_MARKERS = 8  # on a curve
FEW = 5  # methods of a panel; thin lines of more would be a tangle
IN_A_ROW: dict[FigureSize, int] = {"one column": 2, "two columns": 4}  # panels, at most


@dataclass(frozen=True)
class Quantity:
    """A number of a round, what it is multiplied by, and how many evaluations are averaged."""

    name: str
    factor: int
    window: int

    @property
    def label(self) -> str:
        return self.name.replace("_", " ")

    @property
    def smoothing(self) -> str:
        """What an axis says of it below the label."""
        return "" if self.window == 1 else f"\nmean of {self.window} evaluations"


def draw(
    panels: Panels,
    name: str,
    *,
    metrics: Mapping[str, Scale] | None = None,
    title: str = "",
    size: FigureSize = "two columns",
) -> Picture:
    """What a number looks like: `deciles` are those of clients, `curves` all others."""
    if name == DECILES:
        return deciles(panels, title=title, size=size)
    return curves(panels, name, metrics=metrics, title=title, size=size)


def deciles(panels: Panels, *, title: str = "", size: FigureSize = "two columns") -> Picture:
    """What each tenth of the clients does not exceed in accuracy, where it was last measured.

    A curve is the mean over a method's runs, its band one standard deviation.
    """
    found: dict[str, dict[str, Lines]] = {}
    for panel, groups in panels.items():
        found[panel] = deciles_by_group(groups)
    if not any(found.values()):
        raise InputError("these runs have no deciles to draw: train them with the probe clients")
    labels = ("share of clients (%)", "accuracy of these or less (%)")
    return _figure(found, Quantity(DECILES, 100, 1), labels, title, size)


def curves(
    panels: Panels,
    name: str = "test_accuracy",
    *,
    metrics: Mapping[str, Scale] | None = None,
    title: str = "",
    size: FigureSize = "two columns",
    window: int | None = None,
) -> Picture:
    """One number over the rounds: panels by title, and in each a curve for every method.

    A number that was measured layer by layer has a panel for each layer instead, with all methods.

    A curve is the mean over a method's runs, its band one standard deviation.  Each run is first
    smoothed by a moving average, over ten evaluations as in the paper's figures, and over fewer if
    it is short, or over ``window`` of them; thin lines show what it was before.  ``metrics`` says
    how values of metrics that are not registered are read.
    """
    if size not in WIDTHS:
        raise unknown("size of a figure", size, WIDTHS)
    scale = scale_of(name, metrics or {})
    found = {
        panel: {label: some for label, runs in groups.items() if (some := tested(runs, name))}
        for panel, groups in _by_layer(panels, name).items()
    }
    window = window or window_for(runs for groups in found.values() for runs in groups.values())
    shown = Quantity(name, 100 if scale.percent else 1, window)
    labels = ("round", shown.label + scale.unit + shown.smoothing)
    return _figure(found, shown, labels, title, size)


def _figure(
    panels: Panels, shown: Quantity, labels: tuple[str, str], title: str, size: FigureSize
) -> Picture:
    """A figure of these panels, with these labels of its axes."""
    looks = styles(dict.fromkeys(label for groups in panels.values() for label in groups))
    with rc_context(FONTS):
        figure, grid = _grid(list(panels), size, labels)
        for axes, groups in zip(grid, panels.values(), strict=True):
            _draw(axes, groups, shown, looks)
        if title:
            figure.suptitle(textwrap.fill(title, _letters(figure.get_figwidth())))
        _add_legend(figure, looks)
    return figure


def _is_drawn(value: Any) -> bool:
    """Whether a curve can go through it, or has a gap there."""
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _by_layer(panels: Panels, name: str) -> Panels:
    """A panel for each layer that a number was measured of; the same panels if it has no layers."""
    lines = {
        f"{label}, {task}" if len(panels) > 1 else label: runs
        for task, groups in panels.items()
        for label, runs in groups.items()
    }
    every = (line for runs in lines.values() for run in runs for line in run)
    keys = dict.fromkeys(key for line in every for key, value in line.items() if _is_drawn(value))
    layers = {key: key.removeprefix(f"{name}.") for key in keys if key.startswith(f"{name}.")}
    if keys and name not in keys and not layers:
        raise unknown("number of a round", name, keys)
    if not layers:
        return panels
    whole = {name: "all layers"} if name in keys else {}
    return {
        title: {
            label: [[{"round": line["round"], name: line.get(key)} for line in run] for run in runs]
            for label, runs in lines.items()
        }
        for key, title in {**whole, **layers}.items()
    }


def _grid(
    titles: Sequence[str], size: FigureSize, labels: tuple[str, str]
) -> tuple[Picture, list[Axes]]:
    """A figure, and its axes under these titles, in rows of about equal length."""
    width, number = WIDTHS[size], len(titles)
    num_rows = -(-number // IN_A_ROW[size])
    num_columns = -(-number // num_rows)
    height = min(max(width / num_columns * 0.72, 1.5), 3.2)
    num_ticks = 8 if num_columns == 1 else 5
    letters = _letters(width / num_columns - 0.4)  # the rest is for the numbers beside the axes
    wrapped = [textwrap.fill(title.replace(" = ", NO_BREAK), letters) for title in titles]
    height += LINE * max(title.count("\n") for title in wrapped)
    figure = Picture(figsize=(width, num_rows * height), layout="constrained")
    places = list(figure.subplots(num_rows, num_columns, squeeze=False).flat)
    for spare in places[number:]:
        spare.remove()
    for i, (axes, title) in enumerate(zip(places, wrapped, strict=False)):
        is_lowest = i + num_columns >= number
        axes.set(xlabel=labels[0] if is_lowest else "", ylabel="" if i % num_columns else labels[1])
        axes.set_title(title)
        axes.xaxis.set_major_locator(
            MaxNLocator(num_ticks, integer=True, steps=[1, 2, 5, 10], min_n_ticks=1)
        )
        axes.tick_params(labelsize=SMALL, width=0.6, length=2.5)
        axes.grid(alpha=0.3, linewidth=0.5)
    return figure, places[:number]


def _draw(axes: Axes, groups: Mapping[str, Lines], shown: Quantity, looks: Looks) -> None:
    """The curves of a panel; where there are few, with thin ones of what was measured."""
    for i, (label, runs) in enumerate(groups.items()):
        color, found = looks[label].colour, band(runs, shown.name, shown.window)
        rounds, mean, std = found.rounds, shown.factor * found.mean, shown.factor * found.std
        if shown.window > 1 and len(groups) <= FEW:
            measured = shown.factor * band(runs, shown.name).mean
            axes.plot(rounds, measured, color=color, alpha=0.25, linewidth=0.5)
        if len(runs) > 1:
            axes.fill_between(rounds, mean - std, mean + std, color=color, alpha=0.12, linewidth=0)
        every = -(-len(rounds) // NUM_MARKERS)
        start = every * (i + 1) // len(groups) - 1  # markers of two methods seldom meet
        axes.plot(rounds, mean, **_look(looks[label]), markevery=(max(start, 0), every))
    axes.set_xlim(0.5, max(axes.get_xlim()[1], 1.5))  # there is no round 0


def _add_legend(figure: Picture, looks: Looks) -> None:
    """A legend below all axes, for which the figure becomes higher: it covers nothing."""
    if not looks:
        return
    width = figure.get_figwidth()
    labels = [textwrap.fill(label, _letters(width - HANDLE)) for label in looks]
    longest = max(len(line) for label in labels for line in label.splitlines())
    num_columns = min(max(int(width / (HANDLE + LETTER * longest)), 1), len(labels))
    num_lines = max(label.count("\n") + 1 for label in labels) * -(-len(labels) // num_columns)
    figure.set_figheight(figure.get_figheight() + LINE * num_lines + 0.1)
    handles = [Line2D([], [], **_look(style)) for style in looks.values()]
    figure.legend(
        handles, labels, loc="outside lower center", ncols=num_columns, fontsize=SMALL,
        frameon=False, handlelength=2.4, columnspacing=1.2,
    )  # fmt: skip


def _look(style: Style) -> dict[str, Any]:
    given = {"color": style.colour, "marker": style.marker, "linestyle": style.line}
    return {**given, "markersize": 3.5, "linewidth": 1.2}


def _letters(inches: float) -> int:
    """How many letters have room on a line."""
    return max(int(inches / LETTER), 10)
