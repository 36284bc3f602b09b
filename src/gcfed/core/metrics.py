"""What a model is judged by: accuracy, the loss, perplexity, R2, or a function of one's own."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gcfed.core.ignored import example_means
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
    """

    of: PerExample | None = None
    better: Better = "higher"
    percent: bool = False
    final: Callable[[Tensor], Tensor] | None = None

    def scale(self, name: str) -> Scale:
        return Scale(name, self.better, self.percent)

    def columns(self, logits: Tensor, y: Tensor, loss: PerExample) -> tuple[Tensor, ...]:
        """What is to be averaged over examples: a column for each of the means of `final`.

        The first column, before these, says which examples count: all but those whose labels are
        all ignored (see `gcfed.core.ignored`).
        """
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


Metrics = Mapping[str, Metric | PerExample]
"""Metrics by name; of a plain function, higher values are better."""

METRICS: Registry[Callable[[], Metric]] = Registry("metric")


@METRICS.register("accuracy")
def accuracy() -> Metric:
    """The share of examples whose largest logit is that of their label; higher is better."""
    return Metric(_is_correct, percent=True)


@METRICS.register("loss")
def loss() -> Metric:
    """The mean of the loss that clients train with; lower is better."""
    return Metric(better="lower")


@METRICS.register("perplexity")
def perplexity() -> Metric:
    """The exponential of the mean loss; lower is better."""
    return Metric(better="lower", final=torch.exp)


@METRICS.register("r2")
def r2() -> Metric:
    """The share of the variance of labels, which are numbers, that is explained; higher is better.

    With several outputs it is the mean over them.
    """
    return Metric(_moments, final=_r2)


def named(text: str) -> Metric:
    """The metric that a text such as ``"accuracy"`` names."""
    made = METRICS.parse(text)
    try:
        found = made()
    except TypeError as error:
        raise InputError(f"metric {text} cannot be made: {error}") from None
    if not isinstance(found, Metric):
        raise InputError(f"metric {text} gave a {type(found).__name__}, where a Metric belongs")
    return found


def as_metrics(metrics: Metrics) -> dict[str, Metric]:
    """Metrics by name, plain functions among them made into metrics."""
    return {name: m if isinstance(m, Metric) else Metric(m) for name, m in metrics.items()}


def _is_correct(logits: Tensor, y: Tensor) -> Tensor:
    return logits.argmax(1) == y


def _moments(outputs: Tensor, y: Tensor) -> Tensor:
    """The squared error, the label and its square, for each output of each example."""
    y = y.double().reshape(len(y), -1)
    error = outputs.double().reshape(y.shape) - y
    return torch.cat([error.square(), y, y.square()], 1)


def _r2(means: Tensor) -> Tensor:
    error, y, squares = means.reshape(3, -1).unbind()
    return (1 - error / (squares - y.square())).mean()
