"""Probes: measurements of a round, written beside its line, of which a run has as many as asked.

A probe says what it needs to see of a round and gives a row of numbers.  Nothing that no probe
needs is kept, so a run without probes pays for none.
"""

import inspect
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence, Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import torch

from gcfed.analysis.probe_checks import (
    Undeclared,
    checked_row,
    refuse_other_names,
    without_measure,
)
from gcfed.core import keys, tree
from gcfed.core.lazy import loaded
from gcfed.core.precision import arithmetic
from gcfed.core.server import Server
from gcfed.core.types import Inputs, Stored
from gcfed.errors import InputError, made
from gcfed.registry import Registry
from gcfed.simulation.evaluation import TestSet
from gcfed.simulation.lines import Record
from gcfed.simulation.setup import Keep, Setup
from gcfed.simulation.snapshot import RoundResult
from gcfed.values import check_range

SAMPLE = 0x736D706C  # the key that test examples are drawn by

Sight = Literal["uploads", "models", "batch"]
"""What a probe may need to see of a round beyond the global model before and after it."""


@dataclass(frozen=True)
class Observation:
    """A round as a probe sees it.

    ``received`` is the global model that the clients started from, ``result.server`` the one that
    the round came to.  ``result.uploads`` is there for a probe that needs ``"uploads"``,
    ``result.models`` (the clients' own, stacked) for one that needs ``"models"``, and `batch`,
    `sample` and `need_test` for one that needs ``"batch"``.
    """

    setup: Setup
    received: Server
    result: RoundResult
    test: TestSet | None = None

    def batch(self, size: int) -> Inputs:
        """The first test examples, as the model reads them in evaluation."""
        return self._as_read(tree.take(self.need_test().x, slice(size)))

    def sample(self, size: int) -> Inputs:
        """Test examples at random, as the model reads them, the same in every round of every run.

        The first ones would be of a single class where a test set is in the order of its classes.
        """
        test = self.need_test()
        chances = keys.uniform(keys.key(SAMPLE), (len(test.y),))
        drawn = chances.argsort(stable=True)[:size].to(test.y.device)
        return self._as_read(tree.map(lambda x: x[drawn], test.x))

    @property
    def rows(self) -> list[int]:
        """The places, in what is stacked, of the clients whose work entered the round."""
        return [k for k, i in enumerate(self.result.ids) if i not in self.result.dropped]

    def need_test(self) -> TestSet:
        """The test examples and their labels."""
        if self.test is None:
            raise InputError(
                'there are no test examples for it: add "batch" to its needs, as in '
                'needs = frozenset({"batch"})'
            )
        return self.test

    def _as_read(self, stored: Stored) -> Inputs:
        x, transform = loaded(stored), self.setup.transform
        return x if transform is None else transform(x, None)


@dataclass(frozen=True)
class Probe(ABC):
    """Measures rounds; a frozen dataclass whose fields are what a text may set.

    With ``every=10`` the first round is measured and every tenth after it.
    """

    needs: ClassVar[frozenset[Sight]] = frozenset()

    every: int = field(default=1, kw_only=True)

    def is_due(self, t: int, rounds: int) -> bool:
        """Whether round ``t`` of so many is measured."""
        return t % self.every == 0

    def check(self, setup: Setup) -> None:  # noqa: B027 (most probes refuse nothing)
        """Refuse a run whose rounds cannot be measured, before it starts."""

    @abstractmethod
    def measure(self, seen: Observation) -> Mapping[str, float]:
        """A row of numbers by name, the same names in every round that is measured.

        A number of a layer is named ``number.layer``, and can then be drawn layer by layer.
        """


PROBES: Registry[Callable[..., Probe]] = Registry("probe")


def make_probes(texts: Sequence[str]) -> dict[str, Probe]:
    """The probes that texts name, by the name that their numbers go under."""
    probes: dict[str, Probe] = {}
    for text in texts:
        bound = PROBES.parse(text)
        name = PROBES.name_of(bound.func) or text
        if name in probes:
            raise InputError(
                f"the probe {name} is named twice: its numbers would share their names"
            )
        if isinstance(kind := bound.func, type) and inspect.isabstract(kind):
            raise without_measure(name, kind)
        probe = made(f"probe {text}", bound)
        if not isinstance(probe, Probe):
            raise InputError(f"probe {text} gave a {type(probe).__name__}, where a Probe belongs")
        _check_needs(name, probe.needs)
        check_range(f"{name}(every=...)", probe.every, "at least 1")
        probes[name] = probe
    return probes


def _check_needs(name: str, needs: Any) -> None:
    known = ", ".join(get_args(Sight))
    if not isinstance(needs, AbstractSet):
        raise InputError(
            f'needs of probe {name} is a set of names, as in needs = frozenset({{"models"}}); not '
            f"{needs!r:.200}. There are {known}"
        )
    if strange := sorted(map(str, needs - set(get_args(Sight)))):
        raise InputError(f"probe {name} needs {strange[0]!r}; there are {known}")


def kept_for(probes: Mapping[str, Probe]) -> frozenset[Keep]:
    """What results of rounds must hold so that these probes can measure them."""
    needed = {sight for probe in probes.values() for sight in probe.needs}
    return frozenset(keep for keep in get_args(Keep) if keep in needed)


class Measured(NamedTuple):
    """What probes measured of a round, and how many seconds each of them took."""

    row: Record
    seconds: dict[str, float]


def measure(
    probes: Mapping[str, Probe],
    seen: Observation,
    known: dict[str, list[str]] | None = None,
) -> Measured:
    """The row of a round: every number under its probe's name; one that is not finite is None.

    ``known`` keeps the names of each probe's numbers, which are the same in every round.
    """
    t, known = seen.result.round, {} if known is None else known
    row: Record = {"round": t}
    seconds: dict[str, float] = {}
    with torch.no_grad(), arithmetic("float32"):
        for name, probe in probes.items():
            if not probe.is_due(t, seen.setup.schedule.rounds):
                continue
            start = time.perf_counter()
            found = checked_row(name, probe, _as_needed(probe, seen), closely=name not in known)
            refuse_other_names(name, probe, found, known)
            for key, number in found.items():
                row[f"{name}.{key}"] = number if math.isfinite(number) else None
            seconds[name] = time.perf_counter() - start
    return Measured(row, seconds)


def _as_needed(probe: Probe, seen: Observation) -> Observation:
    """A round without what a probe does not say it needs."""
    others: dict[str, Any] = {
        keep: Undeclared(f"result.{keep}", keep)
        for keep in get_args(Keep)
        if keep not in probe.needs
    }
    test = seen.test if "batch" in probe.needs else None
    return replace(seen, result=replace(seen.result, **others), test=test)
