"""Who takes part in a round, drawn by a seed."""

from collections.abc import Callable

import numpy as np

from gcfed.data.partitions.partition import Partition
from gcfed.errors import InputError
from gcfed.population.availability import ClientIds
from gcfed.registry import Registry

Sampler = Callable[[Partition, ClientIds, int, int, np.random.Generator], np.ndarray]
"""The clients of a round, without replacement: from who holds what, who is available (somebody is),
how many are wanted and the round.  Where fewer are available than wanted, it takes them all.
"""

SAMPLERS: Registry[Callable[..., np.ndarray]] = Registry("sampler")
"""Who takes part in a round, by name."""


@SAMPLERS.register("uniform")
def uniform(
    parts: Partition, among: ClientIds, size: int, t: int, rng: np.random.Generator
) -> np.ndarray:
    """Every client as likely as any other."""
    drawn = rng.choice(len(among), min(size, len(among)), replace=False)
    return drawn if isinstance(among, range) else among[drawn]


@SAMPLERS.register("examples")
def examples(
    parts: Partition, among: ClientIds, size: int, t: int, rng: np.random.Generator
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
    among: ClientIds,
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


def _array(among: ClientIds) -> np.ndarray:
    return np.arange(len(among)) if isinstance(among, range) else among
