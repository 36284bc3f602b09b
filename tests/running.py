"""Tiny runs, and the command line called as a person would call it.

Test modules import its functions and name it in ``pytest_plugins`` for its fixtures, so pytest is
told to leave its assertions alone: PYTEST_DONT_REWRITE
"""

import json
import sys
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from gcfed import (
    ALGORITHMS,
    AVAILABILITIES,
    DATASETS,
    FAULTS,
    LOSSES,
    METRICS,
    MODELS,
    PARTITIONS,
    PROBES,
    SAMPLERS,
)
from gcfed.cli import main
from gcfed.config.settings import Config

REGISTRIES = (
    *(ALGORITHMS, AVAILABILITIES, DATASETS, FAULTS, LOSSES),
    *(METRICS, MODELS, PARTITIONS, PROBES, SAMPLERS),
)
TINY = {
    "algorithm": "fedavg",
    "dataset": "synthetic(train=200, test=50)",
    "model": "mlp(hidden=(8,))",
    "clients": 10,
    "cohort": 3,
    "rounds": 2,
    "epochs": 1,
    "batch_size": 10,
    "engine": "sequential",
}


def tiny(**changes):
    """A config that takes a moment to run."""
    values = {**TINY, **changes}
    return Config(**{key: value for key, value in values.items() if value is not None})


def flags(**changes):
    """The same for the command line."""
    values = {**TINY, **changes}
    return [f"--set={key}={value}" for key, value in values.items()]


def lines(run):
    return [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]


class Normed(nn.Module):
    """BatchNorm: 64 means, 64 variances and a counter of 8 bytes."""

    def __init__(self, shape, num_classes):
        super().__init__()
        self.norm, self.fc = nn.BatchNorm1d(64), nn.Linear(64, num_classes)

    def forward(self, x):
        return self.fc(self.norm(x.flatten(1)))


def far(shape, num_classes):
    """A model that overflows at once."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))
    nn.init.constant_(net[1].weight, 3e38)
    return net


class Answer(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def gcfed(monkeypatch, capsys, tmp_path):
    """Call the command line in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["gcfed", *map(str, words)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
        return Answer(end.value.code or 0, *capsys.readouterr())

    return call


@pytest.fixture
def registries(monkeypatch):
    """What a test registers is forgotten after it."""
    for registry in REGISTRIES:
        monkeypatch.setattr(registry, "_entries", dict(registry._entries))


@pytest.fixture
def float32(exact):
    """As outside of the tests, where models and data are of single precision."""
    torch.set_default_dtype(torch.float32)
    yield
    torch.set_default_dtype(torch.float64)


@pytest.fixture
def numbers_file(tmp_path):
    """The name of a data set of numbers that lie on a line, but for some noise."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(150, 4)).astype(np.float32)
    y = (x @ [1.0, -2.0, 0.5, 3.0] + 5 + 0.1 * rng.normal(size=150)).astype(np.float32)
    path = tmp_path / "numbers.npz"
    np.savez(path, x_train=x[:120], y_train=y[:120], x_test=x[120:], y_test=y[120:])
    return f"npz(path={str(path)!r})"
