"""The weights of a run in a file, with what it takes to make their model again and to feed it."""

import errno
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_model
from torch import nn

from gcfed.config.experiment import Experiment
from gcfed.config.materials import keep_buffers, weights_dtype
from gcfed.core import tree
from gcfed.core.server import Server
from gcfed.data.augmentation import ImageTransform
from gcfed.results.directory import ABOUT, OF_DATASET
from gcfed.simulation.setup import Setup


def module_of(setup: Setup, server: Server) -> nn.Module:
    """The module with the server's weights, whose state holds all that training changed."""
    module = setup.model.module(server.params, server.buffers)
    now, before = dict(module.named_buffers()), setup.model.buffers
    keep_buffers(module, [n for n, b in before.items() if not torch.equal(now[n], b.to(now[n]))])
    return module


def save_module(path: Path, module: nn.Module, about: Mapping[str, Any]) -> None:
    """Write weights, and what it takes to make their model again."""
    metadata = {ABOUT: json.dumps(about)}  # one entry: safetensors writes several in any order
    try:
        save_model(module, str(path), metadata)
    except SafetensorError as error:
        raise OSError(errno.EIO, str(error), str(path)) from error


def about_model(experiment: Experiment) -> dict[str, Any]:
    """What it takes to make the model again, and to feed it, kept with its weights."""
    setup = experiment.setup
    transform: Any = setup.transform
    if isinstance(transform, ImageTransform):
        transform = asdict(transform)
    elif transform is not None:
        transform = OF_DATASET
    return {
        "model": experiment.config.model,
        "shape": tree.map(lambda v: list(v.shape[1:]), setup.data.x),
        "num_classes": setup.data.num_classes,
        **({} if setup.data.num_classes else {"num_outputs": experiment.dataset.num_outputs}),
        "dtype": str(weights_dtype(setup.data.x)).removeprefix("torch."),
        "transform": transform,
    }
