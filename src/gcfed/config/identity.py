"""Which run a run is: a hash of what changes its numbers in exact arithmetic."""

import hashlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gcfed.algorithms import ALGORITHMS, spec
from gcfed.algorithms.centralized import AbstractGC
from gcfed.algorithms.corrected import Scaffold
from gcfed.config.experiment import Experiment
from gcfed.config.settings import Config
from gcfed.core.chain import parts
from gcfed.core.losses import LOSSES
from gcfed.data import DATASETS, PARTITIONS
from gcfed.errors import InputError
from gcfed.models import MODELS
from gcfed.population.availability import AVAILABILITIES
from gcfed.population.faults import FAULTS
from gcfed.population.samplers import SAMPLERS
from gcfed.registry import Registry

NUMERICS = 1
"""Counts the changes of gcfed after which every config gives other numbers.

What changes the numbers of one algorithm, model, data set, ... is counted where that is registered.
"""

LAST_BITS = frozenset({"engine", "precision", "device", "chunk"})
"""Settings that change last bits only: recorded, and kept when a run is resumed."""

WAYS = frozenset({"data_dir", "memory", "checkpoint_every", "checkpoint_minutes", "track"})
"""Settings that change nothing in what comes out."""

NAMED: dict[str, Registry[Any]] = {
    "dataset": DATASETS,
    "model": MODELS,
    "loss": LOSSES,
    "partition": PARTITIONS,
    "sampler": SAMPLERS,
    "availability": AVAILABILITIES,
    "faults": FAULTS,
}
"""Settings that name an entry of a registry.  An algorithm names several, one for each part."""


def identity(experiment: Experiment, data_sha256: str | None = None) -> dict[str, Any]:
    """What the numbers of a run depend on, one seed and any number of rounds.

    ``data_sha256`` is the fingerprint of its data set, if that is known already.
    """
    config = experiment.config
    without = {"plugins", "init", "rounds"}
    if config.lr_schedule == "cosine":  # falls to zero in the last round
        without.remove("rounds")
    return normalised(
        {
            **config.model_dump(mode="json", exclude=without),
            "partition_seed": config.seed_of_partition,
            "init_seed": config.seed_of_weights if config.init is None else None,
            "init_sha256": None if config.init is None else _sha256(Path(config.init)),
            "code_sha256": sorted(map(_sha256, _sources(experiment))),
            "data_sha256": data_sha256 or experiment.data.sha256(),
            "numerics": _numerics(experiment),
        }
    )


def normalised(stored: Any) -> dict[str, Any]:
    """An identity, as it was recorded at any time, without what has its default.

    So a setting or an argument that is new, and left at its default, makes no run another one.  A
    default that changes is a change of numerics.  What is damaged, and not an identity at all,
    becomes an empty one, which no run has.
    """
    if not isinstance(stored, Mapping):
        return {}
    defaults = {**Config().model_dump(mode="json"), "init_sha256": None, "numerics": {}}
    values = {key: value for key, value in stored.items() if key not in LAST_BITS | WAYS}
    values["numerics"] = _by_part(stored.get("numerics", {}))
    short, usual = shortened(values), shortened(defaults)
    return {key: value for key, value in short.items() if value != usual.get(key, ...)}


def shortened(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings whose texts are without the hyper-parameters that have their defaults."""
    return {key: _short(key, value) for key, value in settings.items()}


def num_registered() -> int:
    """How many names are known: with more of them, more of an old identity can be shortened."""
    return sum(map(len, (ALGORITHMS, *NAMED.values())))


def digest(identity: Mapping[str, Any]) -> str:
    """The identity as a hash."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


def _short(key: str, value: Any) -> Any:
    if not isinstance(value, str) or "(" not in value:  # a name alone is as short as can be
        return value
    try:
        if key == "algorithm":
            return spec.short(value)
        return NAMED[key].short(NAMED[key].parse(value)) if key in NAMED else value
    except InputError:  # of a plugin that is not loaded
        return value


def _by_part(numerics: Any) -> Mapping[str, Any]:
    """Numerics by part; once they were one number, that of all of gcfed."""
    if isinstance(numerics, Mapping):
        return numerics
    return {} if numerics == 1 else {"gcfed": numerics}


def _numerics(experiment: Experiment) -> dict[str, int]:
    """The versions of what a run is made of, where they are not the first."""
    made_of = {
        f"{registry.kind} {name}": registry.numerics(name) for registry, name in _used(experiment)
    }
    model = experiment.setup.model
    for part in parts(experiment.setup.algorithm):
        # runs of a model that is now centralized otherwise, and of no other, are other runs
        name = ALGORITHMS.name_of(type(part))
        if isinstance(part, AbstractGC) and not part.goes_by_axes(model.params, model.roles):
            made_of[f"algorithm {name}"] = 1 + made_of.get(f"algorithm {name}", 1)
        # its effective steps, once in float32, lost more than last bits above this momentum
        if isinstance(part, Scaffold) and (experiment.setup.optimizer.momentum or 0) > 0.9:
            made_of[f"algorithm {name}"] = 1 + made_of.get(f"algorithm {name}", 1)
    versions = {"gcfed": NUMERICS, **made_of}
    return {part: version for part, version in versions.items() if version > 1}


def _used(experiment: Experiment) -> list[tuple[Registry[Any], str]]:
    """The entries of registries that a run is made of; what a program gave itself is none."""
    names = (ALGORITHMS.name_of(type(part)) for part in parts(experiment.setup.algorithm))
    algorithms = [(ALGORITHMS, name) for name in names if name is not None]
    texts = {key: getattr(experiment.config, key).partition("(")[0] for key in NAMED}
    return algorithms + [(NAMED[key], text) for key, text in texts.items() if text in NAMED[key]]


def _sources(experiment: Experiment) -> set[Path]:
    """The files of plugins, and of what others registered and the run uses."""
    used = [registry[name] for registry, name in _used(experiment)]
    modules = {getattr(entry, "__module__", "") for entry in used}
    files = (
        getattr(sys.modules.get(name), "__file__", None)
        for name in modules
        if name.partition(".")[0] != "gcfed"
    )
    return {Path(file).resolve() for file in (*experiment.config.plugins, *filter(None, files))}


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
