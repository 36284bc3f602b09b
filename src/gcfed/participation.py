"""Who takes part in a round, and what goes wrong with them: samplers and faults, both seeded."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gcfed import random, tree
from gcfed.availability import Clients
from gcfed.context import Upload
from gcfed.data.partition import Partition
from gcfed.errors import InputError
from gcfed.registry import Registry

Sampler = Callable[[Partition, Clients, int, int, np.random.Generator], np.ndarray]
"""The clients of a round, without replacement: from who holds what, who is available (somebody is),
how many are wanted and the round.  Where fewer are available than wanted, it takes them all.
"""

SAMPLERS: Registry[Callable[..., np.ndarray]] = Registry("sampler")


@SAMPLERS.register("uniform")
def uniform(
    parts: Partition, among: Clients, size: int, t: int, rng: np.random.Generator
) -> np.ndarray:
    """Every client as likely as any other."""
    drawn = rng.choice(len(among), min(size, len(among)), replace=False)
    return drawn if isinstance(among, range) else among[drawn]


@SAMPLERS.register("examples")
def examples(
    parts: Partition, among: Clients, size: int, t: int, rng: np.random.Generator
) -> np.ndarray:
    """A client the likelier, the more examples it holds.

    The first ``size`` of a draw without replacement, by exponential clocks of those rates
    (Efraimidis and Spirakis, 2006).
    """
    ids, size = _array(among), min(size, len(among))
    clocks = rng.exponential(size=len(ids)) / parts.sizes.numpy()[ids]
    return ids[np.argpartition(clocks, size - 1)[:size]]


@SAMPLERS.register("cyclic")
def cyclic(
    parts: Partition,
    among: Clients,
    size: int,
    t: int,
    rng: np.random.Generator,
    *,
    groups: int = 4,
    rounds: int = 10,
) -> np.ndarray:
    """Clients in groups that are available in turn, each for some rounds, as time zones are.

    Client i is of group ``i % groups``; within the group that is awake all are as likely.
    """
    if groups < 1 or rounds < 1:
        raise InputError(f"cyclic takes positive counts; not groups={groups}, rounds={rounds}")
    if len(parts) // groups < size:
        raise InputError(
            f"a cohort of {size} cannot be drawn from the {len(parts) // groups} of {len(parts)} "
            f"clients that may be awake at once: lower groups={groups}, or the cohort"
        )
    ids = _array(among)
    awake = ids[ids % groups == t // rounds % groups]
    return rng.choice(awake, min(size, len(awake)), replace=False)


def _array(among: Clients) -> np.ndarray:
    return np.arange(len(among)) if isinstance(among, range) else among


Corruption = Literal["nan", "flip", "noise"]


@dataclass(frozen=True, kw_only=True)
class Faults:
    """What goes wrong, each with a probability of its own for every client and round.

    - ``dropout``: it receives the model and never answers.
    - ``straggling``: it gets through a ``share`` of its steps only.
    - ``corruption``: what it sends is not what it learnt: not a number, its opposite
      (``how="flip"``), or noise of the same length.
    """

    dropout: float = 0.0
    straggling: float = 0.0
    share: float = 0.5
    corruption: float = 0.0
    how: Corruption = "nan"

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name != "how" and not 0 <= value <= 1:
                raise InputError(f"{field.name} is between 0 and 1; not {value}")

    def of(self, seed: int, t: int, client: int) -> "Fate":
        """What befalls a client in round ``t``, whoever else takes part."""
        if not (self.dropout or self.straggling or self.corruption):
            return Fate(False, False, False)
        draws = random.generator("faults", seed, t, client).random(3)
        return Fate(*(draws < (self.dropout, self.straggling, self.corruption)).tolist())

    def steps(self, planned: int) -> int:
        """How far a straggler gets."""
        return max(1, round(self.share * planned))

    def corrupt(self, upload: Upload, key: Tensor) -> Upload:
        """What arrives of one client's delta in place of what was sent."""
        if self.how == "nan":
            return upload._replace(
                delta=tree.map(lambda d: torch.full_like(d, torch.nan), upload.delta)
            )
        if self.how == "flip":
            return upload._replace(delta=tree.map(torch.neg, upload.delta))
        names = dict(enumerate(upload.delta))
        noise = {
            name: random.normal(random.fold(key, i), upload.delta[name].shape).to(
                upload.delta[name]
            )
            for i, name in names.items()
        }
        scale = tree.norm(upload.delta) / tree.norm(noise)
        return upload._replace(delta=tree.map(lambda n: scale * n, noise))


class Fate(NamedTuple):
    """What befell a client in a round."""

    absent: bool
    late: bool
    corrupted: bool


NO_FAULTS = Faults()

FAULTS: Registry[Callable[..., Faults]] = Registry("faults")


@FAULTS.register("none")
def none() -> Faults:
    """Every client answers in time with what it learnt."""
    return NO_FAULTS


FAULTS.register("random")(Faults)
