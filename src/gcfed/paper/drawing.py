"""Figures of reproductions: lines over what was varied, or accuracy over the rounds."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib import rc_context
from matplotlib.axes import Axes

from gcfed.figures import Picture
from gcfed.paper.agreement import Numbers
from gcfed.paper.item import Column, PaperCell, PaperItem
from gcfed.paper.protocol import paper_protocol
from gcfed.results import plots
from gcfed.results.styles import WIDTHS, FigureSize, Style, styles

VARIED = ("lr", "epochs", "batch_size", "weight_decay", "momentum")

Curves = Mapping[str, Mapping[str, Sequence[Sequence[tuple[int, float]]]]]
"""Rounds and smoothed accuracies of each seed, by cell and method."""


class Spot(NamedTuple):
    """Where a number stands: in which panel, on which line, and how far to the right."""

    panel: str
    line: str
    x: float | str


Point = tuple[float | str, float, float]
"""How far to the right, the mean, and its deviation."""

SpotFinder = Callable[[PaperCell, str, str], list[Spot]]
"""Gives the places of a number, by its cell, quantity and method."""


def draw(item: PaperItem, numbers: Numbers, curves: Curves, size: FigureSize) -> Picture:
    """The figure that an item has in the paper, or else the accuracy over the rounds."""
    if item.figure in FIGURES:
        kind = FIGURES[item.figure]
        return _lines(_panels(item, numbers, kind.find), kind, size)
    panels = {
        cell: {
            method: [[{"round": t - 1, "test_accuracy": value} for t, value in run] for run in runs]
            for method, runs in of_methods.items()
        }
        for cell, of_methods in curves.items()
    }
    return plots.curves(panels, "test_accuracy", size=size, window=1)


def _participation(cell: PaperCell, quantity: str, method: str) -> list[Spot]:
    share = 100 * cell.settings["cohort"] / cell.settings["clients"]
    return [Spot(_label(quantity), cell.name.split()[0], share)]


def _alphas(cell: PaperCell, quantity: str, method: str) -> list[Spot]:
    return [Spot(quantity, method, cell.settings["alpha"])]


def _layers(cell: PaperCell, quantity: str, method: str) -> list[Spot]:
    kind = cell.name.split()[0]
    return [Spot("", f"{method}, {kind}", quantity.rpartition(".")[2])] if "." in quantity else []


def _borders(cell: PaperCell, quantity: str, method: str) -> list[Spot]:
    name, lam = method.split()
    return [Spot(cell.name, name, float(lam))]


def _settings(cell: PaperCell, quantity: str, method: str) -> list[Spot]:
    """The defaults stand in every panel, and any other cell in that of what it changes."""
    own = [key for key in VARIED if key in cell.settings]
    default = paper_protocol("cifar100", "resnet18", cohort=5, clients=200, alpha=0.1)
    return [Spot(key, method, cell.settings.get(key, default[key])) for key in own or VARIED]


class LineFigure(NamedTuple):
    """Where numbers stand, what is varied and measured, and whether it varies by powers of ten."""

    find: SpotFinder
    varied: str
    measured: str = ""
    is_log: bool = False


FIGURES: dict[str, LineFigure] = {
    "participation": LineFigure(_participation, "participation (%)", is_log=True),
    "alphas": LineFigure(_alphas, "alpha", is_log=True),
    "layers": LineFigure(_layers, "layer", "CKA"),
    "borders": LineFigure(_borders, "lambda", "test accuracy (%)"),
    "settings": LineFigure(_settings, "", "test accuracy (%)"),
}


def _label(quantity: str) -> str:
    return quantity.rpartition(".")[2].replace("_", " ")


def _lines(
    panels: Mapping[str, Mapping[str, list[Point]]], kind: LineFigure, size: FigureSize
) -> Picture:
    """A panel for each quantity or setting, and in it a line for each method, with deviations."""
    width = WIDTHS[size]
    with rc_context(plots.FONTS):
        figure = Picture(figsize=(width, 0.4 * width), layout="constrained")
        places = figure.subplots(1, len(panels), squeeze=False)[0]
        looks = styles(dict.fromkeys(line for lines in panels.values() for line in lines))
        for axes, (title, lines) in zip(places, panels.items(), strict=True):
            _draw_panel(axes, lines, looks)
            axes.set_title(title)
            axes.set_xlabel(kind.varied)
            if kind.is_log:
                known = sorted({x for points in lines.values() for x, _, _ in points}, key=_order)
                axes.set_xscale("log")
                axes.set_xticks(known, [f"{x:g}" for x in known])
                axes.minorticks_off()
        places[0].set_ylabel(kind.measured)
        shown = places[0].get_legend_handles_labels()
        figure.legend(
            *shown, loc="outside lower center", ncols=4, frameon=False, fontsize=plots.SMALL
        )
    return figure


def _draw_panel(axes: Axes, lines: Mapping[str, list[Point]], looks: Mapping[str, Style]) -> None:
    for line, points in lines.items():
        x, mean, std = zip(*sorted(points, key=lambda point: _order(point[0])), strict=True)
        look = looks[line]
        given: dict[str, Any] = {"color": look.colour, "marker": look.marker, "markersize": 3.5}
        axes.errorbar(
            x, mean, std, label=line, linestyle=look.line, linewidth=1.2, capsize=2, **given
        )
    axes.tick_params(labelsize=plots.SMALL, width=0.6, length=2.5)
    axes.grid(alpha=0.3, linewidth=0.5)


def _order(x: float | str) -> float:
    """Numbers in their order, and words in that in which they come."""
    return 0 if isinstance(x, str) else x


def _panels(
    item: PaperItem, numbers: Numbers, find: SpotFinder
) -> dict[str, dict[str, list[Point]]]:
    """Points by panel and line."""
    panels: dict[str, dict[str, list[Point]]] = {}
    for cell in item.cells:
        for quantity in item.quantities:
            for method, found in numbers.get(Column(cell.name, quantity), {}).items():
                if found.standing is None:
                    continue
                for panel, line, x in find(cell, quantity, method):
                    lines = panels.setdefault(panel, {})
                    lines.setdefault(line, []).append((x, found.standing, found.std or 0.0))
    return panels
