"""Labels that neither the loss nor a metric counts: those of the padding of a text, say."""

import torch
from torch import Tensor

IGNORED = -100
"""The label of a token that does not count, as torch and Hugging Face have it."""


def all_ignored(y: Tensor) -> bool:
    """Whether examples have several labels each, none of which counts."""
    return y.ndim > 1 and not y.is_floating_point() and bool((y == IGNORED).all())


def example_means(values: Tensor, y: Tensor) -> tuple[Tensor, Tensor | None]:
    """The mean of each example's values, and which examples count; None where all of them do.

    All values count, unless examples have several whole numbers as labels: then the values of
    labels that are `IGNORED` do not, nor does an example that has no other label.
    """
    rows = values.reshape(len(y), -1)
    if y.ndim == 1 or y.is_floating_point():
        return rows.mean(1), None
    labels, width = (y != IGNORED).flatten(1), rows.shape[1]
    if values.shape == y.shape[:1] or width > labels.shape[1]:
        counted = labels.any(1, keepdim=True).expand_as(rows)  # values of an example as a whole
    else:
        counted = labels[:, -width:]  # a loss of the next token has no value for the first label
    means = torch.where(counted, rows, 0.0).sum(1) / counted.sum(1).clamp_min(1)
    return means, counted.any(1)
