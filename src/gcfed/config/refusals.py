"""What is refused before a run starts: labels, models and metrics that do not fit together."""

from collections.abc import Mapping

import torch
from torch import Tensor

from gcfed.core import tree
from gcfed.core.client import Loss
from gcfed.core.metrics import Metric
from gcfed.core.types import Inputs
from gcfed.data import Dataset
from gcfed.errors import InputError
from gcfed.simulation import evaluation
from gcfed.simulation.setup import Setup, cross_entropy
from gcfed.simulation.snapshot import start


def check_labels(dataset: Dataset, loss: Loss) -> None:
    """Refuse labels that the loss cannot read."""
    y = dataset.train.y
    if loss is cross_entropy and y.is_floating_point() and y.ndim == 1:
        raise InputError(
            "these labels are numbers, not classes: gcfed.fit takes a loss=... of them"
        )


def try_model(setup: Setup, dataset: Dataset) -> Tensor:
    """Show the model and the loss a test example; refuse what cannot read it; gives the logits."""
    x, y = tree.take(dataset.test.x, slice(1)), dataset.test.y[:1]
    try:
        logits = evaluation.predict(setup, start(setup).server, x).logits
    except Exception as error:
        shape = [list(part.shape[1:]) for _, part in tree.leaves(x)]
        said = f"the model cannot read an example of shape {shape[0]}: {_reason(error)}"
        raise InputError(said + _advice(x)) from error
    classes = setup.loss is cross_entropy and dataset.has_classes and logits.ndim == 2
    if classes and logits.shape[1] < dataset.num_classes:
        given, needed = logits.shape[1], dataset.num_classes
        raise InputError(f"the model gives {given} logits, and there are {needed} classes")
    try:
        setup.loss(logits, y)
    except Exception as error:
        shapes = f"logits of shape {list(logits.shape[1:])} and labels of {list(y.shape[1:])}"
        said = f"the loss cannot read {shapes}, {y.dtype}: {_reason(error)}"
        raise InputError(said) from error
    return logits


def _advice(x: Inputs) -> str:
    """What to do about inputs of whole numbers, which a model that wants tokens alone can read."""
    whole = [
        str(v.dtype).removeprefix("torch.") for _, v in tree.leaves(x) if not v.is_floating_point()
    ]
    if not whole:
        return ""
    return f". Its numbers are {whole[0]}: features are floats, so give x.astype('float32')"


def try_metrics(
    metrics: Mapping[str, Metric], setup: Setup, dataset: Dataset, logits: Tensor
) -> None:
    """Judge the logits of the first test example, and refuse metrics that cannot."""
    for name, metric in metrics.items():
        try:
            columns = metric.columns(logits, dataset.test.y[:1], setup.loss)
            metric.result(torch.cat(columns))
        except Exception as error:
            said = f"metric {name} cannot judge outputs of shape {list(logits.shape[1:])}"
            raise InputError(f"{said}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
