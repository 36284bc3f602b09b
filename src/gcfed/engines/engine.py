"""What an engine is: it trains cohorts, and it has a life that ends."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar, Self

import torch

from gcfed.core.client import ClientTask, Job, Trained
from gcfed.engines.recorder import Recorder

Train = Callable[[Sequence[Job]], list[Trained]]
"""Trains the cohorts of one or several runs; gives a result for each, its clients stacked."""


class Engine(ABC):
    """Trains cohorts, and holds what it needs for that from its first call until it is closed.

    A subclass says what it is called, whether it pads short batches, and whether it works on a CUDA
    device alone.
    """

    name: ClassVar[str] = "own"
    pads: bool = False
    needs_cuda: bool = False

    @abstractmethod
    def __call__(self, jobs: Sequence[Job]) -> list[Trained]:
        """Train the clients of each job; the result is good until the next call."""

    @property
    def products(self) -> str:
        """Who multiplies large matrices on a CPU, which decides their last bits."""
        return "by torch"

    def test_task(self, task: ClientTask) -> ClientTask:
        """The clients' task as models are evaluated by it: with the engine's own layers, if any."""
        return task

    def beside(self) -> AbstractContextManager[object]:
        """Inside, the calling process does its own part of a round, such as the server's step."""
        return nullcontext()

    def recorder_on(self, device: torch.device) -> Recorder | None:
        """A recorder for a device that works asynchronously; None where operations are awaited."""
        return None

    def prepare(self, device: torch.device) -> None:  # noqa: B027 (many engines need nothing)
        """Start slow preparations for a device, which go on while the first round is made ready."""

    def close(self) -> None:  # noqa: B027 (many engines hold nothing)
        """Let go of processes, graphs and memory; the next call starts anew."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class FunctionEngine(Engine):
    """A function of jobs as an engine."""

    def __init__(self, train: Train) -> None:
        self._train = train

    def __call__(self, jobs: Sequence[Job]) -> list[Trained]:
        return self._train(jobs)
