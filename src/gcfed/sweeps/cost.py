"""What a cell will cost, estimated before it is trained."""

import statistics
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from gcfed.analysis.costs import traffic
from gcfed.config.experiment import Experiment
from gcfed.config.settings import Config
from gcfed.core import tree
from gcfed.core.hook_checks import naming_hooks
from gcfed.core.schedule import Schedule
from gcfed.errors import InputError
from gcfed.models.flops import count
from gcfed.results.run import Run
from gcfed.simulation.round import prepare
from gcfed.simulation.snapshot import start

BACKWARD = 3  # a forward pass, and a backward one of twice as many products


class RoundCost(NamedTuple):
    """Of one round of one seed: expected over cohorts, so that faults and samplers do not count.

    ``flops`` are those of the products of a plain step, None where a model cannot be counted; an
    algorithm that takes several gradients a step costs more.
    """

    examples: float
    flops: float | None
    bytes: float


def cost(experiment: Experiment, forward: int | None, client: int) -> RoundCost:
    """What a round costs, by the FLOPs of one example and the bytes of one client."""
    schedule = experiment.config.schedule()
    examples = examples_a_round(schedule, experiment.statistics.sizes)
    return RoundCost(
        examples,
        None if forward is None else BACKWARD * forward * examples,
        schedule.cohort_size * client,
    )


def examples_a_round(schedule: Schedule, sizes: np.ndarray) -> float:
    """How many examples pass through the model, expected over cohorts of clients of these sizes."""
    batches = np.ceil(sizes / schedule.batch_size)
    a_pass = batches * schedule.batch_size if schedule.fill == "repeat" else sizes
    passes = schedule.epochs if schedule.steps is None else schedule.steps / batches
    return schedule.cohort_size * float(np.mean(a_pass * passes))


def forward_flops(experiment: Experiment) -> int | None:
    """Of one example through the model of an experiment, if that can be counted."""
    model, x = experiment.setup.model, experiment.setup.data.x
    try:
        return count(model.module(model.params, model.buffers), tuple(x.shape[1:])).flops  # type: ignore[union-attr]
    except Exception:  # a user's model may need values, not only shapes
        return None


def bytes_a_client(experiment: Experiment) -> int:
    """What a client of the first round receives and sends."""
    setup = experiment.setup
    server, clients = start(setup)
    with naming_hooks(setup.algorithm):
        job = prepare(setup, server, clients, 0, [0])
        client, travel = tree.take(job.cohort, 0), setup.server_task.is_averaging
        return sum(traffic(job.task, client, buffers_travel=travel))


class RecordedPace:
    """How fast recorded runs went: the seconds of an example, by data set, model and device."""

    def __init__(self, runs: Iterable[Run]) -> None:
        self._found: dict[tuple[str, ...], dict[str, list[float]]] = defaultdict(
            lambda: defaultdict(list)
        )
        for run in runs:
            try:
                self._add(run)
            except (InputError, KeyError):  # a run that cannot be read says nothing
                continue

    def _add(self, run: Run) -> None:
        seconds = [timing["seconds"] for timing in run.timings]
        if not seconds:
            return
        later = seconds[1:] or seconds  # the first round has the start of the engine in it
        made, config = run.provenance, run.config
        each = _load(config, made["partition"]["size"]["mean"])
        rate = statistics.median(later) / (each * len(made["runs_together"]))
        self._found[_kind(config, config.device)][config.algorithm].append(rate)

    def seconds(self, experiment: Experiment, device: str) -> float | None:
        """A round of one seed; by runs of its algorithm, if there are any."""
        config = experiment.config
        found = self._found.get(_kind(config, device))
        if found is None:
            return None
        rates = found.get(config.algorithm) or [rate for some in found.values() for rate in some]
        return statistics.median(rates) * _load(config, float(experiment.statistics.sizes.mean()))


def _kind(config: Config, device: str) -> tuple[str, ...]:
    return config.dataset, config.model, device.partition(":")[0]


def _load(config: Config, mean_size: float) -> float:
    """The examples of a round, as if all clients were of one size: all that a record says."""
    return examples_a_round(config.schedule(), np.array([mean_size]))
