"""Weights from torchvision, whose parameter names `vgg11` and `resnet18` share."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from gcfed.errors import InputError

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")  # BatchNorm's, not GroupNorm's


class LoadReport(NamedTuple):
    """The tensors that were loaded, and those that were not: of another shape, or on one side."""

    loaded: tuple[str, ...]
    skipped: tuple[str, ...]


def load_torchvision(module: nn.Module, state_dict: Mapping[str, Tensor]) -> LoadReport:
    """Load into ``module``, in place, what fits by name and shape, and name what does not.

    BatchNorm's running statistics are dropped: GroupNorm has none.
    """
    ours = module.state_dict()
    theirs = {n: v for n, v in state_dict.items() if n.rpartition(".")[2] not in STATISTICS}
    loaded = tuple(n for n, v in theirs.items() if n in ours and v.shape == ours[n].shape)
    if not loaded:
        raise InputError(f"nothing in this state dict fits {type(module).__name__}")
    with torch.no_grad():
        for name in loaded:
            ours[name].copy_(theirs[name])
    return LoadReport(loaded, tuple(n for n in {**ours, **theirs} if n not in loaded))
