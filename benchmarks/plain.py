"""The yardstick: the loop a good engineer writes with `nn.Module` and `torch.optim.SGD`.

Data lie on the device, batches are gathered by index, weights are averaged in place.  It sees the
same clients, the same batches and the same augmentation as gcfed does, drawn by torch's generator.
"""

import copy
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from gcfed import SGD, Setup
from gcfed.data import Dataset
from gcfed.data.augmentation import ImageTransform


def rounds(setup: Setup, module: nn.Module) -> Iterator[nn.Module]:
    """FedAvg; yields the global model each round."""
    device, data, transform = setup.device, setup.data, setup.transform
    model, local = module.to(device), copy.deepcopy(module).to(device)
    x, y, t = data.x, data.y, 0
    assert isinstance(x, Tensor)
    while True:
        total = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
        cohort = setup.population.sample(t)
        for client in cohort:
            local.load_state_dict(model.state_dict())
            local.train()
            optimizer = torch.optim.SGD(local.parameters(), setup.lr(t), **_settings(setup))
            for index in setup.population.plan(t, client):
                index = index.to(device)
                images = x[index]
                if isinstance(transform, ImageTransform):
                    images = transform(_augmented(images, transform), None)  # type: ignore[assignment]
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


def _augmented(images: Tensor, transform: ImageTransform) -> Tensor:
    n, _, height, width = images.shape
    if transform.padding:
        device, each = images.device, torch.arange(n, device=images.device)[:, None, None]
        top, left = torch.randint(2 * transform.padding + 1, (2, n, 1, 1), device=device)
        rows = top + torch.arange(height, device=device)[:, None]
        columns = left + torch.arange(width, device=device)
        padded = nn.functional.pad(images, 4 * (transform.padding,))
        images = padded[each, :, rows, columns].permute(0, 3, 1, 2)
    if transform.flip:
        mirrored = torch.rand(n, 1, 1, 1, device=images.device) < 0.5
        images = torch.where(mirrored, images.flip(3), images)
    return images


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
