"""What there is to choose from: the tables that ``gcfed list`` prints and a shell completes.

Registries stand beside code that needs torch, which takes seconds to import.  So their tables are
written down in a file, which is read as long as no registry can have changed.
"""

import json
import sys
from importlib import import_module
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from gcfed.registry import Registry

FILE = "choices.json"
"""The tables as ``python tools/make_tables.py`` wrote them."""

REGISTRIES = {
    "algorithms": ("gcfed.algorithms", "ALGORITHMS"),
    "datasets": ("gcfed.data", "DATASETS"),
    "models": ("gcfed.models", "MODELS"),
    "partitions": ("gcfed.data", "PARTITIONS"),
    "engines": ("gcfed.engines", "ENGINES"),
    "losses": ("gcfed.core.losses", "LOSSES"),
    "metrics": ("gcfed.core.metrics", "METRICS"),
    "availabilities": ("gcfed.population.availability", "AVAILABILITIES"),
    "samplers": ("gcfed.population.samplers", "SAMPLERS"),
    "faults": ("gcfed.population.faults", "FAULTS"),
    "probes": ("gcfed.analysis", "PROBES"),
    "trackers": ("gcfed.runs.trackers", "TRACKERS"),
}
"""Where each registry is; only the one that is asked for is imported."""

LISTS = (*REGISTRIES, "authors", "settings")

CIFAR = (3, 32, 32)


class Choices(NamedTuple):
    """A table of what there is to choose from: a row for each, its name first."""

    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]


def choices(what: str) -> Choices:
    """One of `LISTS`: as it was written down, unless a plugin may have registered more."""
    if "gcfed.registry" in sys.modules:  # before it is imported, there is no registry to change
        return collect(what)
    written = json.loads((files("gcfed.cli") / FILE).read_text(encoding="utf-8"))[what]
    return Choices(tuple(written["columns"]), [tuple(row) for row in written["rows"]])


def collect(what: str) -> Choices:
    """One of `LISTS`, as the registries and the settings are now."""
    if what == "settings":
        from gcfed.config.settings import describe

        return Choices(("setting", "default", "what it says"), [*describe()])
    if what == "authors":
        from gcfed.algorithms.authors import rows as authors_rows

        return Choices(("algorithm", "stands for", "how it differs"), [*authors_rows()])
    module, name = REGISTRIES[what]
    registry: Registry[Any] = getattr(import_module(module), name)
    if what != "models":
        return Choices(registry.columns, [*registry.rows()])
    kind, *rest = registry.columns
    costs = ("parameters", "forward MFLOP")
    rows = [(name, *_costs(registry[name]), *cells) for name, *cells in registry.rows()]
    return Choices((kind, *costs, *rest), rows)


def _costs(make: Any) -> tuple[str, str]:
    """What a model costs on the images of CIFAR-10, if it can read them."""
    import torch

    from gcfed.models import count

    try:
        with torch.device("meta"):  # shapes are enough
            module = make(CIFAR, 10)
        cost = count(module, CIFAR)
    except Exception:  # a user's model may be for other examples than these
        return "-", "-"
    return f"{cost.parameters:,}", f"{cost.flops / 1e6:,.1f}"
