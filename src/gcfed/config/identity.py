"""Which run a run is: a hash of what changes its numbers in exact arithmetic."""

import hashlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gcfed.config.build import Experiment
from gcfed.config.settings import Config
from gcfed.core import tree
from gcfed.core.algorithm import parts
from gcfed.data import DATASETS, PARTITIONS, Dataset
from gcfed.models import MODELS
from gcfed.population.availability import AVAILABILITIES
from gcfed.population.faults import FAULTS
from gcfed.population.samplers import SAMPLERS
from gcfed.simulation.evaluation import weights_sha256

NUMERICS = 1
"""Counts the changes of gcfed after which the same config gives other numbers."""

LAST_BITS = frozenset({"engine", "precision", "device", "chunk"})
"""Settings that change last bits only: recorded, and kept when a run is resumed."""

WAYS = frozenset({"data_dir", "memory", "checkpoint_every", "checkpoint_minutes", "track"})
"""Settings that change nothing in what comes out."""

SAMPLE = 2**28  # bytes of a tensor that a fingerprint looks at


def identity(experiment: Experiment, data_sha256: str | None = None) -> dict[str, Any]:
    """What the numbers of a run depend on, one seed and any number of rounds.

    ``data_sha256`` is the fingerprint of its data set, if that is known already.
    """
    config = experiment.config
    without = {*LAST_BITS, *WAYS, "plugins", "init", "rounds"}
    if config.lr_schedule == "cosine":  # falls to zero in the last round
        without.remove("rounds")
    if config.availability == "always":  # as in runs that were made before there was a choice
        without.add("availability")
    if not config.metrics:  # likewise
        without.add("metrics")
    return {
        **config.model_dump(mode="json", exclude=without),
        "partition_seed": _first(config.partition_seed, config.seed),
        "init_seed": _first(config.init_seed, config.seed) if config.init is None else None,
        "init_sha256": None if config.init is None else _sha256(Path(config.init)),
        "code_sha256": sorted(map(_sha256, _sources(experiment))),
        "data_sha256": data_sha256 or fingerprint(experiment.dataset),
        "numerics": NUMERICS,
    }


def digest(identity: Mapping[str, Any]) -> str:
    """The identity as a hash."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


def fingerprint(dataset: Dataset) -> str:
    """A hash of the examples, or where there are many of evenly spaced ones."""
    examples = dict(tree.leaves((dataset.train, dataset.test)))
    shapes = [list(x.shape) for x in examples.values()]
    found = hashlib.sha256(json.dumps([shapes, dataset.num_classes]).encode())
    found.update(weights_sha256(tree.map(_sample, examples)).encode())
    for name, values in sorted(dataset.keys.items()):
        found.update(f"{name} {values.dtype}".encode())
        found.update(_bytes(values))
    return found.hexdigest()


def _sample(x: torch.Tensor) -> torch.Tensor:
    return x[:: max(1, -(-x.numel() * x.element_size() // SAMPLE))]


def _bytes(values: np.ndarray) -> bytes:
    return "\n".join(map(str, values)).encode() if values.dtype == object else values.tobytes()


def _sources(experiment: Experiment) -> set[Path]:
    """The files of plugins, and of what others registered and the run uses."""
    config = experiment.config
    used: list[Any] = [type(part) for part in parts(experiment.setup.algorithm)]
    used += [
        registry.parse(text).func
        for registry, text in _named(config)
        if text.partition("(")[0] in registry
    ]
    modules = {getattr(entry, "__module__", "") for entry in used}
    files = (
        getattr(sys.modules.get(name), "__file__", None)
        for name in modules
        if name.partition(".")[0] != "gcfed"
    )
    return {Path(file).resolve() for file in (*config.plugins, *filter(None, files))}


def _named(config: Config) -> list[tuple[Any, str]]:
    return [
        (DATASETS, config.dataset),
        (MODELS, config.model),
        (PARTITIONS, config.partition),
        (AVAILABILITIES, config.availability),
        (SAMPLERS, config.sampler),
        (FAULTS, config.faults),
    ]


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _first(value: int | None, default: int) -> int:
    return default if value is None else value
