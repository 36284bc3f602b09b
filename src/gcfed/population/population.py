"""The clients of a run: what each holds, who is there, who is drawn and what goes wrong."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from torch import Tensor

from gcfed.capacity import check_fits
from gcfed.core import keys, tree
from gcfed.core.batches import BatchPlan, plan, plan_size
from gcfed.core.schedule import Schedule
from gcfed.data.federated import FederatedData
from gcfed.errors import InputError
from gcfed.population.availability import ALWAYS, Availability, ClientIds
from gcfed.population.faults import NO_FAULTS, Fate, Faults
from gcfed.population.samplers import Sampler, uniform


class Drawn(NamedTuple):
    """Who takes part in a round and on what, and who was drawn too and never answers."""

    plans: dict[int, BatchPlan]
    absent: list[int]


@dataclass(frozen=True)
class Population:
    """Clients and their data, of which every round draws some.

    Everything is a function of the schedule's seed, the round and the client, so that it does not
    depend on who asks, on the order, or on who else takes part.
    """

    data: FederatedData
    schedule: Schedule
    availability: Availability = ALWAYS
    sampler: Sampler = uniform
    faults: Faults = NO_FAULTS

    def __post_init__(self) -> None:
        if self.schedule.cohort_size > self.data.num_clients:
            raise InputError(
                f"a cohort of {self.schedule.cohort_size} cannot be drawn from "
                f"{self.data.num_clients} clients"
            )
        self._check_memory()
        self.available(0)  # what is wrong with it, or with the sampler, shows before a run starts
        self._sample(0, range(self.data.num_clients))

    def _check_memory(self) -> None:
        """Refuse more steps, or larger batches, than the memory has room to plan."""
        s, most = self.schedule, self.data.parts.largest
        size = plan_size(most, s.batch_size, epochs=s.epochs, steps=s.steps, fill=s.fill)
        width = s.batch_size if s.fill == "repeat" else min(s.batch_size, most)
        for _, x in tree.leaves(self.data.x):
            size += width * math.prod(x.shape[1:]) * x.dtype.itemsize
        often = f"epochs={s.epochs}" if s.steps is None else f"steps={s.steps}"
        what = f"a round of {often}, batch_size={s.batch_size} and {most} examples of a client"
        check_fits(what, size)

    def draw(self, t: int) -> Drawn:
        """Round ``t``: the clients that answer, with their batches, and those that do not."""
        ids = self.sample(t)
        absent = [k for k, fate in self.struck(t, ids).items() if fate.absent]
        present = [k for k in ids if k not in absent]
        return Drawn(dict(zip(present, self.plans(t, present), strict=True)), absent)

    def available(self, t: int) -> ClientIds:
        """The clients that can be drawn in round ``t``."""
        return self.availability(self.data.num_clients, t, self.schedule.seed)

    def sample(self, t: int) -> list[int]:
        """The cohort of round ``t``, without replacement; smaller where fewer are available."""
        among = self.available(t)
        return self._sample(t, among) if len(among) else []

    def _sample(self, t: int, among: ClientIds) -> list[int]:
        rng, size = keys.generator("cohort", self.schedule.seed, t), self.schedule.cohort_size
        return sorted(self.sampler(self.data.parts, among, size, t, rng).tolist())

    def fate(self, t: int, client: int) -> Fate:
        """What befalls a client in round ``t``."""
        return self.faults.of(self.schedule.seed, t, client)

    def struck(self, t: int, ids: Sequence[int]) -> dict[int, Fate]:
        """The clients that something befalls in round ``t``, and what."""
        if not self.faults.happen:
            return {}
        return {k: fate for k in ids if any(fate := self.fate(t, k))}

    def filled_counts(self, ids: Sequence[int]) -> Tensor:
        """How many examples of each class an epoch of a client shows, repeated ones included."""
        s = self.schedule
        return self.data.label_counts(ids, s.batch_size if s.fill == "repeat" else 1)

    def plan(self, t: int, client: int) -> BatchPlan:
        """What a client trains on in round ``t``; one that is late gets through a part of it."""
        return self.plans(t, [client])[0]

    def plans(self, t: int, ids: Sequence[int]) -> list[BatchPlan]:
        """`plan` of each of some clients."""
        of_client, struck = self.data.parts.of_client, self.struck(t, ids)
        rngs = keys.generators_of_clients("batches", self.schedule.seed, t, ids)
        whole = [_plan(self.schedule, of_client(k), rng) for k, rng in zip(ids, rngs, strict=True)]
        return [
            plan.first(self.faults.steps(len(plan))) if k in struck and struck[k].late else plan
            for k, plan in zip(ids, whole, strict=True)
        ]


def plan_round(schedule: Schedule, own: np.ndarray, t: int, client: int) -> BatchPlan:
    """What a client that holds these examples trains on in round ``t``."""
    return _plan(schedule, own, keys.generator("batches", schedule.seed, t, client))


def _plan(schedule: Schedule, own: np.ndarray, rng: np.random.Generator) -> BatchPlan:
    s = schedule
    return plan(own, s.batch_size, epochs=s.epochs, steps=s.steps, fill=s.fill, rng=rng)
