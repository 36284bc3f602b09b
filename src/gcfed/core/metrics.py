"""What a model is judged by: accuracy, R2, ..., a function of one's own, or a torchmetric."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from gcfed.core import measures
from gcfed.core.ignored import example_means
from gcfed.core.losses import as_labels, by_class, per_example
from gcfed.errors import InputError
from gcfed.registry import Registry

PerExample = Callable[[Tensor, Tensor], Tensor]
"""A number, or a row of numbers, for each example, from logits and labels."""

Better = Literal["higher", "lower"]


@dataclass(frozen=True)
class Scale:
    """How the values of a metric are read: its name, which are better, whether in percent."""

    name: str
    better: Better = "higher"
    percent: bool = False

    @property
    def sign(self) -> int:
        """The better of two values is the larger one after both are multiplied by this."""
        return 1 if self.better == "higher" else -1

    @property
    def unit(self) -> str:
        """What stands behind its name at the head of a column or on an axis."""
        return " (%)" if self.percent else ""

    def text(self, value: float | None, sign: str = "") -> str:
        """A value in a column under that unit; with ``sign="+"`` a positive one has a plus.

        >>> Scale("accuracy", percent=True).text(0.5), Scale("loss", "lower").text(1 / 3)
        ('50.00', '0.3333')
        """
        if value is None:
            return "-"
        if self.percent:
            return f"{100 * value:{sign}.2f}"
        is_small = 0 < abs(value) < 0.001  # four digits would show little of it
        return f"{value:{sign}.3g}" if is_small else f"{value:{sign}.4f}"

    def quantity(self, value: float | None) -> str:
        """A value that stands alone, with its unit."""
        return self.text(value) + (" %" if self.percent and value is not None else "")

    def __str__(self) -> str:
        return self.name if self.better == "higher" else f"{self.name} (lower is better)"


@dataclass(frozen=True)
class Metric:
    """How well a model does, as the mean over examples of what ``of`` gives for each.

    Without ``of`` that is the run's own loss.  ``final`` makes the result, of one mean for each
    number in the rows that ``of`` gives or of the mean loss; without it, a row counts by its mean.
    With ``classes``, labels are classes, and others are refused before a run; ``of`` then gets
    logits with the classes on axis 1, wherever the loss has them.
    """

    of: PerExample | None = None
    better: Better = "higher"
    percent: bool = False
    final: Callable[[Tensor], Tensor] | None = None
    classes: bool = False

    def scale(self, name: str) -> Scale:
        return Scale(name, self.better, self.percent)

    def pair(self, logits: Tensor, y: Tensor, loss: PerExample) -> tuple[Tensor, Tensor]:
        """The logits and labels that ``of`` gets."""
        return by_class(loss, logits, y) if self.classes else (logits, y)

    def columns(self, logits: Tensor, y: Tensor, loss: PerExample) -> tuple[Tensor, ...]:
        """What is to be averaged over examples: a column for each of the means of `final`.

        The first column, before these, says which examples count: all but those whose labels are
        all ignored (see `gcfed.core.ignored`).
        """
        logits, y = self.pair(logits, y, loss)
        values = (self.of or loss)(logits, y).double()
        everything = torch.ones(len(y), dtype=torch.float64, device=values.device)
        if self.of is not None and self.final is not None:
            return (everything, *values.reshape(len(y), -1).unbind(1))
        means, counted = example_means(values, y)
        return everything if counted is None else counted.double(), means

    def result(self, means: Tensor) -> float:
        """The value of the metric, of the means of its columns over all examples."""
        means = means[1:] / means[0]
        return (means if self.final is None else self.final(means)).item()


@runtime_checkable
class Updated(Protocol):
    """What is told of batch after batch and then asked for its value: a torchmetrics ``Metric``."""

    def update(self, outputs: Any, y: Any, /) -> object: ...

    def compute(self) -> Any: ...

    def reset(self) -> object: ...

    def to(self, device: Any, /) -> Any: ...


@dataclass(frozen=True)
class BatchMetric:
    """How well a model does, as a metric of torchmetrics says that is told of every batch.

    Without ``better`` the metric itself says it, and if it does not, higher is better.
    """

    of: Updated
    better: Better | None = None
    percent: bool = False

    def scale(self, name: str) -> Scale:
        higher = getattr(self.of, "higher_is_better", None) is not False
        return Scale(name, self.better or ("higher" if higher else "lower"), self.percent)

    def begin(self, device: torch.device) -> "Judgement":
        """What one model is judged by: a copy, so that models and rounds share nothing."""
        own = copy.deepcopy(self.of)
        own.reset()
        return Judgement(own.to(device))


class Judgement:
    """A metric of torchmetrics on its way through the batches of one model."""

    def __init__(self, metric: Updated) -> None:
        self._metric = metric

    def add(self, outputs: Tensor, y: Tensor) -> None:
        self._metric.update(as_labels(outputs, y) if outputs.numel() == y.numel() else outputs, y)

    def result(self) -> float:
        found = torch.as_tensor(self._metric.compute())
        if found.numel() != 1:
            raise InputError(f"it gives numbers of shape {list(found.shape)}, where one belongs")
        return found.item()


AnyMetric = Metric | BatchMetric

Metrics = Mapping[str, AnyMetric | PerExample | Updated]
"""Metrics by name; of a plain function, higher values are better."""

METRICS: Registry[Callable[[], AnyMetric | Updated]] = Registry("metric")


@METRICS.register("accuracy")
def accuracy() -> Metric:
    """The share of examples whose largest logit is that of their label; higher is better.

    One logit alone tells label 1, where it is above 0, from label 0.
    """
    return Metric(measures.is_correct, percent=True, classes=True)


@METRICS.register("top5")
def top5() -> Metric:
    """The share of examples whose label is among the five largest logits; higher is better."""
    return Metric(measures.is_among_five, percent=True, classes=True)


@METRICS.register("macro_f1")
def macro_f1() -> Metric:
    """The F1 score of each class, or of each label that may be 0 or 1, as a mean; higher is better.

    A class that neither occurs nor is predicted is left out.
    """
    return Metric(measures.hits_and_misses, percent=True, final=measures.macro_f1, classes=True)


@METRICS.register("loss")
def loss() -> Metric:
    """The mean of the loss that clients train with; lower is better."""
    return Metric(better="lower")


@METRICS.register("perplexity")
def perplexity() -> Metric:
    """The exponential of the mean loss; lower is better."""
    return Metric(better="lower", final=torch.exp)


@METRICS.register("mae")
def mae() -> Metric:
    """The mean absolute error of labels that are numbers; lower is better."""
    return Metric(measures.absolute_error, better="lower")


@METRICS.register("r2")
def r2() -> Metric:
    """The share of the variance of labels, which are numbers, that is explained; higher is better.

    With several outputs it is the mean over them.
    """
    return Metric(measures.moments, final=measures.r2)


def named(text: str) -> AnyMetric:
    """The metric that a text such as ``"accuracy"`` names."""
    made = METRICS.parse(text)
    try:
        found = made()
    except TypeError as error:
        raise InputError(f"metric {text} cannot be made: {error}") from None
    if isinstance(found, Updated):
        return BatchMetric(found)
    if not isinstance(found, AnyMetric):
        raise InputError(f"metric {text} gave a {type(found).__name__}, where a Metric belongs")
    return found


def as_metrics(metrics: Metrics) -> dict[str, AnyMetric]:
    """Metrics by name, those of torchmetrics and plain functions among them made into ours."""
    made = {name: _as_metric(metric) for name, metric in metrics.items()}
    if made.get("loss", loss()) != loss():
        raise InputError(
            "the metric called loss is the mean of what clients minimise: "
            "give your own another name"
        )
    return made


def _as_metric(metric: AnyMetric | PerExample | Updated) -> AnyMetric:
    if isinstance(metric, AnyMetric):
        return metric
    return BatchMetric(metric) if isinstance(metric, Updated) else Metric(per_example(metric))
