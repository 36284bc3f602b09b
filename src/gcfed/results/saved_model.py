"""The model that a run ended with: made again from what its file says, and shown raw examples."""

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from gcfed.config.materials import Shape, load_weights, make_module, read_dataset
from gcfed.config.plugins import load_plugins
from gcfed.config.settings import Config
from gcfed.core import keys, tree
from gcfed.core.calling import called
from gcfed.core.seeding import generators_seeded
from gcfed.core.types import Inputs, Transform
from gcfed.data.augmentation import ImageTransform
from gcfed.errors import InputError
from gcfed.results import directory
from gcfed.results.fields import fields_of

BATCH = 1000  # examples that a loaded model is shown at once
LARGEST_PIXEL = 20.0  # of float images, with room for those that were normalised


@dataclass(frozen=True)
class SavedModel:
    """What the run at ``path`` wrote of its model: ``about`` it, in the file of its weights."""

    path: Path
    config: Config
    about: dict[str, Any]

    def module(self, weights: Path) -> nn.Module:
        """The module with the weights of a file, on the host and in evaluation mode."""
        load_plugins(self.config.plugins)
        shape, dtype = _tuples(self.about["shape"]), getattr(torch, self.about["dtype"])
        module = make_module(self.about["model"], shape, num_outputs(self.about), dtype=dtype)
        load_weights(module, weights)
        return module.eval()

    def logits(self, module: nn.Module, x: Any) -> Tensor:
        """What the module says of raw examples, arrays or tensors as its data set has them."""
        whole = _tensors(x)
        sizes = [len(part) for _, part in tree.leaves(whole)]
        parts = [tree.take(whole, slice(i, i + BATCH)) for i in range(0, max(*sizes, 1), BATCH)]
        if isinstance(whole, Tensor):
            self._warn_of_scale(whole)
        try:
            # one that draws in evaluation mode draws the same every time
            with torch.no_grad(), generators_seeded(keys.key(0)):
                return torch.cat([called(module, self._read(part)).logits for part in parts])
        except (RuntimeError, ValueError, IndexError) as error:
            took, wanted = tree.map(lambda v: list(v.shape), whole), _with_n(self.about["shape"])
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise InputError(
                f"the model of {self.path} takes examples of shape {wanted}; not {took}: {reason}"
            ) from error

    def _warn_of_scale(self, x: Tensor) -> None:
        """Warn of float images that look like bytes, where floats to 1 belong."""
        is_image = isinstance(self._transform, ImageTransform) and x.is_floating_point()
        if is_image and x.numel() and x.max() > LARGEST_PIXEL:
            warnings.warn(
                f"these images are floats up to {x.max():g}, and the model of {self.path} takes "
                "bytes up to 255 or floats up to 1: divide by 255, or give bytes",
                stacklevel=5,
            )

    def _read(self, x: Inputs) -> Inputs:
        return x if self._transform is None else self._transform(x, None)

    @cached_property
    def _transform(self) -> Transform | None:
        match self.about["transform"]:
            case {"mean": mean, "std": std}:
                return ImageTransform(tuple(mean), tuple(std))
            case directory.OF_DATASET:
                load_plugins(self.config.plugins)
                return read_dataset(self.config.dataset, self.config.data_dir).transform
            case _:
                return None


def _tensors(x: Any) -> Inputs:
    if isinstance(x, Mapping):
        return {name: torch.as_tensor(part) for name, part in x.items()}
    return torch.as_tensor(x)


def _tuples(shape: Any) -> Shape:
    """The shape of an example as JSON has it, made of tuples again."""
    return {n: tuple(s) for n, s in shape.items()} if isinstance(shape, dict) else tuple(shape)


def _with_n(shape: Any) -> Any:
    """The shape of an example as that of several."""
    return {n: ["n", *s] for n, s in shape.items()} if isinstance(shape, dict) else ["n", *shape]


def read_about(path: Path) -> dict[str, Any]:
    """What a file of weights says of its model."""
    try:
        with safe_open(path, "pt") as file:
            return fields_of(json.loads(file.metadata()[directory.ABOUT]), str(path), {})
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is not what a run writes: {error}") from None


def num_outputs(about: Mapping[str, Any]) -> int:
    """How many numbers a model says of an example: as many as there are classes, if there are."""
    return int(about.get("num_outputs", about["num_classes"]))
