"""Federated problems of which everything is known: the optimum, the smoothness, every gradient.

The model is linear and has no bias, so its weights are one matrix whose rows have means.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad, jacrev

from gcfed.core import keys
from gcfed.core.losses import Loss

NUM_CLIENTS, NUM_EXAMPLES, NUM_INPUTS, NUM_OUTPUTS = 10, 20, 8, 3
NEWTON_STEPS = 10  # more than the logistic problem needs


@dataclass(frozen=True, eq=False)
class Problem:
    """Clients with as many examples each, and a smooth convex loss of a linear model.

    ``x`` is ``[clients, examples, inputs]`` and ``y`` ``[clients, examples, outputs]``.
    ``curvature`` is the largest second derivative of ``loss`` in one output.
    """

    name: str
    x: Tensor
    y: Tensor
    loss: Loss
    curvature: float

    def objective(self, weights: Tensor) -> Tensor:
        """F: the mean of the clients' mean losses at ``[outputs, inputs]`` weights."""
        x, y = self.x.flatten(0, 1), self.y.flatten(0, 1)
        return self.loss(x @ weights.T, y).mean()

    @cached_property
    def optimum(self) -> Tensor:
        """The weights where F is least."""
        start = self.x.new_zeros(self.y.shape[-1], self.x.shape[-1])
        return minimum(self.objective, start, torch.eye(start.shape[1]).to(start))

    @cached_property
    def smoothness(self) -> float:
        """L: no client's objective bends more than this in any direction."""
        products = self.x.mT @ self.x / self.x.shape[1]
        return self.curvature * float(torch.linalg.eigvalsh(products).max())


def squared_error(outputs: Tensor, y: Tensor) -> Tensor:
    """Half the squared distance between an example's outputs and its targets."""
    return 0.5 * (outputs - y).square().sum(-1)


def logistic_loss(outputs: Tensor, y: Tensor) -> Tensor:
    """The sum over an example's outputs of the logistic loss, each output with a 0 or 1 of its own.

    With a softmax the optimum would not be a single point: a row added to all rows changes nothing.
    """
    return F.binary_cross_entropy_with_logits(outputs, y, reduction="none").sum(-1)


def draw_problems() -> list[Problem]:
    """A least-squares and a logistic problem whose clients differ, in what they see and expect."""
    x = _normal(1, NUM_CLIENTS, NUM_EXAMPLES, NUM_INPUTS) + _normal(2, NUM_CLIENTS, 1, NUM_INPUTS)
    of_all = _normal(3, NUM_OUTPUTS, NUM_INPUTS)
    of_each = _normal(4, NUM_CLIENTS, NUM_OUTPUTS, NUM_INPUTS)
    outputs = x @ (0.5 * of_all + 0.5 * of_each).mT
    noisy = outputs + _normal(5, *outputs.shape)
    return [
        Problem("least squares", x, noisy, squared_error, 1.0),
        Problem("logistic", x, (noisy > 0).double(), logistic_loss, 0.25),
    ]


def with_centred_optimum(problem: Problem) -> Problem:
    """The same problem in other coordinates, in which each row of the optimum has mean zero.

    If inputs and weights are reflected together, every loss stays as it is.  The reflection swaps
    the direction e, along which rows have their means, with the nearest one that the optimum maps
    to zero.
    """
    w = problem.optimum
    e = F.normalize(torch.ones_like(w[0]), dim=0)
    unused = F.normalize(e - torch.linalg.pinv(w) @ (w @ e), dim=0)
    normal = F.normalize(unused - e, dim=0)
    return replace(problem, x=problem.x - 2 * (problem.x @ normal)[..., None] * normal)


def minimum(objective: Callable[[Tensor], Tensor], start: Tensor, directions: Tensor) -> Tensor:
    """Where a strictly convex function is least, by Newton's method from not too far away.

    Of all weights that come of ``start`` by adding multiples of the rows of ``directions`` to its
    rows.
    """

    def reached(amounts: Tensor) -> Tensor:
        return start + amounts.reshape(len(start), -1) @ directions

    slope = grad(lambda amounts: objective(reached(amounts)))
    amounts = start.new_zeros(len(start) * len(directions))
    for _ in range(NEWTON_STEPS):
        amounts = amounts - torch.linalg.solve(jacrev(slope)(amounts), slope(amounts))
    return reached(amounts)


def _normal(part: int, *shape: int) -> Tensor:
    """Standard normal numbers, others for each part of a problem."""
    return keys.normal(keys.key(0, part), shape).double()
