"""The command that lists what there is to choose from."""

from typing import Annotated, Any

import torch
import typer

from gcfed.algorithms import ALGORITHMS
from gcfed.analysis import PROBES
from gcfed.cli import console
from gcfed.cli.options import Plugins
from gcfed.config.settings import describe
from gcfed.core.metrics import METRICS
from gcfed.data import DATASETS, PARTITIONS
from gcfed.engines import ENGINES
from gcfed.errors import unknown
from gcfed.models import MODELS, count
from gcfed.population.availability import AVAILABILITIES
from gcfed.population.faults import FAULTS
from gcfed.population.samplers import SAMPLERS
from gcfed.registry import Registry
from gcfed.runs.trackers import TRACKERS

CIFAR = (3, 32, 32)

REGISTRIES: dict[str, Registry[Any]] = {
    "algorithms": ALGORITHMS,
    "datasets": DATASETS,
    "models": MODELS,
    "partitions": PARTITIONS,
    "engines": ENGINES,
    "metrics": METRICS,
    "availabilities": AVAILABILITIES,
    "samplers": SAMPLERS,
    "faults": FAULTS,
    "probes": PROBES,
    "trackers": TRACKERS,
}


def list_(
    what: Annotated[str, typer.Argument(metavar="WHAT", hidden=True)],
    plugin: Plugins = None,
) -> None:
    """List what there is to choose from, a line each.

    WHAT is algorithms, datasets, models, partitions, engines, metrics, probes, availabilities,
    samplers, faults, trackers, or settings (of gcfed run).
    """
    if what == "settings":
        console.table(("setting", "default", "what it says"), describe())
    elif what == "models":
        costs = ("parameters", "forward MFLOP")  # of CIFAR-10's images
        console.table(("model", *costs, "what it is", "hyper-parameters"), _model_rows())
    elif what in REGISTRIES:
        registry = REGISTRIES[what]
        rows = registry.rows()
        if what == "engines":
            rows.insert(0, ("auto", "The one that suits the device and the model; says which.", ""))
        console.table(registry.columns, rows)
    else:
        raise unknown("list", what, [*REGISTRIES, "settings"])


def _model_rows() -> list[tuple[str, str, str, str, str]]:
    """What each model costs on the images of CIFAR-10, where it can read them."""
    rows = []
    for name in MODELS:
        try:
            with torch.device("meta"):  # shapes are enough
                module = MODELS[name](CIFAR, 10)
            cost = count(module, CIFAR)
            costs = f"{cost.parameters:,}", f"{cost.flops / 1e6:,.1f}"
        except Exception:  # a user's model may be for other examples than these
            costs = "-", "-"
        rows.append((name, *costs, MODELS.describe(name), MODELS.settable(name)))
    return rows
