"""From a config to a run that can start."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gcfed.algorithms.spec import parse, to_text
from gcfed.analysis import PROBES
from gcfed.analysis.probe import kept_for, make_probes
from gcfed.analysis.probe_checks import naming_probe
from gcfed.config.client_sizes import refuse_lone_examples, warn_of_small_clients
from gcfed.config.experiment import Experiment
from gcfed.config.fingerprint import Fingerprint
from gcfed.config.materials import divide_data, load_weights, module_for, read_dataset
from gcfed.config.plugins import load_plugins
from gcfed.config.settings import Config
from gcfed.config.suited import suited
from gcfed.config.targets import loss_text, make_loss, metrics_for
from gcfed.config.trial import try_metrics, try_model, with_head_found, with_mixing_found
from gcfed.core.algorithm import Algorithm
from gcfed.core.losses import LOSSES, Loss
from gcfed.core.metrics import METRICS, Metrics
from gcfed.core.model import Model
from gcfed.core.module_checks import copied
from gcfed.data import (
    DATASETS,
    PARTITIONS,
    Dataset,
    FederatedData,
    data_dir,
)
from gcfed.data.datasets.user import settled
from gcfed.data.partitions.skew import partition_statistics
from gcfed.engines import ENGINES, resolve
from gcfed.errors import InputError
from gcfed.models import MODELS
from gcfed.population.availability import settled as settled_availability
from gcfed.population.faults import FAULTS
from gcfed.population.samplers import SAMPLERS
from gcfed.registry import Registry
from gcfed.simulation.evaluation import TestSet
from gcfed.simulation.rehearsal import with_able_engine
from gcfed.simulation.setup import Setup
from gcfed.simulation.snapshot import start

TRIAL = (
    *("dataset", "data_dir", "validation", "seed_of_partition", "model", "seed_of_weights", "init"),
    *("loss", "metrics", "fill", "precision", "device", "plugins"),
)
"""The settings that make a model, and decide what comes out when it is tried before a run."""


@dataclass(frozen=True, kw_only=True)
class Given:
    """Objects that a program passes itself, in place of what a config can name.

    With ``any_algorithm`` the config's is not asked for, and the one that suits is taken.
    """

    algorithm: Algorithm | None = None
    any_algorithm: bool = False
    module: nn.Module | None = None
    dataset: Dataset | None = None
    loss: Loss | None = None
    metrics: Metrics | None = None


def build(
    config: Config,
    given: Given | None = None,
    *,
    beside: Experiment | None = None,
    tried: Experiment | None = None,
    hashed: bool = False,
    engine_reason: str = "",
) -> Experiment:
    """The experiment that ``config`` describes, with what is ``given`` in the place of its names.

    What it has in common with the one ``beside`` it, of another seed, is shared and not copied.  If
    one was ``tried`` that differs in none of `TRIAL`, its model is shared and not tried again.  If
    data will be ``hashed``, that begins beside the rest.  ``engine_reason`` says why the engine is
    the config's, where nobody may have set it.
    """
    beside = tried or beside
    load_plugins(config.plugins)
    given = given or Given()
    algorithm, device = given.algorithm or parse(config.algorithm), _device(config.device)
    names = _names(config, given)  # what is misspelt shows before data are read
    availability, names["availability"] = settled_availability(config.availability)
    probes = make_probes(config.probes)
    whole = given.dataset or (beside.dataset if beside else _dataset(config))
    data = beside.data if beside and whole is beside.dataset else Fingerprint(whole, ahead=hashed)
    whole = whole.to(device)
    names["loss"] = loss_text(config, whole, given.loss)
    loss = make_loss(names["loss"], whole, given.loss)
    divided = divide_data(config, whole)
    dataset, partition, tests = divided.dataset, divided.partition, divided.tests
    names["partition"] = divided.text
    if tried:
        model, initial = tried.setup.model, tried.setup.initial
    else:
        model = with_head_found(_model(config, dataset, given.module).to(device), dataset)
        if config.fill == "none":  # else no batch is padded
            model = with_mixing_found(model, dataset, loss)
        initial = model.params
        if beside and _alike(model, beside.setup.model):
            model = beside.setup.model
    choice = suited(model, dataset, loss) if given.any_algorithm else None
    setup = Setup(
        algorithm=parse(choice.algorithm) if choice else algorithm,
        model=model,
        data=FederatedData(*dataset.train, partition, dataset.num_classes),
        optimizer=config.local_optimizer(),
        schedule=config.schedule(),
        engine=config.engine,
        engine_reason=engine_reason,
        precision=config.precision,
        loss=beside.setup.loss if beside and beside.config.loss == names["loss"] else loss,
        transform=dataset.transform,
        buffers=config.buffers,
        chunk=config.chunk,
        availability=availability,
        sampler=SAMPLERS.parse(config.sampler),
        faults=FAULTS.parse(config.faults)(),
        initial=initial,
        keep=kept_for(probes),
    )
    setup.chosen.make().prepare(device)
    for name, probe in probes.items():
        with naming_probe(name, probe):
            probe.check(setup)
    if tried:
        metrics = tried.tests["test"].metrics
    else:
        outputs = try_model(setup, dataset)
        metrics = metrics_for(config, names["loss"], loss, dataset, outputs, given.metrics)
        try_metrics(metrics, setup, dataset, outputs)
    refuse_lone_examples(setup)
    if setup.chosen.make().pads:  # if it cannot train the model, the config names another
        setup = with_able_engine(setup, start(setup).server, 0)
    warn_of_small_clients(setup.schedule, partition.sizes)
    return Experiment(
        config=config.model_copy(update=names | _settled(config, setup, device)),
        setup=setup,
        tests={split: TestSet(*examples, metrics) for split, examples in tests.items()},
        statistics=partition_statistics(partition, dataset.pool),
        dataset=whole,
        data=data,
        probes=probes,
        reason=choice.reason if choice else "",
    )


def _names(config: Config, given: Given) -> dict[str, str]:
    """What is named in a config, its hyper-parameters written out."""
    named: dict[str, Registry[Any]] = {
        "partition": PARTITIONS,
        "sampler": SAMPLERS,
        "faults": FAULTS,
    }
    if given.dataset is None:
        named["dataset"] = DATASETS
    if given.module is None:
        named["model"] = MODELS
    if config.engine != "auto":
        ENGINES.parse(config.engine)  # it is written out by the setup, but may be misspelt
    if given.loss is None:
        LOSSES.parse(config.loss)
    for name in config.metrics:
        METRICS.parse(name)
    names = {key: registry.canonical(getattr(config, key)) for key, registry in named.items()}
    if "dataset" in names:  # its path holds wherever the config is read
        root = data_dir(None if config.data_dir is None else Path(config.data_dir))
        names["dataset"] = settled(config.dataset, root)
    return names


def _settled(config: Config, setup: Setup, device: torch.device) -> dict[str, Any]:
    """The values that a config left open, now known, and its paths made absolute."""
    return {
        "algorithm": to_text(setup.algorithm),
        "clients": setup.data.num_clients,
        "epochs": setup.schedule.epochs,
        "momentum": setup.optimizer.momentum,
        "engine": setup.chosen.name,
        "precision": resolve(setup.precision, setup.device),
        "device": str(device),
        "init": _absolute(config.init),
        "data_dir": _absolute(config.data_dir),
        "metrics": tuple(METRICS.short(METRICS.parse(text)) for text in config.metrics),
        "probes": tuple(PROBES.short(PROBES.parse(text)) for text in config.probes),
        "plugins": tuple(str(_absolute(path)) for path in config.plugins),
    }


def _dataset(config: Config) -> Dataset:
    return read_dataset(config.dataset, config.data_dir)


def _model(config: Config, dataset: Dataset, module: nn.Module | None) -> Model:
    if module is None:
        module = module_for(config.model, dataset, seed=config.seed_of_weights)
    elif config.init is not None:
        module = copied(module)  # it is the caller's
    if config.init is not None:
        load_weights(module, Path(config.init).expanduser())
    return Model(module)


def _absolute(path: str | None) -> str | None:
    return None if path is None else str(Path(path).expanduser().absolute())


def _alike(model: Model, other: Model) -> bool:
    """Whether two models differ in nothing but what is trained."""
    fixed, others = model.fixed(), other.fixed()
    return (
        model.roles == other.roles
        and model.cross_batch == other.cross_batch
        and fixed.keys() == others.keys()
        and all(torch.equal(fixed[name], others[name]) for name in fixed)
    )


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except (RuntimeError, ValueError):
        raise InputError(f"there is no device {name!r}: write cpu, cuda, cuda:1, ...") from None
    try:
        torch.zeros(1, device=device).tolist()  # device "meta" makes tensors that hold nothing
    except Exception as error:  # each kind of device has its own
        raise InputError(f"device {name!r} cannot be used: {str(error).splitlines()[0]}") from None
    return device
