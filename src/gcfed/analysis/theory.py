r"""Lemma 1 and Theorem 1 of the GC-Fed paper, term by term, on problems whose optimum is known.

The letters are the paper's: :math:`\bar w` is the mean of the clients' weights before a step,
:math:`w^*` the optimum, G the mean of the clients' gradients on a batch each, :math:`\bar G` the
mean of their gradients on all their examples, e the unit vector along which rows have their means.
A gap is the squared distance from the optimum.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from gcfed.analysis.cases import Case, Step
from gcfed.analysis.problems import minimum
from gcfed.core.centralization import centralize


class Terms(NamedTuple):
    """The terms of Lemma 1 as the paper prints them; those of a draw have an axis of draws."""

    gap_before: Tensor
    b1: Tensor
    b2: Tensor
    a1: Tensor
    a2: Tensor
    a3: Tensor
    gap_after: Tensor

    @property
    def error(self) -> float:
        """How far the identities are from holding in any draw, with A3 subtracted."""
        first = self.a1 - (self.gap_before + self.b1 + self.b2)
        return max(_largest(first), _largest(self.gap_after - (self.a1 + self.a2 - self.a3)))

    @property
    def error_as_printed(self) -> float:
        """The same with A3 added, as the paper has it."""
        return _largest(self.gap_after - (self.a1 + self.a2 + self.a3))


def terms_of(step: Step, optimum: Tensor) -> Terms:
    """The terms of a step, of the gradients that the method itself steps along."""
    offset, noise = step.before - optimum, step.gradient - step.mean_gradient
    expected = offset - step.lr * step.mean_gradient
    return Terms(
        gap_before=_square(offset),
        b1=-2 * step.lr * _dot(offset, step.mean_gradient),
        b2=step.lr**2 * _square(step.mean_gradient),
        a1=_square(expected),
        a2=step.lr**2 * _square(noise),
        a3=2 * step.lr * _dot(expected, noise),
        gap_after=_square(step.after - optimum),
    )


class Advantage(NamedTuple):
    r"""By how much the gap of FedAvg exceeds that of the projected method, and what it should be.

    - ``stochastic``: :math:`\eta^2 \|e^\top G\|^2`; ``mean``: the same of :math:`\bar G`.
    - ``variance``: :math:`\eta^2 \|e^\top (G - \bar G)\|^2`.
    - ``off_centre``: :math:`-2\eta \langle e^\top(\bar w - w^*), e^\top G\rangle`, zero where start
      and optimum are centred.
    """

    measured: Tensor
    stochastic: Tensor
    mean: Tensor
    variance: Tensor
    off_centre: Tensor

    @property
    def printed(self) -> Tensor:
        """What the theorem says."""
        return self.stochastic + self.variance

    @property
    def proved(self) -> Tensor:
        """What the proof of the theorem comes to."""
        return self.mean + self.variance

    @property
    def error(self) -> float:
        """How far ``measured = stochastic + off_centre`` is from holding in any draw."""
        return _largest(self.measured - self.stochastic - self.off_centre)


def advantage_of(fedavg: Step, projected: Step, optimum: Tensor) -> Advantage:
    """What the theorem is about, for two steps from the same weights on the same batches."""
    lr = fedavg.lr
    gradient, mean = along_e(fedavg.gradient), along_e(fedavg.mean_gradient)
    return Advantage(
        measured=_square(fedavg.after - optimum) - _square(projected.after - optimum),
        stochastic=lr**2 * gradient.square().sum(-1),
        mean=lr**2 * mean.square().sum(-1),
        variance=lr**2 * (gradient - mean).square().sum(-1),
        off_centre=-2 * lr * (along_e(fedavg.before - optimum) * gradient).sum(-1),
    )


class Discrepancy(NamedTuple):
    """What the projected method loses where it cannot reach the optimum, as excess of F.

    It never leaves the plane of weights that have the row means of its start.  ``nearest`` is the
    excess at the point of the plane that is nearest to the optimum, ``limit`` that at the point
    where F is least, ``apart`` the distance of the two, and ``bound`` is (L/2) times the squared
    distance of the optimum from the plane.
    """

    nearest: float
    limit: float
    apart: float
    bound: float


def discrepancy_of(case: Case) -> Discrepancy:
    """How much worse than at the optimum F is where the projected method must end."""
    problem, best = case.problem, case.problem.optimum
    offset = best - case.start
    missed = offset - centralize(offset)
    nearest, limit = best - missed, limit_of(case)
    return Discrepancy(
        nearest=(problem.objective(nearest) - problem.objective(best)).item(),
        limit=(problem.objective(limit) - problem.objective(best)).item(),
        apart=(limit - nearest).norm().item(),
        bound=0.5 * problem.smoothness * _square(missed).item(),
    )


def limit_of(case: Case) -> Tensor:
    """The weights with the row means of the start at which F is least."""
    best = case.problem.optimum
    nearest = centralize(best) + case.start - centralize(case.start)
    in_plane = centralize(torch.eye(best.shape[1]).to(best))[:-1]
    return minimum(case.problem.objective, nearest, in_plane)


class Estimate(NamedTuple):
    """A mean over draws and its standard error."""

    mean: float
    error: float


def estimate(values: Tensor) -> Estimate:
    """The mean of numbers drawn independently, and how far it may be from their expectation."""
    return Estimate(values.mean().item(), values.std().item() / math.sqrt(len(values)))


def gaps(weights: Tensor, optimum: Tensor) -> Tensor:
    """The squared distance from the optimum, in each draw."""
    return _square(weights - optimum)


def along_e(weights: Tensor) -> Tensor:
    """The part of each row along e: its mean, times the root of its length."""
    return weights.mean(-1) * math.sqrt(weights.shape[-1])


def _square(weights: Tensor) -> Tensor:
    return _dot(weights, weights)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum((-2, -1))


def _largest(values: Tensor) -> float:
    return values.abs().max().item()
