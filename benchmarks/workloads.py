"""What is measured: a model, data of a shape, a cohort and its local work."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from gcfed import SGD, FederatedData, InputError, Model, Partition, Schedule, Setup, parse
from gcfed.core.keys import generator
from gcfed.data import DATASETS, PARTITIONS, Dataset, Examples, data_dir
from gcfed.data.augmentation import ImageTransform
from gcfed.models import MODELS

CIFAR_STATISTICS = ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))


@dataclass(frozen=True)
class Workload:
    """One line of a table."""

    name: str
    model: str
    dataset: str
    clients: int
    cohort: int
    batch_size: int
    epochs: int
    partition: str = "iid"
    lr: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 1e-5
    evaluate_every: int = 1

    def module(self, dataset: Dataset) -> nn.Module:
        """The model, from the same weights every time."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            if self.model == "pfl":
                return PflNet()
            assert isinstance(dataset.train.x, Tensor)
            return MODELS.parse(self.model)(tuple(dataset.train.x.shape[1:]), dataset.num_classes)

    def parts(self, dataset: Dataset) -> Partition:
        divide = PARTITIONS.parse(self.partition)
        return divide(dataset.pool, self.clients, generator("partition", 0))

    def setup(
        self, algorithm: str, dataset: Dataset, engine: str, precision: str, seed: int = 0
    ) -> Setup:
        """The workload as gcfed runs it, on the device of its data."""
        device = dataset.train.y.device
        return Setup(
            algorithm=parse(algorithm),
            model=Model(self.module(dataset)).to(device),
            data=FederatedData(*dataset.train, self.parts(dataset), dataset.num_classes),
            optimizer=SGD(self.lr, self.momentum, self.weight_decay),
            schedule=Schedule(
                rounds=10**9,
                cohort_size=self.cohort,
                epochs=self.epochs,
                batch_size=self.batch_size,
                seed=seed,
            ),
            engine=engine,
            precision=precision,  # type: ignore[arg-type]
            transform=dataset.transform,
        )


class PflNet(nn.Module):
    """The network of pfl-research's CIFAR-10 benchmark: no padding, Xavier-uniform weights."""

    head = "fc2"

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 32, 3), nn.Conv2d(32, 64, 3)
        self.drop1, self.drop2 = nn.Dropout(0.25), nn.Dropout(0.5)
        self.fc1, self.fc2 = nn.Linear(12544, 128), nn.Linear(128, 10)
        for layer in (self.conv1, self.conv2, self.fc1, self.fc2):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.conv2(torch.relu(self.conv1(x))))
        x = self.drop1(nn.functional.max_pool2d(x, 2)).flatten(1)
        logits: Tensor = self.fc2(self.drop2(torch.relu(self.fc1(x))))
        return logits


def load(name: str, folder: Path | None = None) -> Dataset:
    """A data set by name; ``noise`` has CIFAR's shapes and no meaning, for timing alone."""
    if name != "noise":
        found = DATASETS.parse(name)(data_dir(folder))
        if not isinstance(found, Dataset):
            raise InputError(f"{name} is no data set")
        return found
    rng = np.random.default_rng(0)

    def draw(count: int) -> Examples:
        x = rng.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)
        return Examples(torch.from_numpy(x), torch.from_numpy(rng.integers(0, 10, count)))

    transform = ImageTransform(*CIFAR_STATISTICS, padding=4, flip=True)
    return Dataset(train=draw(50_000), test=draw(10_000), num_classes=10, transform=transform)


def grid(models: list[str], cohorts: list[int], dataset: str) -> list[Workload]:
    """The paper's protocol over models and cohorts: 100 clients, 5 epochs, batches of 50."""
    return [
        Workload(f"{model}, {cohort} of 100", model, dataset, 100, cohort, 50, 5)
        for model in models
        for cohort in cohorts
    ]


PUBLISHED = {
    "fashion": Workload(
        "Fashion-MNIST 10k, MLP, 5 of 100",
        "mlp",
        "fashion10k",
        clients=100,
        cohort=5,
        batch_size=50,
        epochs=5,
        partition="dirichlet(alpha=0.1)",
    ),
    "paper": Workload(
        "CIFAR-10, the paper's CNN, 5 of 100, Dirichlet(0.1)",
        "cnn",
        "cifar10",
        clients=100,
        cohort=5,
        batch_size=50,
        epochs=5,
        partition="dirichlet(alpha=0.1)",
    ),
    "pfl": Workload(
        "pfl-CIFAR10: IID, 50 of 1000 clients, batch 10, 1 epoch",
        "pfl",
        "cifar10(augment=False)",
        clients=1000,
        cohort=50,
        batch_size=10,
        epochs=1,
        lr=0.1,
        momentum=0.0,
        weight_decay=0.0,
        evaluate_every=10,
    ),
}
