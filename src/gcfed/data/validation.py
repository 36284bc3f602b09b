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

    Where examples belong to clients, it is the same share of each client's.  Classes, or clients,
    are rounded to the nearest whole example, and none is taken whole.
    """
    groups = _groups(dataset)
    held = np.zeros(len(groups), bool)
    for group in np.unique(groups):
        members = rng.permutation(np.flatnonzero(groups == group))
        held[members[: min(round(share * len(members)), len(members) - 1)]] = True
    if not held.any():
        raise InputError(f"validation={share} of {len(groups)} train examples leaves none to hold")
    kept, out = (torch.from_numpy(np.flatnonzero(mask)) for mask in (~held, held))
    keys = {name: key[~held] for name, key in dataset.keys.items()}
    return replace(dataset, train=dataset.train.take(kept), keys=keys), dataset.train.take(out)


def _groups(dataset: Dataset) -> np.ndarray:
    """The group of each train example: its client's if it has one, else its class's, else all."""
    pool = dataset.pool
    if "client" in pool.keys:
        return np.unique(pool.keys["client"], return_inverse=True)[1]
    return np.zeros(pool.size, np.int64) if pool.labels is None else pool.labels
