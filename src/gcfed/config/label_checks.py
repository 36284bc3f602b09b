"""Whether the labels are such as the loss and the metrics read."""

import warnings
from collections.abc import Mapping

from torch import Tensor

from gcfed.core import measures
from gcfed.core.ignored import IGNORED
from gcfed.core.losses import Loss, bce, is_cross_entropy, next_token, token
from gcfed.core.metrics import AnyMetric, Metric
from gcfed.data import Dataset
from gcfed.errors import InputError


def warn_of_equal_labels(metrics: Mapping[str, AnyMetric], y: Tensor) -> None:
    """Warn that R2 has no value, where labels have no variance that could be explained."""
    judged = any(isinstance(m, Metric) and m.final is measures.r2 for m in metrics.values())
    if judged and (y == y[:1]).reshape(len(y), -1).all(0).any():
        warnings.warn(
            "the test labels of an output are all the same, so that R2 has no value: judge by loss "
            "or mae, or give other test examples",
            stacklevel=4,
        )


def check_labels(loss: Loss, dataset: Dataset) -> None:
    """Refuse labels that binary cross-entropy does not know, which it takes without a word."""
    if getattr(loss, "func", loss) is not bce:
        return
    for y in _counted_labels(dataset):
        if len(y) and not 0 <= y.min() <= y.max() <= 1:
            found = f"{y.min().item():g} to {y.max().item():g}"
            raise InputError(f"the loss bce reads labels from 0 to 1, and these are from {found}")


def check_places(loss: Loss, dataset: Dataset, logits: Tensor) -> None:
    """Refuse classes at places of a text, or of an image, that have no logit."""
    of_a_text = loss in (token, next_token)
    if logits.ndim < 3 or not (of_a_text or is_cross_entropy(loss)):
        return
    num_logits = logits.shape[2 if of_a_text else 1]
    for y in _counted_labels(dataset):
        wrong = y[(y < 0) | (y >= num_logits)]
        if len(wrong) and not y.is_floating_point():  # these are probabilities
            raise InputError(
                f"the model gives {num_logits} logits at each place, for labels from 0, and there "
                f"is the label {wrong[0].item():g}: one that is not to count is {IGNORED}"
            )


def check_classes(name: str, dataset: Dataset, *, one_each: bool) -> None:
    """Refuse labels that are no classes; 0 and 1 are, where each label has one logit."""
    for y in (labels.double() for labels in _counted_labels(dataset)):
        wrong = y[(y != y.round()) | one_each & ((y < 0) | (y > 1))]
        if len(wrong):
            wanted = "labels that are 0 or 1" if one_each else "classes"
            raise InputError(
                f"metric {name} reads {wanted}, and there is the label {wrong[0].item():g}: name "
                "other metrics, such as 'loss', or 'r2' and 'mae' for numbers"
            )


def _counted_labels(dataset: Dataset) -> list[Tensor]:
    """The labels of train and of test examples, less those that are ignored."""
    both = (dataset.train.y, dataset.test.y)
    return [y if y.is_floating_point() else y[y != IGNORED] for y in both]
