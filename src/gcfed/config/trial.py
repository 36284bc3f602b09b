"""What is tried before a run: whether the model, the loss and the metrics can read the data."""

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gcfed.core import keys, tree
from gcfed.core.batches import Fill
from gcfed.core.client import Loss
from gcfed.core.heads import trace_head
from gcfed.core.metrics import Metric, PerExample
from gcfed.core.mixing import note_mixing
from gcfed.core.model import Model
from gcfed.core.schedule import Schedule
from gcfed.core.server import Server
from gcfed.core.types import Examples, Inputs
from gcfed.data import Dataset
from gcfed.errors import InputError, reason
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


def known(model: Model, dataset: Dataset, fill: Fill) -> Model:
    """The model with what examples show of it: where its head is, and whether it mixes examples.

    The latter is asked only where batches may be padded, which is where it matters.
    """
    rows = torch.arange(3) % len(dataset.train.y)
    x = dataset.train.take(rows).x
    if dataset.transform is not None:
        x = dataset.transform(x, None)
    model = trace_head(model, tree.take(x, slice(1)))
    return note_mixing(model, x) if fill == "none" else model


def try_model(setup: Setup, dataset: Dataset, metrics: Mapping[str, Metric]) -> None:
    """Show the model, the loss and metrics an example: what fails is refused before a run."""
    x, y = tree.take(dataset.test.x, slice(1)), dataset.test.y[:1]
    server = start(setup).server
    try:
        logits = evaluation.predict(setup, server, x).logits
    except Exception as error:
        shape = [list(part.shape[1:]) for _, part in tree.leaves(x)]
        raise InputError(
            f"the model cannot read an example of shape {shape[0]}: {_first_line(error)}"
            f"{_advice(x)}"
        ) from error
    if not isinstance(logits, torch.Tensor):
        raise InputError(f"the model gives a {type(logits).__name__}, where a tensor belongs")
    classes = setup.loss is cross_entropy and dataset.has_classes and logits.ndim == 2
    if classes and logits.shape[1] < dataset.num_classes:
        given, needed = logits.shape[1], dataset.num_classes
        raise InputError(f"the model gives {given} logits, and there are {needed} classes")
    _try_function("loss", setup.loss, logits, y)
    _try_training(setup, server, dataset.train)
    for name, metric in metrics.items():
        if metric.of is not None:
            _try_function(f"metric {name}", metric.of, logits, y)
        try:
            metric.result(torch.cat(metric.columns(logits, y, setup.loss)))
        except Exception as error:
            said = f"metric {name} cannot judge outputs of shape {list(logits.shape[1:])}"
            raise InputError(f"{said}: {_first_line(error)}") from error


def _try_function(name: str, function: PerExample, logits: Tensor, y: Tensor) -> Tensor:
    """What a loss or a metric gives, if that is a number for each example."""
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
    return found


def _try_training(setup: Setup, server: Server, examples: Examples) -> None:
    """Show the model two and then three examples in training mode, and the loss what it gives."""
    shapes = []
    for size in (2, 3):
        x, y = examples.take(torch.arange(size) % len(examples.y))
        try:
            logits: Any = _train_output(setup, server, x)
        except InputError:
            raise
        except Exception as error:
            raise InputError(
                f"the model reads examples in evaluation and not in training: {reason(error)}"
            ) from error
        if not isinstance(logits, Tensor):
            kind = type(logits).__name__
            raise InputError(f"in training the model gives a {kind}, where a tensor belongs")
        if logits.ndim == 0 or len(logits) != size:
            raise InputError(
                f"in training the model gives outputs of shape {list(logits.shape)} for {size} "
                "examples: the first axis is theirs"
            )
        found = _try_function("loss", setup.loss, logits, y)
        shapes.append(found.shape[1:])
        if len(found) != size or len(set(shapes)) > 1:
            raise InputError(
                f"the loss gives numbers of shape {list(found.shape)} for {size} examples, with "
                f"outputs of shape {list(logits.shape)} and labels of {list(y.shape)}: one of them "
                "is stretched over the other; give both the same shape, as by out.squeeze(1)"
            )


def _train_output(setup: Setup, server: Server, x: Inputs) -> Tensor:
    """What the model gives of a batch in training mode; nothing is kept of it."""
    key = keys.key(0).to(setup.device)
    if setup.transform is not None:
        x = setup.transform(x, key)
    with torch.no_grad(), keys.untouched(), setup.arithmetic():
        out, _ = setup.client_task.forward(
            server.params, x, buffers=server.buffers, train=True, key=key
        )
    return out.logits


def refuse_lone_examples(setup: Setup) -> None:
    """Refuse a client that trains on one example alone, if the model's statistics need two."""
    client = _client_with_lone_example(setup.schedule, setup.data.parts.sizes)
    if client is None or not setup.model.cross_batch:
        return
    first = setup.data.parts[client][:1]
    try:
        _train_output(setup, start(setup).server, tree.map(lambda v: v[first], setup.data.x))
    except Exception as error:
        held, size = len(setup.data.parts[client]), setup.schedule.batch_size
        left = f"{held} examples, of which batches of {size} leave one alone"
        norms = ", ".join(setup.model.cross_batch)
        raise InputError(
            f"client {client} holds {left if held > 1 else '1 example'}, and {norms} cannot take "
            "statistics of a single one: give every client more (min_size of a partition), choose "
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
    found = (alone | (size == 1)).nonzero()
    return int(found[0]) if len(found) else None


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


def _advice(x: Inputs) -> str:
    """What to do about inputs of whole numbers, which a model that wants tokens alone can read."""
    whole = [
        str(v.dtype).removeprefix("torch.") for _, v in tree.leaves(x) if not v.is_floating_point()
    ]
    if not whole:
        return ""
    return f". Its numbers are {whole[0]}: features are floats, so give x.astype('float32')"


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
