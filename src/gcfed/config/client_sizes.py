"""What follows from how few examples clients hold: notes, warnings and refusals before a run."""

import warnings

import torch
from torch import Tensor

from gcfed.config.trial import train_output
from gcfed.core import tree
from gcfed.core.lazy import loaded
from gcfed.core.schedule import Schedule
from gcfed.errors import InputError
from gcfed.simulation.setup import Setup
from gcfed.simulation.snapshot import start


def note_on_batches(schedule: Schedule, sizes: Tensor) -> str:
    """How many clients hold less than a batch, and what they then do; nothing where none does."""
    few = int((sizes < schedule.batch_size).sum())
    if few == 0:
        return ""
    then = "repeat them to fill it" if schedule.fill == "repeat" else "train on smaller batches"
    return (
        f"{few:,} of {len(sizes):,} clients hold fewer examples than a batch of "
        f"{schedule.batch_size} and {then}"
    )


def warn_of_small_clients(schedule: Schedule, sizes: Tensor) -> None:
    """Warn where every client repeats all it holds to fill a batch; that some do is usual."""
    most, wanted = int(sizes.max()), schedule.batch_size
    if 2 * most < wanted and schedule.fill == "repeat":
        warnings.warn(
            f"each of the {len(sizes)} clients holds less than half of batch_size={wanted} (at "
            f"most {most} examples) and repeats all of them to fill its batches: lower batch_size "
            "or the number of clients, or set fill = 'none'",
            stacklevel=3,
        )


def refuse_lone_examples(setup: Setup) -> None:
    """Refuse a client that trains on one example alone, if the model's statistics need two."""
    client = _client_with_lone_example(setup.schedule, setup.data.parts.sizes)
    if client is None or not setup.model.cross_batch:
        return
    first = setup.data.parts[client][:1]
    try:
        train_output(setup, start(setup).server, loaded(tree.map(lambda v: v[first], setup.data.x)))
    except Exception as error:
        held, size = len(setup.data.parts[client]), setup.schedule.batch_size
        left = f"{held} examples, and batches of {size} leave one of them alone"
        norms = ", ".join(setup.model.cross_batch)
        raise InputError(
            f"client {client} holds {left if held > 1 else '1 example'}: {norms} cannot be "
            "trained on a single one; give every client more (min_size of a partition), choose "
            "another batch_size or fill, or take GroupNorm"
        ) from error


def _client_with_lone_example(schedule: Schedule, sizes: Tensor) -> int | None:
    """The first client one of whose batches holds a single example, be it repeated."""
    size = schedule.batch_size
    if schedule.fill == "repeat":
        alone = sizes == 1
    else:
        alone = sizes % size == 1
        if schedule.steps is not None:
            alone &= -(-sizes // size) <= schedule.steps  # later batches are never reached
    found = torch.as_tensor(alone | (size == 1)).nonzero()
    return int(found[0]) if len(found) else None
