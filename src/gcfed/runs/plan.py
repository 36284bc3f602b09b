"""What a run is about to do, in a few lines that are said before its first round."""

import logging
from collections.abc import Sequence

from gcfed.config.client_sizes import note_on_batches
from gcfed.config.experiment import Experiment
from gcfed.config.settings import Config
from gcfed.config.targets import GIVEN
from gcfed.config.trial import note_on_reading
from gcfed.display import counted
from gcfed.results.captions import partition_caption, short
from gcfed.results.privacy import spent

LOG = logging.getLogger("gcfed")
"""Told what runs are about to do; nothing is shown of it unless a program asks for it."""


def announce(experiments: Sequence[Experiment]) -> None:
    """Log the plan of runs that differ in their seeds: that of the first stands for all."""
    for line in plan(experiments[0]):
        LOG.info("%s", line)


def plan(experiment: Experiment) -> list[str]:
    """What a run is about to do, a line each: how, on whose data, by which engine."""
    setup, config = experiment.setup, experiment.config
    schedule, sizes = setup.schedule, setup.data.parts.sizes
    size = sum(weights.numel() for weights in setup.model.params.values())
    work = (schedule.epochs, "epoch") if schedule.epochs else (schedule.steps or 0, "step")
    lines = [
        f"{config.model} of {size:,} parameters, trained by {short(config.algorithm)}: "
        f"{counted(schedule.rounds, 'round')}, a client doing {counted(*work)} in each",
        f"{schedule.cohort_size} of {setup.data.num_clients:,} clients a round; with "
        f"{partition_caption(config.partition)} a client holds {sizes.min():,} to {sizes.max():,} "
        f"of {sizes.sum():,} examples",
        f"{short(config.algorithm)}: {experiment.reason}" if experiment.reason else "",
        note_on_batches(schedule, sizes),
        experiment.dataset.note,
        note_on_reading(experiment.dataset),
        _note_on_loss(experiment),
        _note_on_privacy(experiment),
        f"engine: {engine_of(experiment)}",
    ]
    return [line for line in lines if line]


def _note_on_privacy(experiment: Experiment) -> str:
    """What the run will have spent of its clients' privacy; nothing where there is no noise."""
    rounds = experiment.config.rounds
    found = spent(experiment.setup.algorithm, experiment.config, rounds)
    return "" if found is None else f"privacy spent after {counted(rounds, 'round')}: {found}"


def _note_on_loss(experiment: Experiment) -> str:
    """What is minimised and judged by, where it is not the cross-entropy of classes."""
    loss = experiment.config.loss
    if loss == Config().loss:
        return ""
    what = "of your own" if loss == GIVEN else loss
    return f"loss: {what}; judged by {experiment.metric}"


def engine_of(experiment: Experiment) -> str:
    """The engine of a run, where it works, and why it is this one."""
    chosen = experiment.setup.chosen
    return f"{chosen.name} on {experiment.setup.device} ({chosen.reason})"
