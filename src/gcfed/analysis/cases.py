"""Steps of FedAvg and of the projected method on known problems, by the library's own local step.

Weights are ``[outputs, inputs]``, as torch has them; the GC-Fed paper writes them the other way
round.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import vmap

from gcfed.algorithms import LocalGC
from gcfed.analysis.problems import Problem, draw_problems, with_centred_optimum
from gcfed.core import keys
from gcfed.core.algorithm import Algorithm
from gcfed.core.centralization import centralize
from gcfed.core.client import Client, ClientTask
from gcfed.core.model import Model
from gcfed.core.optimizer import SGD
from gcfed.core.types import Batch

METHODS: dict[str, Algorithm] = {"fedavg": Algorithm(), "projected": LocalGC()}
"""What the theorem compares; with one step a round, Global GC and GC-Fed step as Local GC does."""

BATCH_SIZE = 4
DRIFT_STEPS = 4  # that clients take apart from each other before the step that is looked at
WEIGHT = "weight"


class Case(NamedTuple):
    """Where a step is taken from: the weights of each client, and those that all began with."""

    name: str
    problem: Problem
    start: Tensor
    clients: Tensor

    @property
    def begins_a_round(self) -> bool:
        """Whether all clients still are at the start."""
        return bool((self.clients == self.start).all())

    @property
    def is_centred(self) -> bool:
        """Whether the optimum has the row means of the start."""
        return bool((self.problem.optimum - self.start).mean(-1).abs().max() < 1e-9)


class Step(NamedTuple):
    """One step of all clients, drawn many times.

    ``clients``, the weights that each ended with, and ``gradient``, the mean over clients of what
    they stepped along, begin with an axis of draws.  ``before`` is the mean of their weights before
    the step, ``mean_gradient`` what ``gradient`` is when every client takes all its examples.
    """

    lr: float
    before: Tensor
    clients: Tensor
    gradient: Tensor
    mean_gradient: Tensor

    @property
    def after(self) -> Tensor:
        """The mean of the clients' weights after the step, in each draw."""
        return self.clients.mean(1)


def draw_cases() -> list[Case]:
    """Each problem with all that the theorem assumes, with clients apart, and without."""
    cases = []
    for drawn in draw_problems():
        problem = with_centred_optimum(drawn)
        anywhere = keys.normal(keys.key(0, 6), drawn.optimum.shape).double()
        centred = centralize(anywhere)
        cases += [
            together("centred", problem, centred),
            _apart("centred, clients apart", problem, centred),
            together("start not centred", problem, anywhere),
            together("optimum not centred", drawn, centred),
        ]
    return cases


def together(name: str, problem: Problem, start: Tensor) -> Case:
    """A case with all clients at the start."""
    return Case(name, problem, start, start.expand(len(problem.x), *start.shape))


def _apart(name: str, problem: Problem, start: Tensor) -> Case:
    """A case with each client where steps of the projected method took it."""
    case = together(name, problem, start)
    for t in range(1, 1 + DRIFT_STEPS):  # the batches of 0 are for the step that is looked at
        step = take_step(case, METHODS["projected"], draw_batches(problem, 1, t))
        case = case._replace(clients=step.clients[0])
    return case


def draw_batches(problem: Problem, draws: int, t: int) -> Tensor:
    """The examples that each client takes in step ``t``, ``[draws, clients, batch]``.

    Any of its own, none twice in a batch, whatever it took in other steps.
    """
    shape = (draws, *problem.x.shape[:2])
    order = keys.uniform(keys.key(0, 7, t), shape).argsort(stable=True, dim=-1)
    return order[..., :BATCH_SIZE]


def take_step(case: Case, algorithm: Algorithm, index: Tensor) -> Step:
    """One step of every client of a case, once for each draw of batches."""
    task, weights = _task(case.problem, algorithm), case.clients[None]
    every = torch.arange(case.problem.x.shape[1]).expand(1, len(case.clients), -1)
    moved, gradient = _local_step(task, case.problem, weights.expand(len(index), -1, -1, -1), index)
    _, mean_gradient = _local_step(task, case.problem, weights, every)
    return Step(
        lr=task.optimizer.lr,
        before=case.clients.mean(0),
        clients=moved,
        gradient=gradient.mean(1),
        mean_gradient=mean_gradient[0].mean(0),
    )


def take_rounds(case: Case, algorithm: Algorithm, rounds: int, draws: int) -> Tensor:
    """The global weights, ``[draws, outputs, inputs]``, after rounds of one step each."""
    task, problem = _task(case.problem, algorithm), case.problem
    weights = case.start.expand(draws, *case.start.shape)
    for t in range(rounds):
        received = weights[:, None].expand(-1, len(problem.x), -1, -1)
        moved, _ = _local_step(task, problem, received, draw_batches(problem, draws, t))
        weights = moved.mean(1)
    return weights


def _task(problem: Problem, algorithm: Algorithm) -> ClientTask:
    """What every client does: SGD with a learning rate of half of 1/L."""
    sizes = problem.x.shape[-1], problem.y.shape[-1]
    linear = nn.Linear(*sizes, bias=False, device="meta", dtype=problem.x.dtype)
    return ClientTask(algorithm, Model(linear), problem.loss, SGD(0.5 / problem.smoothness))


def _local_step(
    task: ClientTask, problem: Problem, weights: Tensor, index: Tensor
) -> tuple[Tensor, Tensor]:
    """The weights of each client in each draw after a step, and what it stepped along."""
    client = _cohort(weights.flatten(0, 1), task.optimizer.lr)
    which = torch.arange(len(problem.x))[:, None]
    x, y = (v[which, index].flatten(0, 1) for v in (problem.x, problem.y))
    batch = Batch(x, y, torch.ones(x.shape[:2], dtype=torch.bool))
    at = vmap(task.begin)(client)
    along, _, _ = vmap(task.gradients)(at, batch, client)
    moved, _ = vmap(task.optimizer.step)(along, at.optimizer, at.params, client.lr)
    return moved[WEIGHT].reshape(weights.shape), along[WEIGHT].reshape(weights.shape)


def _cohort(anchors: Tensor, lr: float) -> Client:
    """Clients that begin a round of one step, each at its own weights."""
    n = len(anchors)
    return Client(
        anchor={WEIGHT: anchors},
        message={},
        lr=anchors.new_full((n,), lr),
        round=torch.zeros(n, dtype=torch.int64),
        memory={},
        buffers={},
        label_counts=anchors.new_zeros(n, 0),
        filled_counts=anchors.new_zeros(n, 0),
        num_examples=anchors.new_ones(n),
        num_steps=anchors.new_ones(n),
        key=torch.zeros(n, 2, dtype=torch.int64),
    )
