"""The yardstick: the loop a good engineer writes with `nn.Module` and `torch.optim.SGD`.

Data lie on the device, batches are gathered by index, weights are averaged in place.  It sees the
same clients, the same batches and the same augmentation as gcfed does.
"""

import copy
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from gcfed import SGD, Setup
from gcfed.data import Dataset
from gcfed.random import key


def rounds(setup: Setup, module: nn.Module) -> Iterator[nn.Module]:
    """FedAvg; yields the global model each round."""
    device, data, transform = setup.device, setup.data, setup.transform
    model, local = module.to(device), copy.deepcopy(module).to(device)
    x, y, t = data.x, data.y, 0
    assert isinstance(x, Tensor)
    while True:
        total = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
        cohort = setup.sample(t)
        for client in cohort:
            local.load_state_dict(model.state_dict())
            local.train()
            optimizer = torch.optim.SGD(local.parameters(), setup.lr(t), **_settings(setup))
            for step, index in enumerate(setup.plan(t, client)):
                index = index.to(device)
                images = x[index]
                if transform is not None:
                    images = transform(images, key(0, t, client, step).to(device))  # type: ignore[assignment]
                optimizer.zero_grad(set_to_none=True)
                nn.functional.cross_entropy(local(images), y[index]).backward()
                optimizer.step()
            with torch.no_grad():
                for name, p in local.named_parameters():
                    total[name] += p / len(cohort)
        with torch.no_grad():
            for name, p in model.named_parameters():
                p.copy_(total[name])
        t += 1
        yield model


def _settings(setup: Setup) -> dict[str, float]:
    optimizer = setup.optimizer
    assert isinstance(optimizer, SGD)
    return {"momentum": optimizer.momentum, "weight_decay": optimizer.weight_decay}


def accuracy(model: nn.Module, dataset: Dataset, batch_size: int = 1000) -> float:
    """The share of test examples the model gets right."""
    (x, y), transform, right = dataset.test, dataset.transform, 0
    assert isinstance(x, Tensor)
    model.eval()
    with torch.no_grad():
        for start in range(0, len(y), batch_size):
            images = x[start : start + batch_size]
            if transform is not None:
                images = transform(images, None)  # type: ignore[assignment]
            right += (model(images).argmax(1) == y[start : start + batch_size]).sum().item()
    return right / len(y)
