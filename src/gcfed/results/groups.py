"""Groups of runs that differ in their seed alone, and what sets one group apart from another."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gcfed.config.identity import LAST_BITS, WAYS, shortened
from gcfed.config.settings import Config
from gcfed.errors import InputError
from gcfed.results.captions import alpha_of, caption, short
from gcfed.results.finding import find_runs, no_runs
from gcfed.results.run import Run
from gcfed.results.seal import warn_of_changes

Runs = str | Path | Run | Iterable[str | Path | Run]
"""A run, a run directory, a folder of them, or several of these."""

INCIDENTAL = sorted(LAST_BITS & Config.model_fields.keys())
"""Change last bits and not what a run is; that they differ is said, and no more."""

APART = {"seed", "plugins", "metrics", "probes", *LAST_BITS, *WAYS}
"""What may differ within a group."""

RECORDED = {
    "data_sha256": "data",
    "code_sha256": "code",
    "init_sha256": "init",
    "numerics": "numerics",
}
"""What a config stood for when the run was made, and what it is called here."""

FOLLOWS = {"data": "dataset", "code": "algorithm"}
"""What goes without saying, as long as one name stands for one thing."""

METHOD = (
    *("algorithm", "optimizer", "lr", "momentum", "weight_decay", "lr_schedule", "lr_decay"),
    *("server_lr", "weighting", "buffers", "code"),
)
"""What methods are free to choose; groups that share all other settings have one task."""


def collect(paths: Runs) -> list[Run]:
    """The runs there are in these places, each once, in the order given.

    A warning names those that were changed since they ended.  Those of one folder are in the order
    of their tasks, the smallest alpha first.
    """
    several = list(paths) if isinstance(paths, Iterable) and not isinstance(paths, str) else [paths]
    found: dict[Path, Run] = {}
    for place in several:
        runs = [place] if isinstance(place, Run) else sorted(find_runs(place), key=_order)
        if not runs:
            raise no_runs(str(place))
        for run in runs:
            found.setdefault(run.path.resolve(), run)
    if not found:
        raise InputError("name a run, or a folder of runs")
    warn_of_changes(found.values())
    return list(found.values())


def settings_of(run: Run) -> dict[str, Any]:
    """What a run has in common with those that differ from it in their seed alone."""
    values = shortened(run.config.model_dump(mode="json", exclude=APART))
    made_of = {n: _short(run.identity[key]) for key, n in RECORDED.items() if key in run.identity}
    return {**values, **made_of}


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed alone, by seed."""

    name: str
    settings: dict[str, Any]
    runs: tuple[Run, ...]

    @property
    def algorithm(self) -> str:
        return short(self.settings["algorithm"])

    @property
    def task(self) -> dict[str, Any]:
        return {key: value for key, value in self.settings.items() if key not in METHOD}

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(run.config.seed for run in self.runs)


def group(runs: Sequence[Run]) -> tuple[list[Group], list[str]]:
    """The groups that runs form, in order of their first, and a note on each that is left out.

    A group is named by its algorithm, and by those settings of `METHOD` in which not all agree.
    """
    found: dict[str, list[Run]] = {}
    settings: dict[str, dict[str, Any]] = {}
    for run, values in zip(runs, _told([settings_of(run) for run in runs]), strict=True):
        found.setdefault(_key(values), []).append(run)
        settings[_key(values)] = values
    differ = [key for key in differing(list(settings.values())) if key in METHOD[1:]]
    names = {key: _name(settings[key], differ) for key in found}
    notes: list[str] = []
    groups = [Group(names[k], settings[k], _by_seed(runs, notes)) for k, runs in found.items()]
    return groups, notes


def _told(settings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Settings without what goes without saying."""
    implied = {
        key
        for key, name in FOLLOWS.items()
        if len({(each[name], _key(each.get(key))) for each in settings})
        == len({each[name] for each in settings})
    }
    return [{k: v for k, v in each.items() if k not in implied} for each in settings]


def _name(settings: dict[str, Any], differ: list[str]) -> str:
    """An algorithm, and the values it has of these settings."""
    values = [f"{key}={settings[key]}" for key in differ if settings.get(key) is not None]
    return ", ".join([short(settings["algorithm"]), *values])


def differing(settings: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """The keys on which settings disagree, and the values that they have."""
    values = {
        key: list({_key(each.get(key)): each.get(key) for each in settings}.values())
        for key in dict.fromkeys(key for each in settings for key in each)
    }
    return {key: found for key, found in values.items() if len(found) > 1}


def apart(settings: list[dict[str, Any]]) -> list[str]:
    """The keys that tell these settings apart, without what goes without saying."""
    return list(differing(_told(settings)))


def tasks(groups: Sequence[Group]) -> dict[str, list[Group]]:
    """Groups of one task each, by a title that says what is particular to it."""
    differ = differing([g.task for g in groups])
    found: dict[str, list[Group]] = {}
    for member in groups:
        found.setdefault(caption(member.task, differ), []).append(member)
    return found


def _order(run: Run) -> tuple[str, str, int, int, float]:
    config = run.config
    alpha = alpha_of(config.partition)
    people = (config.clients or 0, config.cohort)
    return config.dataset, config.model, *people, float("inf") if alpha is None else alpha


def _by_seed(runs: list[Run], notes: list[str]) -> tuple[Run, ...]:
    """One run a seed: one that finished, if any, with the most probes, since all else is equal."""
    kept: dict[int, Run] = {}
    best_first = sorted(
        runs, key=lambda run: (run.summary["status"] != "finished", -len(run.config.probes))
    )
    for run in best_first:
        other = kept.setdefault(run.config.seed, run)
        if other is not run:
            notes.append(
                f"{run.path} is left out: it has the settings and the seed of {other.path}"
            )
    return tuple(kept[seed] for seed in sorted(kept))


def _key(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _short(value: Any) -> Any:
    """Enough of a hash, or of several, to tell it from others."""
    if isinstance(value, list):
        return " ".join(str(each)[:10] for each in value) or None
    return value[:10] if isinstance(value, str) else value
