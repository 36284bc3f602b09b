"""Train examples set aside for tuning, so that nobody selects on the test set."""

from dataclasses import replace

import numpy as np
import torch

from gcfed.core.types import Examples
from gcfed.data.datasets.dataset import Dataset
from gcfed.errors import InputError


def split_validation(
    dataset: Dataset, share: float, rng: np.random.Generator
) -> tuple[Dataset, Examples]:
    """The data set without ``share`` of its train examples, and those; the same share of a class.

    Where examples belong to clients, it is the same share of each client's.  Of a class, or of all
    clients so far, it is the nearest whole number of examples; none is taken whole.
    """
    pool = dataset.pool
    by_client = "client" in pool.keys
    if by_client:
        groups = np.unique(pool.keys["client"], return_inverse=True)[1]
    else:
        groups = np.zeros(pool.size, np.int64) if pool.labels is None else pool.labels
    held = _held(groups, share, rng, carry=by_client)
    if not held.any():
        raise InputError(f"validation={share} of {len(groups)} train examples leaves none to hold")
    kept, out = (torch.from_numpy(np.flatnonzero(mask)) for mask in (~held, held))
    keys = {name: key[~held] for name, key in dataset.keys.items()}
    return replace(dataset, train=dataset.train.take(kept), keys=keys), dataset.train.take(out)


def _held(groups: np.ndarray, share: float, rng: np.random.Generator, *, carry: bool) -> np.ndarray:
    """Which examples are held out, group by group; what rounding leaves is carried on, or not."""
    held = np.zeros(len(groups), bool)
    order = np.argsort(groups, kind="stable")
    sizes = np.unique(groups, return_counts=True)[1]
    ends = np.cumsum(sizes)
    for size, end in zip(sizes.tolist(), ends.tolist(), strict=True):
        members = rng.permutation(order[end - size : end])
        wanted = round(share * end) - round(share * (end - size)) if carry else round(share * size)
        held[members[: min(wanted, size - 1)]] = True
    return held
