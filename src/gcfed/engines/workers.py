"""Clients over the cores of a CPU: forked processes of one thread that share the weights."""

import ctypes
import multiprocessing
import os
import signal
import sys
import traceback
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any, cast

import torch
from torch import Tensor
from torch.fx import Graph

from gcfed.core import keys, tree
from gcfed.core.batches import Batches, BatchPlan
from gcfed.core.client import RECEIVED, Client, Job, Progress, Trained
from gcfed.core.types import Batch
from gcfed.engines.lineup import common_task
from gcfed.engines.tracing import Traced
from gcfed.errors import InputError
from gcfed.kernels.inplace import reuse_memory
from gcfed.kernels.layout import ChannelsLast, channels_last, lay_out_pooling


def available_cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def can_fork() -> bool:
    """Whether this system forks processes; those it starts afresh would need all data sent."""
    return "fork" in multiprocessing.get_all_start_methods() and sys.platform == "linux"


def keep_freed_memory() -> None:
    """Have this process, and those it forks, use freed memory again.

    glibc gives large blocks back to the system, and then every page of the next one costs a fault:
    more than what many layers compute.
    """
    with suppress(AttributeError, OSError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_THRESHOLD, 2**25)  # the largest that it takes
        mallopt(M_TRIM_THRESHOLD, 2**30)


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h


class Workers:
    """Clients over the cores of a CPU, in processes of one thread each, the longest first.

    The processes are forked at the first round and live on: weights travel through shared memory,
    the data does not travel at all.  A step is traced once (see `tracing`), convolutions run
    channels-last, and the optimiser steps in place.
    """

    name = "workers"

    def __init__(self, processes: int | None = None) -> None:
        self._processes = processes
        self._pool: WorkerPool | None = None
        self._program: WorkerProgram | None = None

    def __call__(self, jobs: Sequence[Job]) -> list[Trained]:
        """Train the clients of each job."""
        if self._program is None or not self._program.fits(jobs):
            self.close()
            self._program = WorkerProgram(jobs)
            keep_freed_memory()
            self._pool = WorkerPool(self._processes or available_cores(), self._program.train)
        assert self._pool is not None
        self._program.load(jobs)
        work = [
            (j, k, plan) for j, job in enumerate(jobs) for k, plan in enumerate(job.batches.plans)
        ]
        try:
            self._pool.run(sorted(work, key=lambda w: -len(w[2])))
        except BaseException:
            self.close()  # what its processes are at is not known
            raise
        return self._program.results()

    def close(self) -> None:
        """End the processes; the next round forks new ones."""
        if self._pool is not None:
            self._pool.close()
        self._pool = self._program = None


class WorkerProgram:
    """What the processes do, and the memory they share with this one."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        task = common_task(jobs)
        self.task = replace(task, transform=ChannelsLast(task.transform))
        self.data = [job.batches.data for job in jobs]
        self.width = max(job.batches.width for job in jobs)
        first = tree.take(jobs[0].cohort, 0)
        self.cohorts = [_shared(first, job.room) for job in jobs]
        self.counts = [job.num_clients for job in jobs]
        self.key = self._key(jobs)
        example = task.finish(task.begin(first), first)
        self.trained = [tree.map(lambda x, n=job.room: _empty(n, x), example) for job in jobs]
        self.gradients = self._trace(first, next(jobs[0].batches.padded(0, self.width)))

    def _key(self, jobs: Sequence[Job]) -> object:
        shapes = [[(p, x.shape[1:], x.dtype) for p, x in tree.leaves(job.cohort)] for job in jobs]
        return [(job.task, job.room) for job in jobs], shapes

    def fits(self, jobs: Sequence[Job]) -> bool:
        """Whether these jobs are those it was made for, in another round."""
        same_data = all(a is job.batches.data for a, job in zip(self.data, jobs, strict=False))
        return (
            len(jobs) == len(self.data)
            and same_data
            and max(job.batches.width for job in jobs) == self.width
            and self._key(jobs) == self.key
        )

    def _trace(self, client: Client, batch: Batch) -> Traced[tuple[Any, Tensor, Any]] | None:
        if self.task.model.cross_batch:  # padding would enter the statistics
            return None
        try:
            at = _laid_out(self.task.begin(client))
            return Traced(self.task.gradients, at, batch, client, change=_for_a_cpu)
        except InputError:
            raise
        except Exception as error:
            warnings.warn(
                f"workers run each step as it is written, which is slower: tracing it failed with "
                f"{type(error).__name__}: {str(error).splitlines()[0]}",
                stacklevel=2,
            )
            return None

    def load(self, jobs: Sequence[Job]) -> None:
        """Put what a round's clients start from where the processes find it."""
        for mine, job in zip(self.cohorts, jobs, strict=True):
            for field, to in mine._asdict().items():
                n = 1 if field in RECEIVED else job.num_clients
                tree.map(lambda a, b, n=n: a[:n].copy_(b[:n]), to, getattr(job.cohort, field))
        self.counts = [job.num_clients for job in jobs]

    def results(self) -> list[Trained]:
        return [
            tree.take(trained, slice(n))
            for trained, n in zip(self.trained, self.counts, strict=True)
        ]

    def train(self, j: int, k: int, plan: BatchPlan) -> None:
        """Train client ``k`` of job ``j``; what comes of it goes into shared memory."""
        client, batches = tree.take(self.cohorts[j], k), Batches(self.data[j], [plan])
        with keys.untouched(), torch.no_grad():
            at = self._steps(self.task.begin(client), batches, client)
            trained = self.task.finish(at, client)
        tree.map(lambda to, x: to[k].copy_(x), self.trained[j], trained)

    def _steps(self, at: Progress, batches: Batches, client: Client) -> Progress:
        if self.gradients is None:
            for batch in batches.of(0):
                at = self.task.step(at, batch, client)
            return at
        at = _laid_out(at)
        params = list(at.params.values())
        fixed = [x for _, x in tree.leaves(client)]
        step = self.task.optimizer.in_place(params, client.lr.item())
        for batch in batches.padded(0, self.width):
            flat = [*(x for _, x in tree.leaves((at, batch))), *fixed]
            grads, loss, buffers = self.gradients.on_leaves(flat)
            step([_laid_as(p, g) for p, g in zip(params, grads.values(), strict=True)])
            del grads  # their memory serves the next ones
            at = at._replace(buffers=buffers, steps=at.steps + 1, loss=at.loss + loss)
        return at


class WorkerPool:
    """Forked processes that call one function; each takes the next piece of work when free."""

    def __init__(self, size: int, call: Callable[..., None]) -> None:
        context = multiprocessing.get_context("fork")
        self._pipes: list[Connection] = []
        self._processes = []
        for _ in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve, args=(theirs, [*self._pipes, ours], call), daemon=True
            )
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        self._finalizer = weakref.finalize(self, _end, self._pipes, self._processes)

    def run(self, work: Iterable[tuple[Any, ...]]) -> None:
        """Have every piece done; the first error is raised here once all have ended."""
        queue, busy, failure = deque(work), list[Connection](), None
        for pipe in self._pipes[: len(queue)]:
            _send(pipe, queue.popleft())
            busy.append(pipe)
        while busy:
            for pipe in cast(list[Connection], wait(busy)):
                failure = _answer(pipe) or failure
                if queue and failure is None:
                    _send(pipe, queue.popleft())
                else:
                    busy.remove(pipe)
        if failure is not None:
            raise failure

    def close(self) -> None:
        self._finalizer()


workers = Workers()


def _send(pipe: Connection, piece: tuple[Any, ...]) -> None:
    with suppress(OSError):  # a process that is gone says so when it is asked for its answer
        pipe.send(piece)


def _answer(pipe: Connection) -> Exception | None:
    try:
        error: Exception | None = pipe.recv()
        return error
    except (EOFError, OSError):
        return RuntimeError("a worker process ended; was it killed for want of memory?")


def _serve(pipe: Connection, others: Sequence[Connection], call: Callable[..., None]) -> None:
    """The life of a process: until the other end is closed."""
    for other in others:  # inherited; held open here, they would hide that the parent is gone
        other.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    torch.set_num_threads(1)
    while True:
        try:
            piece = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            call(*piece)
            answer: Exception | None = None
        except InputError as error:
            answer = error
        except Exception:
            answer = RuntimeError(f"in a worker process:\n{traceback.format_exc()}")
        with suppress(OSError):  # the parent has gone: the next look says so
            pipe.send(answer)


def _end(pipes: Sequence[Connection], processes: Sequence[Any]) -> None:
    for pipe in pipes:
        pipe.close()
    for process in processes:
        process.join(timeout=5)
        if process.is_alive():
            process.terminate()


def _shared(one: Client, room: int) -> Client:
    """Memory for so many clients that forked processes see too; what all receive is there once."""

    def memory(field: str, x: Tensor) -> Tensor:
        return _empty(1 if field in RECEIVED else room, x).expand(room, *x.shape)

    fields = one._asdict().items()
    return Client(**{field: tree.map(partial(memory, field), value) for field, value in fields})


def _empty(count: int, like: Tensor) -> Tensor:
    memory = torch.empty(count, *like.shape, dtype=like.dtype)
    return memory.share_memory_()  # type: ignore[no-any-return, no-untyped-call]


def _for_a_cpu(graph: Graph) -> None:
    lay_out_pooling(graph)
    reuse_memory(graph)


def _laid_as(p: Tensor, g: Tensor) -> Tensor:
    return g if g.stride() == p.stride() else torch.empty_like(p).copy_(g)


def _laid_out(at: Progress) -> Progress:
    """Weights of its own to step in place, as the convolutions like them."""
    return at._replace(params=tree.map(lambda w: channels_last(w.clone()), at.params))
