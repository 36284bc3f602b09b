"""Processes over devices: each takes the next cell when it is free, and is replaced if it dies."""

import multiprocessing
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.resource_tracker import ensure_running
from pathlib import Path

from gcfed.errors import InputError
from gcfed.runs.interrupt import stop_request
from gcfed.sweeps.child import CellJob, ChildMessage, Ended, Ready, Started, Stop, serve
from gcfed.sweeps.devices import Allotment, shares

Tell = Callable[[int, str, ChildMessage], None]
"""Told of a cell, by its number and the device it is on."""

POLL = 0.2  # seconds between looks at whether somebody asked to stop
PATIENCE = 30.0  # seconds that a process has to save what it did


def run_jobs(
    jobs: Sequence[CellJob],
    devices: Sequence[str],
    allotment: Allotment,
    began_on: Mapping[int, str],
    tell: Tell,
) -> None:
    """Have all jobs done; asked to stop, no more are begun, and those under way stop.

    What a process gets does not depend on how many jobs there are.  ``began_on``: the devices of
    cells that were interrupted, which go on where they began.
    """
    waiting, used = list(jobs), devices[: len(jobs)]
    parts = shares(used, allotment.cores)
    beside = Counter(used)
    slots = [
        Slot(device, cores, allotment.threads, beside[device])
        for device, cores in zip(used, parts, strict=True)
    ]
    with stop_request() as request:
        try:
            while True:
                if request.made:
                    waiting.clear()
                    for slot in slots:
                        slot.stop()
                for slot in slots:
                    if slot.job is None and waiting:
                        slot.give(_next(waiting, slot.device, began_on), tell)
                if not any(slot.job for slot in slots):
                    return
                wait([slot.pipe for slot in slots if slot.job], POLL)
                for slot in slots:
                    slot.hear(tell)
        finally:
            for slot in slots:
                slot.release()
            for slot in slots:
                slot.end()


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Inside, Ctrl-C waits, and a process that begins is not reached by it until it says so."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    ensure_running()  # where it starts its process it lets signals through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _next(waiting: list[CellJob], device: str, began_on: Mapping[int, str]) -> CellJob:
    fitting = (job for job in waiting if began_on.get(job.number, device) == device)
    job = next(fitting, waiting[0])
    waiting.remove(job)
    return job


class Slot:
    """A device that so many processes share, one of these, and the cell that this is at."""

    pipe: Connection

    def __init__(self, device: str, cores: Sequence[int], threads: int, sharing: int = 1) -> None:
        self.device, self._cores, self._threads = device, cores, threads
        self._sharing = sharing
        self.job: CellJob | None = None
        self._spawn = multiprocessing.get_context("spawn")
        self._process: multiprocessing.process.BaseProcess | None = None
        self._gone: list[multiprocessing.process.BaseProcess] = []
        self._is_ready = self._is_stopped = False

    def give(self, job: CellJob, tell: Tell) -> None:
        """Have a cell trained, by a new process if there is none."""
        if self._process is None or not self._process.is_alive():
            self.release()
            self._start()
        where = {"device": self.device}
        self.job = job._replace(configs=tuple(c.model_copy(update=where) for c in job.configs))
        tell(job.number, self.device, Started())
        with suppress(OSError):  # a process that has died is noticed when it is heard
            self.pipe.send(self.job)

    def _start(self) -> None:
        self.pipe, theirs = self._spawn.Pipe()
        place = (self.device, self._cores, self._threads, self._sharing, Path.cwd())
        self._process = self._spawn.Process(target=serve, args=(theirs, *place))
        with _interrupts_held():
            self._process.start()
        theirs.close()
        self._is_ready = False

    def stop(self) -> None:
        if self.job is not None and not self._is_stopped:
            self._is_stopped = True
            with suppress(OSError):
                self.pipe.send(Stop())

    def hear(self, tell: Tell) -> None:
        """Take in what the process says; if it is dead, its cell failed."""
        while self.job is not None:
            number = self.job.number
            alive = self._process is not None and self._process.is_alive()
            try:
                message = self.pipe.recv() if self.pipe.poll() else None
            except (EOFError, OSError):
                message, alive = None, False
            if message is not None:
                self._take(number, message, tell)
            elif alive:
                return
            else:
                self._take(number, Ended([], self._epitaph()), tell)
                self.release()

    def _take(self, number: int, message: ChildMessage, tell: Tell) -> None:
        if isinstance(message, Ready):
            self._is_ready = True
            return
        if isinstance(message, Ended):
            self.job = None
            if message.trace is not None:  # what an error leaves of a device is not known
                self.release()
        tell(number, self.device, message)

    def _epitaph(self) -> str:
        assert self._process is not None
        self._process.join(PATIENCE)
        code = self._process.exitcode or 0
        if code < 0:
            name = signal.Signals(-code).name
            return f"its process was ended by {name}; was it killed for want of memory?"
        if not self._is_ready:
            raise InputError(
                f"the process for {self.device} ended before it began, with exit code {code}: a "
                "script that calls gcfed.sweep does so under if __name__ == '__main__':"
            )
        return f"its process ended with exit code {code}"

    def release(self) -> None:
        """Let the process go: it stops as soon as it has saved what it did."""
        if self._process is not None:
            self.pipe.close()
            self._gone.append(self._process)
        self._process = self.job = None

    def end(self) -> None:
        """Wait until all its processes are gone."""
        for process in self._gone:
            process.join(PATIENCE)
            if process.is_alive():
                process.terminate()
                process.join(PATIENCE)
            if process.is_alive():
                process.kill()
                process.join()
        self._gone = []
