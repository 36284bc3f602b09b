"""Tests of deployments, which need Flower: `make flower` has an environment for them."""

import warnings
from importlib import import_module
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from gcfed import Dataset, Examples

collect_ignore_glob = [] if find_spec("flwr") else ["*"]

if find_spec("flwr"):
    with warnings.catch_warnings():  # what it imports is deprecated here and there
        warnings.simplefilter("ignore")
        for module in ("flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.simulation"):
            import_module(module)

NUM_CLIENTS = 4


@pytest.fixture(scope="session")
def whole():
    """Forty small images of three classes, which four clients hold; client 2 lacks a class."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 1, 4, 4, generator=generator, dtype=torch.float32)
    y = torch.randint(0, 3, (60,), generator=generator)
    owner = np.repeat(np.arange(NUM_CLIENTS), [7, 15, 8, 10])
    y[22:30] %= 2
    return Dataset(
        train=Examples(x[:40], y[:40]),
        test=Examples(x[40:], y[40:]),
        num_classes=3,
        keys={"client": owner},
    )


@pytest.fixture(scope="session")
def load(whole):
    """What each process holds of it."""

    def give(client):
        if client is None:
            return whole
        mine = torch.from_numpy(whole.keys["client"] == client)
        train = Examples(whole.train.x[mine], whole.train.y[mine])
        return Dataset(train=train, test=whole.test, num_classes=3)

    return give
