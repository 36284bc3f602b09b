"""A process that trains cells: what it is told, what it tells, and its life."""

import os
import signal
import threading
import traceback
import warnings
from _thread import interrupt_main
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

import torch

from gcfed.capacity import share_device
from gcfed.config.settings import Config
from gcfed.cpu import available_cores
from gcfed.errors import InputError, reason
from gcfed.runs.store import RunStore
from gcfed.simulation.lines import Record


class CellJob(NamedTuple):
    """A cell to train: runs to do together, and the number of their rounds to tell of."""

    number: int
    configs: tuple[Config, ...]
    store: Path
    score: str


class Stop(NamedTuple):
    """Stop after the round in progress; told twice, at once.  So does a parent that is gone."""


class Ready(NamedTuple):
    """The process has begun."""


class Started(NamedTuple):
    """A cell was given to a process."""


class RoundsDone(NamedTuple):
    """How many rounds seeds have, by their place, and what they score."""

    done: dict[int, int]
    scores: dict[int, float]


class Note(NamedTuple):
    """A warning."""

    text: str


class Ended(NamedTuple):
    """A cell that is over: its run folders, or why there are none.

    ``trace`` is that of an error which is not the input's.  Without any, it was stopped before its
    first round.
    """

    runs: list[str]
    reason: str | None = None
    trace: str | None = None


ChildMessage = Ready | Started | RoundsDone | Note | Ended


def serve(
    pipe: Connection,
    device: str,
    cores: Sequence[int],
    threads: int,
    sharing: int,
    folder: Path,
) -> None:
    """The life of a process: cells, until it is told to stop or the parent is gone.

    ``sharing`` processes have cells on its device at once.
    """
    if hasattr(os, "setsid"):
        os.setsid()  # Ctrl-C is the parent's to handle, and to tell
    os.chdir(folder)  # multiprocessing goes to where the parent began
    if hasattr(os, "sched_setaffinity") and cores:
        os.sched_setaffinity(0, cores)
    if cores:
        torch.set_num_threads(threads)
    if (index := torch.device(device).index) is not None:  # "cuda" is the current one
        torch.cuda.set_device(index)
    if sharing > 1 and device != "cpu":
        share_device()
        part = max(available_cores() // sharing, 1)
        torch.set_num_threads(part)
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(part))
    Child(pipe).live()


class Child:
    """The inside of a process, in two threads: one trains, one listens."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._inbox: SimpleQueue[CellJob | None] = SimpleQueue()
        self._is_busy = self._is_stopping = False
        self._sending = threading.RLock()

    def live(self) -> None:
        signal.signal(signal.SIGINT, self._interrupted)
        if hasattr(signal, "pthread_sigmask"):  # what came since it began was the parent's
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        warnings.showwarning = self._warn  # type: ignore[assignment]
        warnings.filterwarnings("ignore", "stopping after this round")  # the parent says it
        threading.Thread(target=self._listen, daemon=True).start()
        self._send(Ready())
        while (job := self._inbox.get()) is not None:
            self._send(self._do(job))

    def _listen(self) -> None:
        """What stops a cell reaches it as Ctrl-C would."""
        while True:
            try:
                message = self._pipe.recv()
            except (EOFError, OSError):
                message = None
            if isinstance(message, CellJob):
                self._inbox.put(message)
                continue
            self._is_stopping = True  # before a cell that is only about to begin looks
            self._inbox.put(None)
            interrupt_main()
            if message is None:
                return

    def _interrupted(self, *_: object) -> None:
        if self._is_busy:
            raise KeyboardInterrupt

    def _do(self, job: CellJob) -> Ended:
        try:
            self._is_busy = True
            if self._is_stopping:
                raise KeyboardInterrupt
            ended = train_cell(job, self._send)
            self._is_busy = False
            return ended
        except KeyboardInterrupt:  # before its first round
            self._is_busy = False
            return Ended([])

    def _warn(self, message: Warning | str, *_: object) -> None:
        self._send(Note(str(message)))

    def _send(self, message: ChildMessage) -> None:
        with self._sending, suppress(OSError):  # a parent that is gone needs no news
            self._pipe.send(message)


def train_cell(job: CellJob, send: Callable[[RoundsDone], None]) -> Ended:
    """Train a cell, or go on with it, and tell of each round."""
    store = RunStore(job.store)

    def observe(lines: Mapping[int, Record]) -> None:
        done = {i: line["round"] + 1 for i, line in lines.items()}
        scores = {i: line[job.score] for i, line in lines.items()}
        send(RoundsDone(done, {i: s for i, s in scores.items() if s is not None}))

    try:
        runs = store.run_together(job.configs, observe)
    except InputError as error:
        return Ended([], _one_line(error))
    except (Exception, SystemExit) as error:
        return Ended([], _one_line(error), traceback.format_exc())
    return Ended([run.path.name for run in runs])


def _one_line(error: BaseException) -> str:
    """Why a cell failed, as a table and a record have it."""
    return " ".join(reason(error).split())
