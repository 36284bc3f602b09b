"""What each process of a deployment holds of the data, and the experiment it makes of it."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from gcfed.config.build import Given, build
from gcfed.config.experiment import Experiment
from gcfed.config.materials import divide_data, read_dataset
from gcfed.config.plugins import load_plugins
from gcfed.config.settings import Config
from gcfed.core import tree
from gcfed.core.types import Examples
from gcfed.data import Dataset
from gcfed.errors import InputError

Load = Callable[[int | None], Dataset | None]
"""Gives one's own data: what the client of a number trains on, or (None) what the server tests on.

Where it gives None, the config names the data set.
"""

SERVER = {"engine": "sequential", "checkpoint_every": 1}
"""Settings of every deployment.  Nodes keep the memory of two rounds: each needs a checkpoint."""

ALONE = {
    **{"clients": None, "cohort": 1, "partition": "by(key='client')", "validation": 0.0},
    **{"sampler": "uniform", "availability": "always", "engine": "sequential", "track": ()},
}
"""Settings of an experiment that has one client."""

USUAL = {"faults": "none", "buffers": "average", "chunk": None, "probes": ()}
"""Settings that only a simulation can change."""


def check_deployable(config: Config) -> None:
    """Refuse settings that a deployment cannot follow."""
    for key, usual in USUAL.items():
        if (value := getattr(config, key)) != usual:
            raise InputError(f"{key} = {value!r} is for simulations: leave it out of a deployment")


def node_experiment(config: Config, client: int, given: Dataset | None = None) -> Experiment:
    """The experiment of one client, which knows of no other, on its share or on what is given."""
    check_deployable(config)
    whole = given or _share(config, client)
    owner = np.zeros(len(whole.train.y), dtype=np.int64)
    own = replace(whole, keys={"client": owner})
    return build(config.model_copy(update=ALONE), Given(dataset=own))


def _share(config: Config, client: int) -> Dataset:
    """The data set that the config names, with the examples of one client to train on."""
    load_plugins(config.plugins)
    divided = divide_data(config, read_dataset(config.dataset, config.data_dir))
    part = divided.partition[client]
    return replace(divided.dataset, train=tree.map(lambda x: x[part], divided.dataset.train))


def server_experiment(config: Config) -> Experiment:
    """The experiment of a server that tests on the data set which the config names."""
    check_deployable(config)
    return build(config.model_copy(update=SERVER))


def blind_experiment(config: Config, whole: Dataset, sizes: Sequence[int]) -> Experiment:
    """The experiment of a server that knows of its clients only how many examples each holds.

    A test example, repeated without a copy, stands for each of theirs.
    """
    check_deployable(config)
    stand_in: Examples = tree.map(lambda x: x[:1].expand(sum(sizes), *x.shape[1:]), whole.test)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    blind = replace(whole, train=stand_in, keys={"client": owner})
    named = {"dataset": "given", "partition": "by(key='client')", "clients": len(sizes)}
    return build(config.model_copy(update={**SERVER, **named}), Given(dataset=blind))
