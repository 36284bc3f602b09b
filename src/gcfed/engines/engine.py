"""What an engine is: it trains cohorts, and it has a life that ends."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar, Self

import torch

from gcfed.core.client import ClientTask, Job, Trained
from gcfed.engines.recorder import Recorder

Train = Callable[[Sequence[Job]], list[Trained]]
"""Trains the cohorts of one or several runs; each goes out as it came, clients stacked."""


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
        """What models are judged by: the clients' task, by the layers that an engine has for it."""
        return task

    def beside(self) -> AbstractContextManager[object]:
        """Inside, the process that has clients trained does its own part of a round."""
        return nullcontext()

    def recorder_on(self, device: torch.device) -> Recorder | None:
        """What records work on a device that goes on by itself; None where all is done at once."""
        return None

    def prepare(self, device: torch.device) -> None:  # noqa: B027 (many engines need nothing)
        """Begin, beside what comes before the first round, with what takes long on a device."""

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
