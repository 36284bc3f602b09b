"""Clients over the cores of a CPU: processes of one thread that share the weights."""

import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial

from gcfed.core import tree
from gcfed.core.client import RECEIVED, Job, Trained
from gcfed.cpu import available_cores
from gcfed.engines.engine import Engine
from gcfed.engines.fresh_worker import packed, start_fresh
from gcfed.engines.lineup import common_task, copy
from gcfed.engines.shared_memory import allocated, can_share_memory, lay_into, shape
from gcfed.engines.worker_program import (
    ClientTrainer,
    Gradients,
    SharedTensors,
    WorkerBrief,
    trace,
)
from gcfed.errors import InputError, reason
from gcfed.kernels.layout import ChannelsLast
from gcfed.kernels.onednn import is_faster
from gcfed.processes import WorkerPool, can_fork, fork, threads


class Workers(Engine):
    """Clients over the cores of a CPU, in processes of one thread each, the longest first.

    The processes are started at the first round and live until the engine is closed: weights travel
    through shared memory, the data does not travel at all.  A step is traced once (see `tracing`),
    convolutions run channels-last, and the optimiser steps in place.
    """

    name = "workers"

    def __init__(self, *, processes: int | None = None) -> None:
        """Take so many processes, by default as many as there are cores."""
        if processes is not None and processes < 1:
            raise InputError(f"workers(processes=...) is a positive count; not {processes}")
        self._size = processes
        self._program: WorkerProgram | None = None

    def __call__(self, jobs: Sequence[Job]) -> list[Trained]:
        if self._program is None or not self._program.fits(jobs):
            self.close()
            self._program = WorkerProgram(jobs, self._size or available_cores())
        try:
            return self._program.run(jobs)
        except BaseException:
            self.close()  # what its processes are at is not known
            raise

    @property
    def products(self) -> str:
        return "by oneDNN" if is_faster() else "by torch"

    def beside(self) -> AbstractContextManager[object]:
        """With one thread: more threads of torch's here would take the cores that train clients."""
        return threads(1)

    def close(self) -> None:
        """End the processes."""
        if self._program is not None:
            self._program.close()
        self._program = None


class WorkerProgram:
    """Processes, the memory they share with this one, and the jobs these were made for."""

    def __init__(self, jobs: Sequence[Job], size: int) -> None:
        if not can_share_memory():
            raise InputError("the workers engine needs Linux; elsewhere there is sequential")
        self._data = [job.batches.data for job in jobs]
        self._kind = _kind(jobs)
        brief, gradients = _brief(jobs)
        if can_fork():  # after the trace, whose backward pass may have started threads
            self._fork(size, brief, gradients)
        else:
            self._start_fresh(size, brief)

    def _fork(self, size: int, brief: WorkerBrief, gradients: Gradients | None) -> None:
        shapes = brief.shapes()
        with allocated(shapes) as file:
            self._shared = lay_into(file, shapes)
        trainer = ClientTrainer(brief, self._shared, self._data, gradients)
        self.pool = WorkerPool(size, partial(fork, trainer.train))

    def _start_fresh(self, size: int, brief: WorkerBrief) -> None:
        """Start processes that know nothing yet; the examples go into shared memory for them."""
        examples = tuple(handle.examples.in_memory() for handle in self._data)
        shapes = brief.shapes(*examples)
        with allocated(shapes) as file:
            self._shared = lay_into(file, shapes)
            copy(self._shared.examples, examples)
            self.pool = WorkerPool(size, partial(start_fresh, file))
        try:
            self.pool.run_in_each(packed(brief, shapes, self._data))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the processes and free the memory, even while a traceback refers to this object."""
        self.pool.close()
        self._shared = SharedTensors((), ())

    def fits(self, jobs: Sequence[Job]) -> bool:
        """Whether these jobs are those it was made for, in another round."""
        same_data = [a is job.batches.data for a, job in zip(self._data, jobs, strict=False)]
        return len(jobs) == len(self._data) and all(same_data) and _kind(jobs) == self._kind

    def run(self, jobs: Sequence[Job]) -> list[Trained]:
        """Train the clients of each job; the result is good until the next call."""
        self._load(jobs)
        work = [
            (j, k, plan) for j, job in enumerate(jobs) for k, plan in enumerate(job.batches.plans)
        ]
        self.pool.run(sorted(work, key=lambda piece: -len(piece[2])))
        return [
            tree.take(trained, slice(job.num_clients))
            for trained, job in zip(self._shared.trained, jobs, strict=True)
        ]

    def _load(self, jobs: Sequence[Job]) -> None:
        """Put what a round's clients start from where the processes find it."""
        for mine, job in zip(self._shared.cohorts, jobs, strict=True):
            for field, to in mine._asdict().items():
                n = 1 if field in RECEIVED else job.num_clients
                tree.map(lambda a, b, n=n: a[:n].copy_(b[:n]), to, getattr(job.cohort, field))


def _kind(jobs: Sequence[Job]) -> object:
    """What jobs must have in common to be done by the same processes."""
    shapes = [[(p, x.shape[1:], x.dtype) for p, x in tree.leaves(job.cohort)] for job in jobs]
    width = max(job.batches.width for job in jobs)
    return [(job.task, job.room) for job in jobs], shapes, width


def _brief(jobs: Sequence[Job]) -> tuple[WorkerBrief, Gradients | None]:
    """What processes must know, and the trace of a step if there can be one."""
    task = common_task(jobs)
    first, width = tree.take(jobs[0].cohort, 0), max(job.batches.width for job in jobs)
    trained = task.finish(task.begin(first), first)
    task = replace(task, transform=ChannelsLast(task.transform))
    gradients = None
    # padding would enter the statistics, and move the numbers of global generators
    if not task.model.cross_batch and not task.own_draws:
        try:
            gradients = trace(task, first, next(jobs[0].batches.padded(0, width)))
        except InputError:
            raise
        except Exception as error:
            warnings.warn(
                f"workers run each step as it is written, which is slower: tracing it failed with "
                f"{reason(error)}",
                stacklevel=2,
            )
    brief = WorkerBrief(
        task=task,
        client=tree.map(shape, first),
        trained=tree.map(shape, trained),
        rooms=[job.room for job in jobs],
        width=width,
        traced=gradients is not None,
    )
    return brief, gradients
