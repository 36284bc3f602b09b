"""What metrics make of outputs and labels: a number, or a row of numbers, for each example."""

import torch
import torch.nn.functional as F
from torch import Tensor

from gcfed.core.ignored import IGNORED
from gcfed.core.losses import as_labels
from gcfed.errors import InputError


def is_correct(logits: Tensor, y: Tensor) -> Tensor:
    """Whether the largest logit is that of the label."""
    logits, y = _class_logits(logits, y)
    return logits.argmax(1) == y


def is_among_five(logits: Tensor, y: Tensor) -> Tensor:
    """Whether the label is among the five largest logits."""
    logits, y = _class_logits(logits, y)
    return (logits.topk(min(5, logits.shape[1]), 1).indices == y[:, None]).any(1)


def likeliest(logits: Tensor) -> Tensor:
    """The class of each example, of logits with the classes on axis 1."""
    return _each_class(logits).argmax(1)


def _each_class(logits: Tensor) -> Tensor:
    """Logits of at least two classes: one logit alone says how much likelier 1 is than 0."""
    return torch.cat([torch.zeros_like(logits), logits], 1) if logits.shape[1] == 1 else logits


def _class_logits(logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Logits of each class on axis 1, and labels; those that are no classes are refused.

    A token, or a pixel, has logits and a class of its own.  Where there is one logit, labels may
    have an axis for it too.
    """
    logits = logits[:, None] if logits.ndim == 1 else logits
    if logits.shape[1] == 1:
        y = y[:, 0] if y.shape == logits.shape else y
        logits = _each_class(logits)
    wanted = (len(logits), *logits.shape[2:])
    if y.shape != wanted:
        raise InputError(
            f"an example has logits of shape {list(logits.shape[1:])} and a label of shape "
            f"{list(y.shape[1:])}, where classes of shape {list(wanted[1:])} belong"
        )
    return logits, y


def hits_and_misses(logits: Tensor, y: Tensor) -> Tensor:
    """Right, wrongly predicted and missed: a column of each for every class or label."""
    if logits.numel() == y.numel():
        predicted, labels = (x.reshape(len(y), -1) for x in (as_labels(logits, y) > 0, y))
        predicted, actual = predicted & (labels != IGNORED), labels > 0
    else:
        logits, y = _class_logits(logits, y)
        counted, num_classes = (y != IGNORED)[..., None], logits.shape[1]
        classes = (logits.argmax(1), y.where(y != IGNORED, 0))
        predicted, actual = ((F.one_hot(c, num_classes) > 0) & counted for c in classes)
    found = (predicted & actual, predicted & ~actual, ~predicted & actual)
    return torch.cat([each.reshape(len(y), -1, each.shape[-1]).sum(1) for each in found], 1)


def macro_f1(means: Tensor) -> Tensor:
    """The mean F1 score, of the means of `hits_and_misses`."""
    right, wrong, missed = means.reshape(3, -1).unbind()
    total = 2 * right + wrong + missed
    return (2 * right / total)[total > 0].mean()


def absolute_error(outputs: Tensor, y: Tensor) -> Tensor:
    """How far each output is from its label."""
    return (as_labels(outputs, y) - y).abs()


def moments(outputs: Tensor, y: Tensor) -> Tensor:
    """The squared error, the label and its square, for each output of each example."""
    y = y.double().reshape(len(y), -1)
    error = outputs.double().reshape(y.shape) - y
    return torch.cat([error.square(), y, y.square()], 1)


def r2(means: Tensor) -> Tensor:
    """The share of variance that is explained, of the means of `moments`."""
    error, y, squares = means.reshape(3, -1).unbind()
    return (1 - error / (squares - y.square())).mean()
