"""What every runner shares: the exported workload, its network, and turns over stdin and stdout.

It needs numpy and torch alone, for it also runs in the environments of the other tools.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

MARK = "@"  # begins the lines that are answers; tools print lines of their own


@dataclass(frozen=True)
class Settings:
    """What a tool is told of a workload beside its data."""

    model: str
    clients: int
    cohort: int
    batch_size: int
    epochs: int
    lr: float
    momentum: float
    weight_decay: float
    evaluate_every: int

    @property
    def sgd(self) -> dict[str, float]:
        """Settings of `torch.optim.SGD` beside the learning rate."""
        return {"momentum": self.momentum, "weight_decay": self.weight_decay}


class Export:
    """A folder that `export` wrote: normalised float32 images, and who trains on which and when.

    A client's examples are repeated until its last batch is full, as gcfed's plans do, so that
    everyone trains on the same number of samples in the same number of steps.
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)
        self.settings = Settings(**json.loads((self._folder / "settings.json").read_text()))
        self.cohorts = np.load(self._folder / "cohorts.npy").tolist()

    @cached_property
    def train(self) -> tuple[Tensor, Tensor]:
        return self._tensor("train_x"), self._tensor("train_y")

    @cached_property
    def test(self) -> tuple[Tensor, Tensor]:
        return self._tensor("test_x"), self._tensor("test_y")

    @cached_property
    def rows(self) -> list[Tensor]:
        """The examples of each client."""
        ends = np.load(self._folder / "ends.npy")
        return list(self._tensor("rows").tensor_split(torch.from_numpy(ends[:-1])))

    def module(self) -> nn.Module:
        """The network with gcfed's initial weights; that it is the same function is checked."""
        net = NETWORKS[self.settings.model]()
        with np.load(self._folder / "weights.npz") as weights:
            for p, value in zip(net.parameters(), weights.values(), strict=True):
                p.data.copy_(torch.from_numpy(value))
        logits = self._tensor("logits")
        with torch.no_grad():
            torch.testing.assert_close(net.eval()(self.test[0][: len(logits)]), logits)
        return net

    def accuracy(self, net: nn.Module, batch_size: int = 1000) -> float:
        """The share of test examples that ``net`` gets right."""
        x, y = self.test
        net.eval()
        with torch.no_grad():
            parts = zip(x.split(batch_size), y.split(batch_size), strict=True)
            return sum((net(a).argmax(1) == b).sum().item() for a, b in parts) / len(y)

    def _tensor(self, name: str) -> Tensor:
        """From the file's own pages, which processes share."""
        return torch.from_numpy(np.load(self._folder / f"{name}.npy", mmap_mode="c"))


def mlp() -> nn.Module:
    layers = [nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10)]
    return nn.Sequential(nn.Flatten(), *layers)


def pfl_net() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU()),
        *(nn.MaxPool2d(2), nn.Dropout(0.25), nn.Flatten()),
        *(nn.Linear(12544, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10)),
    )


NETWORKS = {"mlp": mlp, "pfl": pfl_net}


def turns(*packages: str) -> Iterator[int]:
    """Say that all is loaded, then yield how many rounds each turn asks for, until stdin ends."""
    _say(versions={name: version(name) for name in ("torch", *packages)})
    for line in sys.stdin:
        yield int(line)


def answer(accuracy: float) -> None:
    """A turn's rounds are done; the accuracy is that of the last evaluation."""
    _say(accuracy=accuracy)


def _say(**values: object) -> None:
    print(MARK + json.dumps(values), flush=True)
