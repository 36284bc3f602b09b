"""Who can be drawn at all in a round: availability that varies over time.

An availability says, of a number of clients and of a seed, who is there in round t.  It is a
function of these alone: whoever asks, in whatever order, and after a run was resumed, a client is
there in the same rounds.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from gcfed.core import keys
from gcfed.errors import InputError
from gcfed.population.traces import Stays, read_trace
from gcfed.registry import Registry

ClientIds = range | np.ndarray
"""Ids in ascending order; all n of them are ``range(n)``, which costs nothing to make."""

Availability = Callable[[int, int, int], ClientIds]
"""The clients that can be drawn: from how many there are, the round and the seed."""

KEPT = 8  # arrays of a number for each client, which several runs ask for in every round

AVAILABILITIES: Registry[Callable[..., Availability]] = Registry("availability")
"""Who can be drawn in a round, by name."""


@AVAILABILITIES.register("always")
@dataclass(frozen=True, kw_only=True)
class Always:
    """Every client in every round."""

    def __call__(self, num_clients: int, t: int, seed: int) -> ClientIds:
        return range(num_clients)


ALWAYS = Always()


@AVAILABILITIES.register("daily")
@dataclass(frozen=True, kw_only=True)
class Daily:
    """A client with a probability that goes up and down over a day, each in its own time zone.

    It is ``most`` at the best hour and ``least`` half a day later, along a cosine; a day is
    ``period`` rounds long, and where it begins is drawn for each client.
    """

    period: int = 24
    least: float = 0.1
    most: float = 0.9

    def __post_init__(self) -> None:
        if self.period < 1:
            raise InputError(f"daily takes a positive count of rounds; not period={self.period}")
        if not 0 <= self.least <= self.most <= 1:
            limits = f"least={self.least}, most={self.most}"
            raise InputError(f"daily takes 0 <= least <= most <= 1; not {limits}")

    def probability(self, num_clients: int, t: int, seed: int) -> np.ndarray:
        """How likely each client is there in round ``t``."""
        hour = t / self.period - _fixed(seed, num_clients)
        height: np.ndarray = (1 + np.cos(2 * np.pi * hour)) / 2
        return self.least + (self.most - self.least) * height

    def __call__(self, num_clients: int, t: int, seed: int) -> ClientIds:
        draws = _drawn(seed, t, (num_clients,))
        return np.flatnonzero(draws < self.probability(num_clients, t, seed))


@AVAILABILITIES.register("sessions")
@dataclass(frozen=True, kw_only=True)
class Sessions:
    """Clients that come and go, in stretches: on average ``on`` rounds there and ``off`` away.

    Once in every ``on + off`` rounds, counted from a start of its own, a client comes, at a time
    and for a length drawn anew.  (If ``on > off``, once in so many it goes.)  The length drawn is
    uniform from 1 to twice its mean, less one.
    """

    on: int = 10
    off: int = 30

    def __post_init__(self) -> None:
        if self.on < 1 or self.off < 1:
            raise InputError(f"sessions takes positive counts; not on={self.on}, off={self.off}")
        if self.on + self.off >= 2**53:  # beyond, a float misses whole numbers
            raise InputError(f"sessions last less than 2^53 rounds; not {self.on + self.off}")

    def __call__(self, num_clients: int, t: int, seed: int) -> ClientIds:
        cycle = self.on + self.off
        began = np.floor(cycle * _fixed(seed, num_clients)).astype(np.int64)
        number, at = np.divmod(t + began, cycle)
        stretches = (self.on, self.off, num_clients, seed)
        first, last = (_stretch(*stretches, number) for number in (t // cycle, t // cycle + 1))
        start, length = np.where(number == t // cycle, first, last)
        inside = (start <= at) & (at < start + length)
        return np.flatnonzero(inside if self.on <= self.off else ~inside)


@AVAILABILITIES.register("trace")
@dataclass(frozen=True, kw_only=True)
class Trace:
    """Who was there when, as recorded: a CSV file with columns client, from and to.

    A line says that a client is there from the round ``from`` on and before the round ``to``.  A
    client may have many lines; one without is never there, and nobody is after the last ``to``.
    If ``sha256`` is given the file must be that one: a run's config.toml gives it.
    """

    path: str
    sha256: str = ""
    _stays: Stays = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        path, sha256, stays = read_trace(self.path)
        if self.sha256 not in ("", sha256):
            raise InputError(
                f"{path} is not the trace it was: its SHA-256 is {sha256[:10]}... and should be "
                f"{self.sha256[:10]}...; put that back, or leave sha256 out for a new run"
            )
        for name, value in (("path", path), ("sha256", sha256), ("_stays", stays)):
            object.__setattr__(self, name, value)

    def __call__(self, num_clients: int, t: int, seed: int) -> ClientIds:
        stays = self._stays
        if (strange := np.flatnonzero(stays.client >= num_clients)).size:
            line, client = stays.line[strange[0]], stays.client[strange[0]]
            known = f"{num_clients} clients count from 0"
            raise InputError(f"{self.path}, line {line}: there is no client {client}; {known}")
        return np.unique(stays.client[(stays.start <= t) & (t < stays.stop)])


def settled(text: str) -> tuple[Availability, str]:
    """What ``text`` names, and a text that means the same wherever and whenever it is read."""
    found: Availability = AVAILABILITIES.parse(text)()
    if isinstance(found, Trace):
        text = f"trace(path={found.path!r}, sha256={found.sha256!r})"
    return found, AVAILABILITIES.canonical(text)


@lru_cache(maxsize=KEPT)
def _stretch(on: int, off: int, num_clients: int, seed: int, number: int) -> np.ndarray:
    """When each client's stretch in a cycle starts, and how many rounds it lasts.

    It starts after the cycle does, so that no two of them touch.
    """
    draws = _drawn(seed, number, (num_clients, 2)).T
    length = 1 + np.floor((2 * min(on, off) - 1) * draws[0])
    return _kept(np.stack([1 + np.floor((on + off - length) * draws[1]), length]))


@lru_cache(maxsize=KEPT)
def _fixed(seed: int, num_clients: int) -> np.ndarray:
    """A number on [0, 1) for each client, the same in all rounds."""
    return _kept(keys.generator("availability", seed, 0).random(num_clients))


def _kept(numbers: np.ndarray) -> np.ndarray:
    """Numbers that are given to many, and changed by none."""
    numbers.flags.writeable = False
    return numbers


def _drawn(seed: int, number: int, shape: tuple[int, ...]) -> np.ndarray:
    """Random numbers for a round or a cycle; a client's do not depend on how many there are.

    Numbers are counted from one here: numpy pads seeds with zeros, and zero is `_fixed`'s.
    """
    return keys.generator("availability", seed, 1 + number).random(shape)
