"""From a config to a run that can start."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from gcfed import random
from gcfed.data import (
    DATASETS,
    PARTITIONS,
    Dataset,
    FederatedData,
    Partition,
    data_dir,
    split_validation,
)
from gcfed.data.partitions import by
from gcfed.data.statistics import PartitionStatistics, partition_statistics
from gcfed.errors import InputError
from gcfed.evaluation import Record, TestSet, accuracy, record
from gcfed.experiments.config import Config
from gcfed.experiments.plugins import load_plugins
from gcfed.model import Model
from gcfed.models import MODELS
from gcfed.registry import Registry
from gcfed.round import RoundResult
from gcfed.setup import Setup
from gcfed.spec import parse, to_text


@dataclass(frozen=True)
class Experiment:
    """A run before it starts, and what it is judged by: the test set, and one for tuning."""

    config: Config
    setup: Setup
    tests: dict[str, TestSet]
    statistics: PartitionStatistics
    dataset: Dataset

    def record(self, result: RoundResult) -> Record:
        """The line of a round, evaluated when it is due and at the end."""
        number, every = result.round + 1, self.config.evaluate_every
        due = number % every == 0 or number == self.config.rounds
        return record(self.setup, result, self.tests if due else None)


def build(
    config: Config,
    *,
    module: nn.Module | None = None,
    dataset: Dataset | None = None,
    beside: Experiment | None = None,
) -> Experiment:
    """The experiment that ``config`` describes, on a module or a data set of one's own if given.

    What it has in common with the one ``beside`` it, of another seed, is shared and not copied.
    """
    load_plugins(config.plugins)
    algorithm, device = parse(config.algorithm), _device(config.device)
    known: dict[str, Registry[Any]] = {"partition": PARTITIONS}
    if dataset is None:
        known["dataset"] = DATASETS
    if module is None:
        known["model"] = MODELS
    whole = dataset = (dataset or (beside.dataset if beside else _dataset(config))).to(device)
    partition_seed, init_seed = (
        config.seed if seed is None else seed for seed in (config.partition_seed, config.init_seed)
    )
    tests = {"test": dataset.test}
    if config.validation:
        rng = random.generator("validation", partition_seed)
        dataset, tests["validation"] = split_validation(dataset, config.validation, rng)
    partition = _partition(config, dataset, random.generator("partition", partition_seed))
    module = module or _module(config.model, dataset, init_seed)
    if config.init is not None:
        load_weights(module, Path(config.init))
    model = Model(module).to(device)
    setup = Setup(
        algorithm=algorithm,
        model=beside.setup.model if beside and _alike(model, beside.setup.model) else model,
        data=FederatedData(*dataset.train, partition, dataset.num_classes),
        optimizer=config.local_optimizer(),
        schedule=config.schedule(),
        engine=config.engine,
        transform=dataset.transform,
        buffers=config.buffers,
        initial=model.params,
    )
    metrics = {"accuracy": accuracy} if dataset.has_classes else {}
    return Experiment(
        config=_resolved(config, setup, known),
        setup=setup,
        tests={split: TestSet(*examples, metrics) for split, examples in tests.items()},
        statistics=partition_statistics(partition, dataset.pool),
        dataset=whole,
    )


def _resolved(config: Config, setup: Setup, known: dict[str, Registry[Any]]) -> Config:
    """The config with every default written out."""
    written = {key: r.canonical(getattr(config, key)) for key, r in known.items()}
    settled = {
        "algorithm": to_text(setup.algorithm),
        "clients": setup.data.num_clients,
        "epochs": setup.schedule.epochs,
        "momentum": setup.optimizer.momentum,
    }
    return config.model_copy(update=written | settled)


def load_weights(module: nn.Module, path: Path) -> None:
    """Put the weights of a safetensors file into a module of the same names and shapes."""
    try:
        weights = load_file(path)
    except FileNotFoundError:
        raise InputError(f"there is no file of weights {path}") from None
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path} is not a safetensors file: {error}") from None
    try:
        module.load_state_dict(weights)
    except RuntimeError as error:
        raise InputError(f"the weights in {path} do not fit the model: {error}") from None


def _dataset(config: Config) -> Dataset:
    root = data_dir(None if config.data_dir is None else Path(config.data_dir))
    return DATASETS.parse(config.dataset)(root)  # type: ignore[no-any-return]


def _partition(config: Config, dataset: Dataset, rng: np.random.Generator) -> Partition:
    divide, clients = PARTITIONS.parse(config.partition), config.clients
    if clients is None and divide.func is not by:  # which finds its clients in the data
        clients = 100
    return divide(dataset.pool, clients, rng)  # type: ignore[no-any-return]


def _module(text: str, dataset: Dataset, seed: int) -> nn.Module:
    make = MODELS.parse(text)
    if isinstance(dataset.train.x, dict):
        raise InputError(f"model {text} reads one tensor, and this data set has several")
    with random.seeded("weights", seed):
        return make(tuple(dataset.train.x.shape[1:]), dataset.num_classes)  # type: ignore[no-any-return]


def _alike(model: Model, other: Model) -> bool:
    """Whether two models differ in nothing but what is trained."""
    fixed, others = (m.module(m.params, m.buffers).state_dict() for m in (model, other))
    return fixed.keys() == others.keys() and all(
        torch.equal(fixed[name], others[name]) for name in fixed if name not in model.params
    )


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"device {name!r} cannot be used: {str(error).splitlines()[0]}") from None
    return device
