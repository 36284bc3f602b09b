"""Pictures of who holds which classes."""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import to_rgba_array
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from gcfed.data.partition import Partition, Pool
from gcfed.data.partitions import Mode, dirichlet
from gcfed.data.statistics import partition_statistics
from gcfed.errors import InputError, unknown

Kind = Literal["bubble", "stack"]

INK, RULE = "#333333", "#e6e6e6"
PALETTE = ["#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#b07aa1"]
PALETTE += ["#76b7b2", "#edc948", "#9c755f", "#ff9da7", "#8a8d93"]


class _Look(NamedTuple):
    """What the panels of a figure have in common.

    A disc has ``area`` points squared per example, so that the largest fills its cell; an axis of
    bars ends at ``top``.
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
) -> Figure:
    """The label counts of the first ``max_clients`` clients, as bubbles or as stacked bars."""
    if max_clients < 1:
        raise InputError(f"max_clients is at least 1, not {max_clients}")
    counts = _counts(partition, pool, max_clients)
    shown, num_classes = counts.shape
    height = 4.2 if kind == "stack" else min(2.0 + 0.3 * num_classes, 9.0)
    figure = Figure(figsize=(min(4.5 + 0.22 * shown, 14.0), height), layout="constrained")
    look = _look(figure, [counts], kind, class_names)
    axes = figure.subplots()
    _panel(axes, counts, look)
    if shown < len(partition):
        axes.set_title(f"the first {shown} of {len(partition):,} clients", color=INK, fontsize=10)
    _legend(figure, look)
    return figure


def draw_alphas(
    pool: Pool,
    alphas: Sequence[float],
    num_clients: int,
    seed: int = 0,
    kind: Kind = "bubble",
    *,
    mode: Mode = "per_class",
    class_names: Sequence[str] = (),
) -> Figure:
    """One panel per alpha of `dirichlet`, from the same seed and on the same scale."""
    if not alphas:
        raise InputError("a picture of alphas needs at least one")
    panels = []
    for alpha in alphas:
        rng = np.random.default_rng(seed)
        partition = dirichlet(pool, num_clients, rng, alpha=alpha, mode=mode)
        panels.append(_counts(partition, pool, num_clients))
    figure = Figure(figsize=(1.6 + 2.9 * len(alphas), 3.5), layout="constrained")
    look = _look(figure, panels, kind, class_names)
    grid = figure.subplots(1, len(alphas), sharey=True, squeeze=False)[0]
    for axes, counts, alpha in zip(grid, panels, alphas, strict=True):
        _panel(axes, counts, look)
        axes.set_title(rf"$\alpha$ = {alpha:g}", color=INK)
        axes.label_outer()
    _legend(figure, look)
    return figure


def _counts(partition: Partition, pool: Pool, max_clients: int) -> np.ndarray:
    """Clients by classes, of the first clients alone: a table of all might be large."""
    if pool.labels is None:
        raise InputError("a picture of classes needs class labels, and these examples have none")
    shown = min(len(partition), max_clients)
    offsets = partition.offsets[: shown + 1]
    held = partition_statistics(Partition(partition.indices[: offsets[-1]], offsets), pool)
    counts = np.zeros((shown, int(pool.labels.max()) + 1), np.int64)
    counts[held.client, held.label] = held.count
    return counts


def _look(
    figure: Figure, panels: Sequence[np.ndarray], kind: Kind, class_names: Sequence[str]
) -> _Look:
    if kind not in get_args(Kind):
        raise unknown("kind of picture", kind, get_args(Kind))
    num_clients, num_classes = panels[0].shape
    if class_names and len(class_names) != num_classes:
        raise InputError(f"{len(class_names)} class_names were given for {num_classes} classes")
    names = class_names or [str(label) for label in range(num_classes)]
    if num_classes <= len(PALETTE):
        colours = to_rgba_array(PALETTE[:num_classes])
    else:
        colours = colormaps["turbo"](np.linspace(0.05, 0.95, num_classes))
    width, height = 0.8 * 72 * figure.get_size_inches()
    cell = min(width / len(panels) / num_clients, height / num_classes)
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
        area = look.area * counts[client, label]
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


def _legend(figure: Figure, look: _Look) -> None:
    """What an axis does not say: how many examples a disc is, or which class a colour is."""
    handles: Sequence[Line2D | Patch]
    if look.kind == "bubble":
        sizes = sorted({max(1, look.largest // part) for part in (20, 4, 1)})
        handles = [_disc(size, look) for size in sizes]
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
        fontsize=8,
        title_fontsize=9,
        labelspacing=0.9 if look.kind == "bubble" else 0.5,
    )


def _disc(size: int, look: _Look) -> Line2D:
    width = math.sqrt(look.area * size)
    return Line2D(
        [], [], linestyle="", marker="o", markersize=width, color="#bbbbbb", label=f"{size:,}"
    )
