"""Probes: measurements of a round, written beside its line, of which a run has as many as asked.

A probe says what it needs to see of a round and gives a row of numbers.  Nothing that no probe
needs is kept, so a run without probes pays for none.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch

from gcfed.core import tree
from gcfed.core.precision import arithmetic
from gcfed.core.server import Server
from gcfed.core.types import Inputs
from gcfed.errors import InputError
from gcfed.registry import Registry
from gcfed.simulation.evaluation import Record, TestSet
from gcfed.simulation.setup import Keep, Setup
from gcfed.simulation.snapshot import RoundResult

Sight = Literal["uploads", "models", "batch"]
"""What a probe may need to see of a round beyond the global model before and after it."""


@dataclass(frozen=True)
class Observation:
    """A round as a probe sees it.

    ``received`` is the global model that the clients started from, ``result.server`` the one that
    the round came to.  ``result.uploads`` is there for a probe that needs ``"uploads"``,
    ``result.models`` (the clients' own, stacked) for one that needs ``"models"``, and `batch` for
    one that needs ``"batch"``.
    """

    setup: Setup
    received: Server
    result: RoundResult
    test: TestSet | None = None

    def batch(self, size: int) -> Inputs:
        """The first test examples, as the model reads them in evaluation."""
        if self.test is None:
            raise InputError("this round comes without test examples, which a probe asks for")
        x, transform = tree.take(self.test.x, slice(size)), self.setup.transform
        return x if transform is None else transform(x, None)


class Probe(ABC):
    """Measures every round; a frozen dataclass whose fields are what a text may set."""

    needs: ClassVar[frozenset[Sight]] = frozenset()

    @abstractmethod
    def measure(self, seen: Observation) -> Mapping[str, float]:
        """A row of numbers by name, the same names in every round."""


PROBES: Registry[Callable[..., Probe]] = Registry("probe")


def make_probes(texts: Sequence[str]) -> dict[str, Probe]:
    """The probes that texts name, by the name that their numbers go under."""
    probes: dict[str, Probe] = {}
    for text in texts:
        bound = PROBES.parse(text)
        name, probe = PROBES.name_of(bound.func) or text, bound()
        if name in probes:
            raise InputError(
                f"the probe {name} is named twice: its numbers would share their names"
            )
        if not isinstance(probe, Probe):
            raise InputError(f"probe {text} gave a {type(probe).__name__}, where a Probe belongs")
        if strange := probe.needs - set(get_args(Sight)):
            known = ", ".join(get_args(Sight))
            raise InputError(f"probe {name} needs {sorted(strange)[0]!r}; there are {known}")
        probes[name] = probe
    return probes


def kept_for(probes: Mapping[str, Probe]) -> frozenset[Keep]:
    """What results of rounds must hold so that these probes can measure them."""
    needed = {sight for probe in probes.values() for sight in probe.needs}
    return frozenset(keep for keep in get_args(Keep) if keep in needed)


def measure(probes: Mapping[str, Probe], seen: Observation) -> Record:
    """The row of a round: every number under its probe's name; one that is not finite is None."""
    row: Record = {"round": seen.result.round}
    with torch.no_grad(), arithmetic("float32"):
        for name, probe in probes.items():
            test = seen.test if "batch" in probe.needs else None
            view = Observation(seen.setup, seen.received, seen.result, test)
            for key, value in probe.measure(view).items():
                number = float(value)
                row[f"{name}.{key}"] = number if math.isfinite(number) else None
    return row
