"""The command that lists what there is to choose from."""

from importlib import import_module
from typing import Annotated, Any

import typer

from gcfed.cli import console
from gcfed.cli.completion import list_names
from gcfed.cli.options import Plugins
from gcfed.errors import unknown
from gcfed.registry import Registry

CIFAR = (3, 32, 32)

REGISTRIES = {
    "algorithms": ("gcfed.algorithms", "ALGORITHMS"),
    "datasets": ("gcfed.data", "DATASETS"),
    "models": ("gcfed.models", "MODELS"),
    "partitions": ("gcfed.data", "PARTITIONS"),
    "engines": ("gcfed.engines", "ENGINES"),
    "metrics": ("gcfed.core.metrics", "METRICS"),
    "availabilities": ("gcfed.population.availability", "AVAILABILITIES"),
    "samplers": ("gcfed.population.samplers", "SAMPLERS"),
    "faults": ("gcfed.population.faults", "FAULTS"),
    "probes": ("gcfed.analysis", "PROBES"),
    "trackers": ("gcfed.runs.trackers", "TRACKERS"),
}
"""Where each registry is; only the one that is asked for is imported."""

LISTS = (*REGISTRIES, "authors", "settings")


def registry_of(kind: str) -> Registry[Any]:
    """The registry that ``gcfed list KIND`` shows."""
    module, name = REGISTRIES[kind]
    found: Registry[Any] = getattr(import_module(module), name)
    return found


def list_(
    what: Annotated[str, typer.Argument(metavar="WHAT", hidden=True, autocompletion=list_names)],
    plugin: Plugins = None,
) -> None:
    """List what there is to choose from, a line each.

    WHAT is algorithms, datasets, models, partitions, engines, metrics, probes, availabilities,
    samplers, faults, trackers, authors (methods as the authors of GC-Fed ran them), or settings (of
    gcfed run).
    """
    if what == "settings":
        from gcfed.config.settings import describe

        console.table(("setting", "default", "what it says"), describe())
    elif what == "authors":
        from gcfed.algorithms.authors import rows as authors_rows

        console.table(("algorithm", "stands for", "how it differs"), authors_rows())
    elif what == "models":
        costs = ("parameters", "forward MFLOP")
        console.table(("model", *costs, "what it is", "hyper-parameters"), _model_rows())
        console.say(
            f"parameters and forward MFLOP are for examples of {' x '.join(map(str, CIFAR))} and "
            "10 classes, as in CIFAR-10; a model for other examples has a dash"
        )
    elif what in REGISTRIES:
        registry = registry_of(what)
        rows = registry.rows()
        if what == "engines":
            rows.insert(0, ("auto", "The one that suits the device and the model; says which.", ""))
        console.table(registry.columns, rows)
    else:
        raise unknown("list", what, LISTS)


def _model_rows() -> list[tuple[str, str, str, str, str]]:
    """What each model costs on the images of CIFAR-10, where it can read them."""
    import torch

    from gcfed.models import MODELS, count

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
