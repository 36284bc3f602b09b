"""Reads examples one by one from people's data, each under a seed, here or in processes."""

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gcfed.core.lazy import ReadRequest
from gcfed.core.seeding import drawn_since, generators_kept, seed_all, states
from gcfed.cpu import available_cores
from gcfed.errors import InputError
from gcfed.pickling import by_value, unpacked
from gcfed.processes import (
    FreshProcess,
    Process,
    Question,
    WorkerPool,
    fork,
    serve,
)

MOST_PROCESSES = 8
"""So many read at most, unless more are asked for."""

TRIES = 8  # an image that is flipped half of the time is the same so often once in 128 times
LABELS_AT_ONCE = 256

ReadItem = Callable[[int], tuple[np.ndarray, Any]]
"""The input and the label of an example, by its number."""


class Items(NamedTuple):
    """``size`` examples that ``read`` reads; ``where`` names them in errors."""

    read: ReadItem
    size: int
    where: str

    def is_random(self) -> bool:
        """Whether to read the first example draws from a generator that can be seeded.

        One that reads differently under the same seed is refused: no run could be repeated.
        """
        with generators_kept():
            first, is_random = self._tried()
            for again, _ in (self._tried() for _ in range(TRIES - 1)):
                if not all(map(_is_same, first, again)):
                    raise InputError(
                        f"{self.where} example 0 is another each time that it is read, and neither "
                        "Python's random, numpy.random nor torch makes it so: have transforms draw "
                        "from one of these (without a Generator of their own), which gcfed seeds, "
                        "so that runs can be repeated"
                    )
        return is_random

    def _tried(self) -> tuple[tuple[np.ndarray, Any], bool]:
        seed_all(0)
        before = states()
        item = self.read(0)
        return item, drawn_since(before)

    def inputs(self, request: ReadRequest) -> np.ndarray:
        """The inputs of some examples, stacked."""
        out = np.empty(0)
        for place, (i, (x, _)) in enumerate(self._seeded(request)):
            if place == 0:
                out = np.empty((len(request.numbers), *x.shape), x.dtype)
            if (x.shape, x.dtype) != (out.shape[1:], out.dtype):
                kinds = " and ".join(f"{v.dtype} of shape {list(v.shape)}" for v in (out[0], x))
                raise InputError(f"{self.where} example {i} is not like others: {kinds}")
            if x.dtype.kind == "f" and not np.isfinite(x).all():
                raise InputError(f"{self.where} example {i} holds a number that is not finite")
            out[place] = x
        return out

    def labels(self, request: ReadRequest) -> list[Any]:
        """The labels of some examples."""
        return [label for _, (_, label) in self._seeded(request)]

    def _seeded(self, request: ReadRequest) -> Iterator[tuple[int, tuple[np.ndarray, Any]]]:
        with generators_kept():
            for i, seed in zip(request.numbers.tolist(), request.seeds.tolist(), strict=True):
                seed_all(seed)
                yield i, self.read(i)

    def work(self, what: str, request: ReadRequest) -> Any:
        """What a reading process does when it is asked."""
        return self.labels(request) if what == "labels" else self.inputs(request)


class ItemReader:
    """Reads `Items` for `LazyInputs`: the next batches ahead, by ``processes`` of its own.

    The processes are started when there is something to read ahead, and end with the reader.  In a
    process that trains clients, others of which read at the same time, it reads by itself.
    """

    def __init__(self, items: Items, processes: int | None, why: str) -> None:
        self.items, self.why = items, why
        self.processes = _usual_processes() if processes is None else processes
        first = items.inputs(ReadRequest(np.zeros(1, np.int64), np.zeros(1, np.uint64)))
        self.shape = torch.Size(first.shape[1:])
        self.dtype = torch.from_numpy(first).dtype
        self._home = os.getpid()
        self._pool: WorkerPool | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.items, 0, self.why)

    def stream(self, requests: Iterable[ReadRequest]) -> Iterator[Tensor]:
        """What each request asks for, stacked, in order."""
        waiting: deque[np.ndarray] = deque()

        def once() -> Iterator[ReadRequest]:
            for request in requests:
                short, places = _once(request)
                waiting.append(places)
                yield short

        for read in self._answers("inputs", once()):
            places = waiting.popleft()
            yield torch.from_numpy(read if len(read) == len(places) else read[places])

    def labels(self) -> list[Any]:
        """The labels of all examples, for which all must be read once."""
        numbers = np.arange(self.items.size)
        parts = np.split(numbers, range(LABELS_AT_ONCE, len(numbers), LABELS_AT_ONCE))
        requests = (ReadRequest(part, part.astype(np.uint64)) for part in parts)
        return [label for labels in self._answers("labels", requests) for label in labels]

    def _answers(self, what: str, requests: Iterable[ReadRequest]) -> Iterator[Any]:
        """What comes of each request, of which as many are under way as there are processes."""
        rest = iter(requests)
        begun = list(islice(rest, 2))
        if len(begun) < 2 or not self.processes or os.getpid() != self._home:
            yield from (self.items.work(what, request) for request in chain(begun, rest))
            return
        pool, asked = self._opened(), deque[Question]()
        for request in chain(begun, rest):
            asked.append(pool.ask(what, request))
            if len(asked) > self.processes:
                yield asked.popleft().answer()
        for question in asked:
            yield question.answer()

    def close(self) -> None:
        """End the processes; when there is something to read ahead, others begin."""
        if self._pool is not None:
            self._pool.close()
        self._pool = None

    def _opened(self) -> WorkerPool:
        if self._pool is None:
            if threading.active_count() == 1:  # a fork would leave the others out
                self._pool = WorkerPool(self.processes, partial(fork, self.items.work))
            else:
                self._pool = WorkerPool(self.processes, _start_fresh)
                self._pool.run_in_each(by_value(self.items))
        return self._pool


def _is_same(a: Any, b: Any) -> bool:
    return np.asarray(a).tobytes() == np.asarray(b).tobytes()


def _once(request: ReadRequest) -> tuple[ReadRequest, np.ndarray]:
    """A request that names no example twice with the same seed, and where each then stands."""
    pairs = np.stack([request.numbers.astype(np.uint64), request.seeds], 1)
    _, kept, places = np.unique(pairs, axis=0, return_index=True, return_inverse=True)
    if len(kept) == len(pairs):
        return request, np.arange(len(pairs))
    return ReadRequest(request.numbers[kept], request.seeds[kept]), places.reshape(-1)


def _usual_processes() -> int:
    """As many as there are cores, up to a limit; none where there is one core alone."""
    cores = available_cores() if sys.platform == "linux" else 1
    return 0 if cores == 1 else min(cores, MOST_PROCESSES)


def _start_fresh(pipe: Connection, others: Sequence[Connection]) -> Process:
    """A new Python that is first sent the items it is to read."""
    code = f"from gcfed.data.item_reader import main; main({pipe.fileno()})"
    return FreshProcess(code, pipe.fileno())


def main(pipe: int) -> None:
    """The life of such a process: it learns what to read, then reads."""
    held: list[Items] = []

    def work(*piece: Any) -> Any:
        if held:
            return held[0].work(*piece)
        return held.append(unpacked(*piece))

    serve(Connection(pipe), work)
