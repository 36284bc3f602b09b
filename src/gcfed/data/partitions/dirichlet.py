"""How many examples of each class a client gets where proportions are drawn from Dir(alpha)."""

from collections.abc import Iterator, Sequence

import numpy as np

from gcfed.data.partitions.partition import stable_sort

Shares = Iterator[tuple[np.ndarray, np.ndarray]]
"""For one class after another: clients, and how many of its examples each is dealt."""

BLOCK = 1 << 20
"""How many weights (clients times classes) are held at once where clients draw mixtures."""


def by_class(
    members: Sequence[np.ndarray],
    num_clients: int,
    alpha: float,
    cap: float,
    rng: np.random.Generator,
) -> Shares:
    """Shares of each class over the clients that hold less than ``cap`` by then."""
    held = np.zeros(num_clients, np.int64)
    for examples in members:
        # Dir(alpha) with some parts left out and the rest scaled up is Dir(alpha) over the rest.
        # In an order of its own for each class, or rounding would favour the same clients in all.
        clients = rng.permutation(np.flatnonzero(held < cap).astype(np.int32))
        logs = np.log(rng.standard_gamma(alpha + 1, len(clients)))
        counts = in_proportion(
            _weights(logs, rng.standard_exponential(len(clients)), alpha), len(examples)
        )
        held[clients] += counts
        yield clients, counts


def by_mixture(
    supply: np.ndarray, num_clients: int, alpha: float, rng: np.random.Generator
) -> Shares:
    """Shares where each client asks for its mixture; what is short goes to earlier clients."""
    prior, left = supply / supply.sum(), supply.copy()
    sizes = even(int(supply.sum()), num_clients)
    entries: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    rows = max(1, BLOCK // len(supply))
    for first in range(0, num_clients, rows):
        need = sizes[first : first + rows]
        granted = _granted(need, left, prior, alpha, rng)
        clients, labels = np.nonzero(granted)
        counts = granted[clients, labels].astype(np.int32)
        entries.append(((clients + first).astype(np.int32), labels.astype(np.int32), counts))
    clients, labels, counts = map(np.concatenate, zip(*entries, strict=True))
    ordered, order = stable_sort(labels)
    for label in range(len(supply)):
        of_label = order[slice(*np.searchsorted(ordered, [label, label + 1]))]
        yield clients[of_label], counts[of_label]


def _granted(
    need: np.ndarray, left: np.ndarray, prior: np.ndarray, alpha: float, rng: np.random.Generator
) -> np.ndarray:
    """How many of each class (columns) some clients (rows) get; takes them from ``left``."""
    shape = len(need), len(left)
    logs = np.log(rng.standard_gamma(alpha * prior + 1, shape))
    spread = rng.standard_exponential(shape) / prior
    granted, need = np.zeros(shape, np.int64), need.copy()
    # A turn either meets every need or uses up a class, so there are no more turns than classes.
    while need.any():
        cell = np.ix_(np.flatnonzero(need), np.flatnonzero(left))
        weights = _weights(logs[cell], spread[cell], alpha)
        asked = in_proportion(weights, need[cell[0]], rng.random(cell[0].shape))
        got = np.clip(left[cell[1]] - (asked.cumsum(0) - asked), 0, asked)
        granted[cell] += got
        need[cell[0][:, 0]] -= got.sum(1)
        left[cell[1][0]] -= got.sum(0)
    return granted


def _weights(logs: np.ndarray, spread: np.ndarray, alpha: float) -> np.ndarray:
    """Gamma(a) weights along the last axis, up to a common factor, with a = alpha * prior.

    A Gamma(a) variable is one of Gamma(a + 1) times U^(1/a); ``logs`` is the logarithm of the first
    and ``spread`` is -log(U) / prior.  For a small alpha all would underflow to 0, and their
    proportions be 0/0: so the largest is scaled to 1 while they are still logarithms.
    """
    with np.errstate(over="ignore"):  # exp(-inf) = 0 is the right weight
        logs = logs + (spread.min(-1, keepdims=True) - spread) / alpha
    weights: np.ndarray = np.exp(logs - logs.max(-1, keepdims=True))
    return weights


def in_proportion(
    weights: np.ndarray, total: int | np.ndarray, offset: float | np.ndarray = 0.0
) -> np.ndarray:
    """Counts along the last axis, in proportion to weights, that sum to ``total``."""
    ends = weights.cumsum(-1)
    ends = np.floor(ends / ends[..., -1:] * total + offset).astype(np.int64)
    return np.diff(np.minimum(ends, total), axis=-1, prepend=0)


def even(total: int, num_parts: int) -> np.ndarray:
    """Sizes of parts of ``total`` that differ by one at most."""
    return np.diff(np.arange(num_parts + 1) * total // num_parts)
