"""The weights of a run in a file, with what it takes to make their model again and to feed it."""

import errno
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_model
from torch import nn

from gcfed.config.build import Experiment
from gcfed.core import tree
from gcfed.data.augmentation import ImageTransform
from gcfed.results.directory import ABOUT, OF_DATASET


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
        "dtype": str(next(iter(setup.model.params.values())).dtype).removeprefix("torch."),
        "transform": transform,
    }
