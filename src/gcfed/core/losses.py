"""What clients minimise: losses by name, torch's own, or a function of one's own."""

import copy
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from gcfed.core.ignored import IGNORED
from gcfed.errors import InputError
from gcfed.registry import Registry
from gcfed.values import check_range

Loss = Callable[[Tensor, Tensor], Tensor]
"""The loss of each example (or of each of its tokens), from logits and labels."""

OF_CLASSES = nn.CrossEntropyLoss, nn.NLLLoss
"""Torch's losses that have weights of classes, and a label to ignore."""

LOSSES: Registry[Callable[..., Tensor]] = Registry("loss")
"""Functions of logits and labels that give a loss, or several, for each example."""


@LOSSES.register("cross_entropy")
def cross_entropy(logits: Tensor, y: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
    """The cross-entropy of classes, whose labels may be smoothed."""
    check_range("cross_entropy(label_smoothing=...)", label_smoothing, "between 0 and 1")
    return F.cross_entropy(logits, y, reduction="none", label_smoothing=label_smoothing)


@LOSSES.register("bce")
def bce(logits: Tensor, y: Tensor) -> Tensor:
    """The binary cross-entropy of labels of which an example may have several, each 0 or 1."""
    logits = as_labels(logits, y)
    return F.binary_cross_entropy_with_logits(logits, y.to(logits.dtype), reduction="none")


@LOSSES.register("mse")
def mse(outputs: Tensor, y: Tensor) -> Tensor:
    """The squared error of labels that are numbers."""
    return (as_labels(outputs, y) - y).square()


@LOSSES.register("next_token")
def next_token(logits: Tensor, y: Tensor) -> Tensor:
    """The cross-entropy of each token from the logits of the one before; y are the tokens.

    Logits are [examples, tokens, words].  A token whose label is -100 has no loss.
    """
    if logits.ndim != 3 or logits.shape[:2] != y.shape or y.shape[1] < 2:
        raise InputError(
            "next_token reads logits of shape [examples, tokens, words] and as many tokens, at "
            f"least two; not {list(logits.shape)} and {list(y.shape)}"
        )
    return F.cross_entropy(*by_class(next_token, logits, y), reduction="none")


@LOSSES.register("token")
def token(logits: Tensor, y: Tensor) -> Tensor:
    """The cross-entropy of a class at each place of a text, such as a word that was masked.

    Logits are [examples, places, classes].  A place whose label is -100 has no loss.
    """
    if logits.ndim != 3 or logits.shape[:2] != y.shape:
        raise InputError(
            "token reads logits of shape [examples, places, classes] and a class at each place; "
            f"not {list(logits.shape)} and {list(y.shape)}"
        )
    return F.cross_entropy(*by_class(token, logits, y), reduction="none")


def by_class(loss: Loss, logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Logits with classes on axis 1 and the labels that they are for, as a loss pairs them."""
    if loss is token:
        return logits.mT, y
    if loss is next_token:
        return logits[:, :-1].mT, y[:, 1:]
    return logits, y


def named_loss(text: str) -> Loss:
    """The loss that a text such as ``"cross_entropy(label_smoothing=0.1)"`` names."""
    bound = LOSSES.parse(text)
    loss = per_example(bound.func)
    return partial(loss, **bound.keywords) if bound.keywords else loss


def own_loss(loss: Any) -> Loss:
    """A loss that a program passes itself, as `per_example` gives it; one to be trained is none."""
    own = dict(loss.named_parameters()) if isinstance(loss, nn.Module) else {}
    if trained := [name for name, weight in own.items() if weight.requires_grad]:
        raise InputError(
            f"{type(loss).__name__} has a parameter of its own, {trained[0]}, which nobody would "
            "train: compute with it in the model's forward, or freeze it by requires_grad_(False)"
        )
    return per_example(loss)


def per_example(loss: Any) -> Loss:
    """A loss that gives a number for each example; of torch's own, a twin that takes no mean.

    What torch's loss gives for a batch must be the mean over examples of what its twin gives.
    """
    if isinstance(loss, type):
        raise InputError(f"loss={loss.__name__} is a class: write loss={loss.__name__}()")
    name = getattr(loss, "__name__", type(loss).__name__)
    if isinstance(loss, OF_CLASSES) and loss.ignore_index != IGNORED:
        raise InputError(
            f"{name} has ignore_index={loss.ignore_index}, and gcfed leaves out labels of "
            f"{IGNORED} alone, in metrics too: set such labels to {IGNORED}, or leave the example "
            "out if it has no other"
        )
    reduction = _reduction(loss)
    if reduction is None or reduction == "none":
        return loss  # type: ignore[no-any-return]
    if reduction != "mean":
        raise InputError(
            f"{name} has reduction={reduction!r}, and gcfed takes the mean over examples: "
            "give it reduction='none'"
        )
    if isinstance(loss, OF_CLASSES) and loss.weight is not None:
        raise InputError(
            f"{name} with weights of classes divides by the weights in a batch, and gcfed by its "
            "number of examples: if that is what you want, give it reduction='none'"
        )
    if not isinstance(loss, nn.Module):
        return partial(loss, reduction="none")
    twin = copy.copy(loss)  # the caller's stays as it is
    twin.reduction = "none"  # type: ignore[assignment]
    return twin


def _reduction(loss: Any) -> str | None:
    """How a loss of torch's makes one number of a batch; None of all others."""
    if isinstance(loss, nn.Module):
        return getattr(loss, "reduction", None)
    if getattr(loss, "__module__", None) != "torch.nn.functional":
        return None
    known = inspect.signature(loss).parameters
    return known["reduction"].default if "reduction" in known else None


def is_cross_entropy(loss: Loss) -> bool:
    """Whether a loss is cross-entropy, ours or torch's, whatever its arguments."""
    function = getattr(loss, "func", loss)
    return function in (cross_entropy, F.cross_entropy) or isinstance(loss, nn.CrossEntropyLoss)


def reads_logits(loss: Loss) -> bool:
    """Whether a loss, ours or torch's, reads one output as a logit of label 1."""
    functions = bce, F.binary_cross_entropy_with_logits
    return getattr(loss, "func", loss) in functions or isinstance(loss, nn.BCEWithLogitsLoss)


def reads_probabilities(loss: Loss) -> bool:
    """Whether a loss, which is then torch's, reads one output as the probability of label 1."""
    return getattr(loss, "func", loss) is F.binary_cross_entropy or isinstance(loss, nn.BCELoss)


def is_of_numbers(loss: Loss) -> bool:
    """Whether a loss, ours or torch's, measures how far outputs are from labels."""
    functions = mse, F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss, F.poisson_nll_loss
    modules = nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss, nn.PoissonNLLLoss
    return getattr(loss, "func", loss) in functions or isinstance(loss, modules)


def as_labels(outputs: Tensor, y: Tensor) -> Tensor:
    """Outputs in the shape of labels, of which there are as many: [n, 1] becomes [n], say."""
    long = [[n for n in x.shape[1:] if n > 1] for x in (outputs, y)]
    if outputs.numel() != y.numel() or (long[0] != long[1] and min(map(len, long)) > 1):
        raise InputError(
            f"an example has outputs of shape {list(outputs.shape[1:])} and labels of shape "
            f"{list(y.shape[1:])}, where one output for each number of a label belongs"
        )
    return outputs.reshape(y.shape)
