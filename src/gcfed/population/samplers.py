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
    return _drawn(among, size, rng)


@SAMPLERS.register("examples")
def examples(
    parts: Partition, among: ClientIds, size: int, t: int, rng: np.random.Generator
) -> np.ndarray:
    """A client the likelier, the more examples it holds.

    The first ``size`` of a draw without replacement, by exponential clocks of those rates
    (Efraimidis and Spirakis, 2006).
    """
    size, held = min(size, len(among)), parts.sizes.numpy()
    clocks = rng.exponential(size=len(among))
    clocks /= held if isinstance(among, range) else held[among]
    first: np.ndarray = np.argpartition(clocks, size - 1)[:size]
    return first if isinstance(among, range) else among[first]


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
    group = t // rounds % groups
    if isinstance(among, range):
        return _drawn(among[group::groups], size, rng)
    return _drawn(among[among % groups == group], size, rng)


def _drawn(among: ClientIds, size: int, rng: np.random.Generator) -> np.ndarray:
    """So many clients, each as likely as any other; of a range no list is made."""
    drawn = rng.choice(len(among), min(size, len(among)), replace=False)
    if isinstance(among, range):
        return among.start + among.step * drawn
    return among[drawn]
