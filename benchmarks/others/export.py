"""Write a workload where tools that know nothing of gcfed can read it."""

import json
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import torch

from benchmarks.others.common import Settings
from benchmarks.workloads import CIFAR_STATISTICS, Workload, load
from gcfed import predict, start
from gcfed.data import Dataset
from gcfed.data.augmentation import ImageTransform

ROUNDS = 2000  # whose cohorts are written


def dataset(workload: Workload, folder: Path | None) -> Dataset:
    """The data of a workload; noise comes without augmentation."""
    data = load(workload.dataset, folder)
    if workload.dataset == "noise":
        return replace(data, transform=ImageTransform(*CIFAR_STATISTICS))
    return data


def export(workload: Workload, data: Dataset, folder: Path) -> None:
    """Data as models read them, the partition, the cohorts and the initial weights."""
    folder.mkdir(parents=True, exist_ok=True)
    setup = workload.setup("fedavg", data, "sequential", "float32")
    for name, (x, y) in {"train": data.train, "test": data.test}.items():
        images = x if data.transform is None else data.transform(x, None)
        assert isinstance(images, torch.Tensor)
        np.save(folder / f"{name}_x.npy", images.numpy())
        np.save(folder / f"{name}_y.npy", y.numpy())
    parts = [setup.data.parts[i] for i in range(workload.clients)]
    rows = [filled(part.numpy(), workload.batch_size) for part in parts]
    np.save(folder / "rows.npy", np.concatenate(rows))
    np.save(folder / "ends.npy", np.cumsum([len(own) for own in rows]))
    np.save(folder / "cohorts.npy", np.array([setup.population.sample(t) for t in range(ROUNDS)]))
    np.savez(folder / "weights.npz", **{n: p.numpy() for n, p in setup.model.params.items()})
    few = data.test.take(torch.arange(8))
    np.save(folder / "logits.npy", predict(setup, start(setup).server, few.x).logits.numpy())
    settings = {f.name: getattr(workload, f.name) for f in fields(Settings)}
    (folder / "settings.json").write_text(json.dumps(settings))


def filled(own: np.ndarray, batch_size: int) -> np.ndarray:
    """A client's examples, the first of them again until the last batch is full."""
    return own[np.arange(-(-len(own) // batch_size) * batch_size) % len(own)]
