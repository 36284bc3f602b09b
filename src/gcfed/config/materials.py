"""What a run is made of: the module, its weights and the data set, as a config names them."""

from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from gcfed.core import keys
from gcfed.data import DATASETS, Dataset, data_dir
from gcfed.errors import InputError, made
from gcfed.models import MODELS

T = TypeVar("T")


def load_weights(module: nn.Module, path: Path) -> None:
    """Put the weights of a safetensors file into a module of the same names and shapes."""
    try:
        weights = load_file(path)
    except FileNotFoundError:
        raise InputError(f"there is no file of weights {path}") from None
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path} is not a safetensors file: {error}") from None
    own = module.state_dict()
    filled = {own[name].data_ptr() for name in weights.keys() & own.keys()}  # tied ones are one
    wrong = [
        f"it lacks {n}" for n in own.keys() - weights.keys() if own[n].data_ptr() not in filled
    ]
    wrong += [f"the model has no {name}" for name in weights.keys() - own.keys()]
    wrong += [
        f"{name} is {list(weights[name].shape)} and should be {list(own[name].shape)}"
        for name in weights.keys() & own.keys()
        if weights[name].shape != own[name].shape
    ]
    if wrong:
        more = f", and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        listed = ", ".join(sorted(wrong)[:3])
        raise InputError(f"the weights in {path} do not fit the model: {listed}{more}")
    module.load_state_dict(weights, strict=False)


def make_module(
    text: str, shape: Any, num_classes: int, *, dtype: torch.dtype, seed: int = 0
) -> nn.Module:
    """The model that ``text`` names, its weights drawn by a seed whatever torch's defaults are."""
    make, default = MODELS.parse(text), torch.get_default_dtype()
    try:
        torch.set_default_dtype(dtype)
        with keys.seeded("weights", seed):
            what = f"model {text}"
            return _of_type(nn.Module, what, made(what, lambda: make(shape, num_classes)))
    finally:
        torch.set_default_dtype(default)


def module_for(text: str, dataset: Dataset, *, seed: int = 0) -> nn.Module:
    """The model that ``text`` names, made to read the examples of a data set."""
    x = dataset.train.x
    if isinstance(x, dict):
        raise InputError(f"model {text} reads one tensor; this data set has several")
    shape, dtype = tuple(x.shape[1:]), x.dtype if x.is_floating_point() else torch.float32
    return make_module(text, shape, dataset.num_outputs, dtype=dtype, seed=seed)


def read_dataset(text: str, folder: str | Path | None) -> Dataset:
    """The data set that ``text`` names."""
    root = data_dir(None if folder is None else Path(folder))
    make, what = DATASETS.parse(text), f"dataset {text}"
    return _of_type(Dataset, what, made(what, lambda: make(root)))


def _of_type(wanted: type[T], what: str, value: Any) -> T:
    if not isinstance(value, wanted):
        raise InputError(f"{what} gave a {type(value).__name__}, where a {wanted.__name__} belongs")
    return value
