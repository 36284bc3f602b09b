"""What is tried before a run: whether the model, the loss and the metrics can read the data."""

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gcfed.core import tree
from gcfed.core.client import Loss
from gcfed.core.metrics import Metric, PerExample
from gcfed.core.schedule import Schedule
from gcfed.core.types import Inputs
from gcfed.data import Dataset
from gcfed.errors import InputError
from gcfed.simulation import evaluation
from gcfed.simulation.setup import Setup, cross_entropy
from gcfed.simulation.snapshot import start


def readable_labels(dataset: Dataset, loss: Loss) -> Dataset:
    """The data set, if the loss can read its labels."""
    y = dataset.train.y
    if loss is cross_entropy and y.is_floating_point() and y.ndim == 1:
        raise InputError(
            "these labels are numbers, not classes: gcfed.fit takes a loss=... of them"
        )
    return dataset


def try_model(setup: Setup, dataset: Dataset, metrics: Mapping[str, Metric]) -> None:
    """Show the model, the loss and metrics an example: what fails is refused before a run."""
    x, y = tree.take(dataset.test.x, slice(1)), dataset.test.y[:1]
    server = start(setup).server
    try:
        logits = evaluation.predict(setup, server, x).logits
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"the model cannot read an example of {_shapes(x)}: {_first_line(error)}{_advice(x)}"
        ) from error
    classes = setup.loss is cross_entropy and dataset.has_classes and logits.ndim == 2
    if classes and logits.shape[1] < dataset.num_classes:
        given, needed = logits.shape[1], dataset.num_classes
        raise InputError(f"the model gives {given} logits, and there are {needed} classes")
    _try_function("loss", setup.loss, logits, y)
    for name, metric in metrics.items():
        if metric.of is not None:
            _try_function(f"metric {name}", metric.of, logits, y)
        try:
            metric.result(torch.cat(metric.columns(logits, y, setup.loss)))
        except Exception as error:
            said = f"metric {name} cannot judge outputs of shape {list(logits.shape[1:])}"
            raise InputError(f"{said}: {_first_line(error)}") from error


def _try_function(name: str, function: PerExample, logits: Tensor, y: Tensor) -> None:
    """Refuse a loss or a metric that gives no number for each example."""
    try:
        found: Any = function(logits, y)
    except Exception as error:
        shapes = f"logits of shape {list(logits.shape[1:])} and labels of {list(y.shape[1:])}"
        raise InputError(
            f"the {name} cannot read {shapes}, {y.dtype}: {_first_line(error)}"
        ) from error
    if not isinstance(found, Tensor) or found.ndim == 0:
        raise InputError(
            f"the {name} gives one value for a batch, where one for each example belongs: "
            "torch's losses do so with reduction='none'"
        )


def _shapes(x: Inputs) -> str:
    """The shape of an example, or those of its parts by name."""
    if isinstance(x, Tensor):
        return f"shape {list(x.shape[1:])}"
    return " and ".join(f"{name} of shape {list(part.shape[1:])}" for name, part in x.items())


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


def _advice(x: Inputs) -> str:
    """What to do about inputs of whole numbers, which a model that wants tokens alone can read."""
    if isinstance(x, dict) or x.is_floating_point():
        return ""
    dtype = str(x.dtype).removeprefix("torch.")
    return f". Its numbers are {dtype}: features are floats, so give x.astype('float32')"


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
