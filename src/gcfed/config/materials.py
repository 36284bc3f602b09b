"""What a run is made of, as a config names it: module, weights, data set, who holds what."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from gcfed.config.settings import Config
from gcfed.core import keys, tree
from gcfed.core.types import Examples, Stored
from gcfed.data import DATASETS, PARTITIONS, Dataset, Partition, data_dir, split_validation
from gcfed.data.partitions.ways import divide
from gcfed.errors import InputError, made
from gcfed.models import MODELS

T = TypeVar("T")

Shape = tuple[int, ...] | dict[str, tuple[int, ...]]
"""The shape of an example: of its tensor, or of each of several by name."""


def load_weights(module: nn.Module, path: Path) -> None:
    """Put the weights of a safetensors file into a module of the same names and shapes."""
    try:
        weights = load_file(path)
    except FileNotFoundError:
        raise InputError(f"there is no file of weights {path}") from None
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path} is not a safetensors file: {error}") from None
    keep_buffers(module, dict(module.named_buffers()).keys() & weights.keys())
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


def keep_buffers(module: nn.Module, names: Iterable[str]) -> None:
    """Have the module's state hold these buffers, those with ``persistent=False`` too."""
    for name in names:
        path, _, leaf = name.rpartition(".")
        part = module.get_submodule(path)
        part.register_buffer(leaf, part.get_buffer(leaf))


def make_module(
    text: str, shape: Shape, num_classes: int, *, dtype: torch.dtype, seed: int = 0
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
    shape, dtype = example_shape(dataset.train.x), weights_dtype(dataset.train.x)
    return make_module(text, shape, dataset.num_outputs, dtype=dtype, seed=seed)


def example_shape(x: Stored) -> Shape:
    """The shape of one of the examples ``x``."""
    if isinstance(x, dict):
        return {name: tuple(part.shape[1:]) for name, part in x.items()}
    return tuple(x.shape[1:])


def weights_dtype(x: Stored) -> torch.dtype:
    """The dtype of a model that reads ``x``: that of its real numbers, or float32."""
    return next(
        (part.dtype for _, part in tree.leaves(x) if part.is_floating_point()), torch.float32
    )


def read_dataset(text: str, folder: str | Path | None) -> Dataset:
    """The data set that ``text`` names."""
    root = data_dir(None if folder is None else Path(folder))
    make, what = DATASETS.parse(text), f"dataset {text}"
    return _of_type(Dataset, what, made(what, lambda: make(root)))


class DividedData(NamedTuple):
    """A data set whose train examples are the clients', who holds which, and what is tested on."""

    dataset: Dataset
    partition: Partition
    tests: dict[str, Examples]
    text: str


def divide_data(config: Config, whole: Dataset) -> DividedData:
    """Keep some examples for tuning, if the config says so, and divide the others among clients."""
    dataset, tests = whole, {"test": whole.test}
    seed = config.seed_of_partition
    if config.validation:
        rng = keys.generator("validation", seed)
        dataset, tests["validation"] = split_validation(dataset, config.validation, rng)
    text = PARTITIONS.canonical(partition_text(config, dataset))
    return DividedData(dataset, divide(text, dataset.pool, config.clients, seed), tests, text)


def partition_text(config: Config, dataset: Dataset) -> str:
    """Who holds which examples: as the config says, or else as the data came divided.

    Examples without a class are then divided by chance.
    """
    if "partition" in config.model_fields_set:
        return config.partition
    if "client" in dataset.keys:
        return "by(key='client')"
    return config.partition if dataset.has_classes else "iid"


def _of_type(wanted: type[T], what: str, value: Any) -> T:
    if not isinstance(value, wanted):
        raise InputError(f"{what} gave a {type(value).__name__}, where a {wanted.__name__} belongs")
    return value
