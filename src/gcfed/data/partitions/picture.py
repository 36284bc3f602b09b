"""Pictures of who holds which classes."""

import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import to_rgba_array
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from gcfed.data.partitions.partition import Partition, Pool
from gcfed.data.partitions.skew import partition_statistics
from gcfed.errors import InputError, unknown
from gcfed.figures import Picture

Kind = Literal["bubble", "stack"]

INK, RULE = "#333333", "#e6e6e6"
SMALLEST_DISC = 1.5
LEGEND_SIZE = 8  # points
PANELS_IN_A_ROW = 4
PALETTE = ["#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#b07aa1"]
PALETTE += ["#76b7b2", "#edc948", "#9c755f", "#ff9da7", "#8a8d93"]


class _Look(NamedTuple):
    """What the panels of a figure have in common.

    A disc has ``area`` points squared per example, so that the largest fills its cell, and never
    less than can be seen; an axis of bars ends at ``top``.
    """

    kind: Kind
    names: Sequence[str]
    colours: np.ndarray
    area: float
    top: float
    largest: int


def draw_partition(
    partition: Partition,
    pool: Pool,
    kind: Kind = "bubble",
    max_clients: int = 50,
    class_names: Sequence[str] = (),
    title: str = "",
) -> Picture:
    """The label counts of the first ``max_clients`` clients, as bubbles or as stacked bars."""
    counts = _counts(partition, pool, max_clients, class_names)
    shown, num_classes = counts.shape
    height = 4.2 if kind == "stack" else min(2.0 + 0.3 * num_classes, 9.0)
    figure = Picture(
        figsize=(min(max(4.5 + 0.22 * shown, 6.5), 14.0), height), layout="constrained"
    )
    look = _look(figure, [counts], kind, class_names)
    axes = figure.subplots()
    _panel(axes, counts, look)
    _title(axes, title, shown, len(partition))
    _legend(figure, look)
    return figure


def draw_partitions(
    partitions: Mapping[str, Partition],
    pool: Pool,
    kind: Kind = "bubble",
    max_clients: int = 50,
    class_names: Sequence[str] = (),
) -> Picture:
    """A panel for each partition, under its title, all on one scale: the paper's figure."""
    if not partitions:
        raise InputError("a picture of partitions needs at least one")
    panels = [_counts(p, pool, max_clients, class_names) for p in partitions.values()]
    num_rows = -(-len(panels) // PANELS_IN_A_ROW)
    num_columns = -(-len(panels) // num_rows)
    width = 2.9 + 0.1 * max(len(panels[0]) - 10, 0)
    size = min(1.6 + width * num_columns, 24.0), 0.2 + 3.3 * num_rows
    figure = Picture(figsize=size, layout="constrained")
    look = _look(figure, panels, kind, class_names, num_rows)
    grid = figure.subplots(num_rows, num_columns, sharey=True, squeeze=False)
    for axes, counts, (title, partition) in zip(
        grid.flat, panels, partitions.items(), strict=False
    ):
        _panel(axes, counts, look)
        _title(axes, title, len(counts), len(partition))
    for axes in grid[:, 1:].flat:
        axes.set_ylabel("")
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    _legend(figure, look)
    return figure


def _title(axes: Axes, title: str, shown: int, num_clients: int) -> None:
    part = f"the first {shown} of {num_clients:,} clients" if shown < num_clients else ""
    size = 10 if len(title) > 20 or part else 12
    axes.set_title("\n".join(filter(None, [title, part])), color=INK, fontsize=size)


def _counts(
    partition: Partition, pool: Pool, max_clients: int, class_names: Sequence[str]
) -> np.ndarray:
    """Clients by classes, of the first clients alone: a table of all might be large."""
    if max_clients < 1:
        raise InputError(f"max_clients is at least 1, not {max_clients}")
    if pool.labels is None:
        raise InputError("a picture of classes needs class labels, and these examples have none")
    num_classes = int(pool.labels.max()) + 1
    if class_names and len(class_names) < num_classes:
        raise InputError(f"{len(class_names)} class_names were given for {num_classes} classes")
    shown = min(len(partition), max_clients)
    offsets = partition.offsets[: shown + 1]
    held = partition_statistics(Partition(partition.indices[: offsets[-1]], offsets), pool)
    counts = np.zeros((shown, max(num_classes, len(class_names))), np.int64)
    counts[held.client, held.label] = held.count
    return counts


def _look(
    figure: Picture,
    panels: Sequence[np.ndarray],
    kind: Kind,
    class_names: Sequence[str],
    num_rows: int = 1,
) -> _Look:
    if kind not in get_args(Kind):
        raise unknown("kind of picture", kind, get_args(Kind))
    num_clients, num_classes = panels[0].shape
    names = [name.replace("$", r"\$") for name in class_names]  # no formulas
    names = names or [str(label) for label in range(num_classes)]
    if num_classes <= len(PALETTE):
        colours = to_rgba_array(PALETTE[:num_classes])
    else:
        colours = colormaps["turbo"](np.linspace(0.05, 0.95, num_classes))
    width, height = 0.8 * 72 * figure.get_size_inches()
    num_columns = -(-len(panels) // num_rows)
    cell = min(width / num_columns / num_clients, height / num_rows / num_classes)
    largest = int(max(counts.max() for counts in panels))
    top = 1.04 * float(max(counts.sum(1).max() for counts in panels))
    return _Look(kind, names, colours, max(cell, 8.0) ** 2 / largest, top, largest)


def _panel(axes: Axes, counts: np.ndarray, look: _Look) -> None:
    clients = np.arange(len(counts))
    axes.set_axisbelow(True)
    axes.set_xlabel("client", color=INK)
    axes.set_xlim(-0.7, len(counts) - 0.3)
    _ticks(axes.xaxis, [str(client) for client in clients])
    if look.kind == "bubble":
        client, label = np.nonzero(counts)
        area = np.maximum(look.area * counts[client, label], SMALLEST_DISC)
        axes.scatter(client, label, area, look.colours[label], alpha=0.9, linewidths=0)
        axes.set_ylabel("class", color=INK)
        axes.set_ylim(-0.7, len(look.names) - 0.3)
        _ticks(axes.yaxis, look.names)
    else:
        base = np.zeros(len(counts))
        for colour, held in zip(look.colours, counts.T, strict=True):
            axes.bar(clients, held, 0.86, base, color=colour, linewidth=0)
            base += held
        axes.set_ylabel("examples", color=INK)
        axes.set_ylim(0, look.top)
    axes.grid(axis="both" if look.kind == "bubble" else "y", color=RULE, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#999999")
    axes.tick_params(colors=INK, labelsize=8, length=0)


def _ticks(axis: Axis, names: Sequence[str]) -> None:
    """All names where there is room for them."""
    if len(names) <= 20:
        axis.set_ticks(range(len(names)), list(names))
    else:
        axis.set_major_locator(MaxNLocator(10, integer=True, steps=[1, 2, 5, 10]))


def _legend(figure: Picture, look: _Look) -> None:
    """What an axis does not say: how many examples a disc is, or which class a colour is."""
    handles: Sequence[Line2D | Patch]
    spacing = 0.5
    if look.kind == "bubble":
        sizes = sorted({_round_number(look.largest / part) for part in (20, 5, 1)})
        handles = discs = [_disc(size, look) for size in sizes]
        touching = sum(disc.get_markersize() for disc in discs[-2:]) / 2
        spacing = max(0.9, touching / LEGEND_SIZE - 0.7)  # in lines, of which each has one already
    elif len(look.names) <= 20:
        pairs = zip(look.names, look.colours, strict=True)
        handles = [Patch(color=colour, label=name) for name, colour in pairs][::-1]
    else:
        return
    title = "examples" if look.kind == "bubble" else "class"
    figure.legend(
        handles=handles,
        loc="outside right upper",
        title=title,
        frameon=False,
        labelcolor=INK,
        fontsize=LEGEND_SIZE,
        title_fontsize=9,
        labelspacing=spacing,
    )


def _round_number(value: float) -> int:
    """The largest of 1, 2, 5, 10, 20, 50, ... up to ``value``."""
    power: float = 10 ** math.floor(math.log10(max(value, 1)))
    return int(next(step * power for step in (5, 2, 1) if step * power <= max(value, 1)))


def _disc(size: int, look: _Look) -> Line2D:
    width = math.sqrt(look.area * size)
    return Line2D(
        [], [], linestyle="", marker="o", markersize=width, color="#bbbbbb", label=f"{size:,}"
    )
