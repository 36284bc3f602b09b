"""What the host does in a round beside training: draws, cohorts, means and the step.

    python -m benchmarks.host                       pfl's 50 clients a round, and the paper's 5

Clients are trained by a stand-in that gives the same answer at once, and the model is tiny, so that
what is left is Python.  A figure is the least CPU time of ten times 40 rounds.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from benchmarks.workloads import PUBLISHED, Workload, load
from gcfed import Model, Setup, simulate, tree
from gcfed.core.client import Job, Trained
from gcfed.engines.engine import FunctionEngine

TIMES, ROUNDS = 10, 40


class Tiny(nn.Module):
    """As many tensors as pfl's network, of a few numbers each."""

    head = "fc2"

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 2, 3), nn.Conv2d(2, 2, 3)
        self.fc1, self.fc2 = nn.Linear(2, 4), nn.Linear(4, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.conv2(torch.relu(self.conv1(x)))).mean((2, 3))
        logits: Tensor = self.fc2(torch.relu(self.fc1(x)))
        return logits


class StandIn:
    """Gives what a client is like that did not train."""

    def __init__(self) -> None:
        self._answer: list[Trained] = []

    def __call__(self, jobs: Sequence[Job]) -> list[Trained]:
        if not self._answer:
            for job in jobs:
                first = tree.take(job.cohort, 0)
                one = job.task.finish(job.task.begin(first), first)
                self._answer.append(tree.map(torch.clone, tree.expand(one, job.num_clients)))
        return self._answer


def measure(workload: Workload, algorithm: str) -> float:
    """The least milliseconds of CPU time that a round took."""
    made: Setup = workload.setup(algorithm, load("noise"), "sequential", "auto")
    setup = replace(made, model=Model(Tiny()), engine=FunctionEngine(StandIn()), keep=frozenset())
    rounds, found = simulate(setup), []
    for _ in range(TIMES + 1):  # the first is not counted
        began = time.process_time()
        for _ in range(ROUNDS):
            next(rounds)
        found.append(1e3 * (time.process_time() - began) / ROUNDS)
    rounds.close()
    return min(found[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--algorithm", default="fedavg")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in ("pfl", "paper"):
        workload = PUBLISHED[name]
        took = measure(workload, options.algorithm)
        print(f"{workload.name}: {took:.2f} ms a round of {workload.cohort} clients", flush=True)


if __name__ == "__main__":
    main()
