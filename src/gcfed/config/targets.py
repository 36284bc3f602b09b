"""What labels are, and so what clients minimise and models are judged by."""

import copy

import torch
from torch import Tensor, nn

from gcfed.config.settings import Config
from gcfed.core.losses import (
    LOSSES,
    Loss,
    is_cross_entropy,
    is_of_numbers,
    named_loss,
    own_loss,
    reads_logits,
)
from gcfed.core.metrics import METRICS, AnyMetric, Metrics, as_metrics, named
from gcfed.data import Dataset
from gcfed.errors import InputError

GIVEN = "given"
"""What a config calls a loss that a program passes itself."""

SUITED = {"mse": "r2", "bce": "macro_f1", "next_token": "perplexity", "token": "accuracy"}
"""The metric that suits a loss, where its name alone says so."""


def loss_text(config: Config, dataset: Dataset, given: Loss | None) -> str:
    """What clients minimise: as the config says, or else what suits the labels."""
    if given is not None:
        return GIVEN
    if "loss" not in config.model_fields_set and _are_numbers(dataset):
        return "mse"
    return LOSSES.short(LOSSES.parse(config.loss))


def make_loss(text: str, dataset: Dataset, given: Loss | None) -> Loss:
    """The loss that is given or named, if it can read the labels of the data set."""
    loss = named_loss(text) if given is None else own_loss(given)
    if isinstance(loss, nn.Module):
        loss = copy.deepcopy(loss).to(dataset.train.y.device)  # the caller's stays where it is
    if is_cross_entropy(loss) and _is_number(dataset):
        raise InputError(
            "these labels are numbers, not classes, which cross-entropy is for: leave loss out, or "
            "give another, such as loss='mse'"
        )
    return loss


def metrics_for(
    config: Config,
    text: str,
    loss: Loss,
    dataset: Dataset,
    outputs: Tensor,
    given: Metrics | None,
) -> dict[str, AnyMetric]:
    """The metrics that are given or named, or else what suits the labels and the loss.

    ``outputs`` are what the model gives of some examples.  One number of each may be anything,
    unless the loss reads it as a logit.
    """
    if given:
        return as_metrics(given)
    several = outputs.numel() > len(outputs) or reads_logits(loss)
    classified = dataset.has_classes and several and not is_of_numbers(loss)
    usual = SUITED.get(text.partition("(")[0], "accuracy" if classified else "loss")
    if usual == "macro_f1" and not _are_whole(dataset):
        usual = "loss"  # labels between 0 and 1 are neither
    return {METRICS.canonical(name): named(name) for name in config.metrics or (usual,)}


def _are_whole(dataset: Dataset) -> bool:
    """Whether no label is a fraction."""
    y = dataset.train.y
    return not y.is_floating_point() or bool((y == y.round()).all())


def _are_numbers(dataset: Dataset) -> bool:
    """Whether labels are numbers: neither classes nor a probability for each class."""
    y = dataset.train.y
    if not y.is_floating_point() or _is_number(dataset):
        return y.is_floating_point()
    sums = y.sum(1)
    return not ((y >= 0).all() and torch.allclose(sums, torch.ones_like(sums), atol=1e-3))


def _is_number(dataset: Dataset) -> bool:
    """Whether a label is one number."""
    y = dataset.train.y
    return y.is_floating_point() and y[:1].numel() == 1
