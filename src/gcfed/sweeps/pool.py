"""Processes over devices: each takes the next cell when it is free, and is replaced if it dies."""

import multiprocessing
import signal
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path

from gcfed.errors import InputError
from gcfed.runs.interrupt import stop_request
from gcfed.sweeps.child import CellJob, ChildMessage, Ended, Note, Ready, Started, Stop, serve
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
    waiting, slots = list(jobs), make_slots(devices[: len(jobs)], allotment)
    with stop_request() as request:
        try:
            while True:
                if request.made:
                    waiting.clear()
                    for slot in slots:
                        slot.stop()
                for slot in slots:
                    while (job := _next(waiting, slot, began_on)) is not None:
                        slot.give(job, tell)
                if not any(slot.jobs for slot in slots):
                    return
                wait([slot.pipe for slot in slots if slot.jobs], POLL)
                for slot in slots:
                    waiting += slot.hear(tell)
        finally:
            for slot in slots:
                slot.release()
            for slot in slots:
                slot.end()


def make_slots(devices: Sequence[str], allotment: Allotment) -> list["Slot"]:
    """A process for each part of a CPU, and one for all cells that share another device."""
    parts = shares([device for device in devices if device == "cpu"], allotment.cores)
    others = Counter(device for device in devices if device != "cpu")
    return [
        *(Slot(device, [], allotment.threads, count) for device, count in others.items()),
        *(Slot("cpu", cores, allotment.threads) for cores in parts),
    ]


def _next(waiting: list[CellJob], slot: "Slot", began_on: Mapping[int, str]) -> CellJob | None:
    """Take the job that a slot is to do next, if there is one that it has room for."""
    fitting = [job for job in waiting if slot.has_room(job)]
    if not fitting:
        return None
    at_home = (job for job in fitting if began_on.get(job.number, slot.device) == slot.device)
    job = next(at_home, fitting[0])
    waiting.remove(job)
    return job


class Slot:
    """A device, its process, and the cells that this is at, by number.

    Where several cells share a process, one that fails by an error in code, and all of one that
    dies, are tried again alone: the fault may be another's, and so may the memory that is missing.
    """

    pipe: Connection

    def __init__(self, device: str, cores: Sequence[int], threads: int, num_cells: int = 1) -> None:
        self.device, self._cores, self._threads = device, cores, threads
        self._num_cells = num_cells
        self.jobs: dict[int, CellJob] = {}
        self._spawn = multiprocessing.get_context("spawn")
        self._process: multiprocessing.process.BaseProcess | None = None
        self._gone: list[multiprocessing.process.BaseProcess] = []
        self._is_ready = self._is_stopped = self._is_spoilt = False

    def has_room(self, job: CellJob) -> bool:
        """Whether a cell can begin here now."""
        if not self.jobs:
            return True
        alone = job.alone or any(other.alone for other in self.jobs.values())
        return len(self.jobs) < self._num_cells and not alone and not self._is_spoilt

    def give(self, job: CellJob, tell: Tell) -> None:
        """Have a cell trained, by a new process if there is none."""
        if self._process is None or not (self.jobs or self._process.is_alive()):
            self.release()
            self._start()
        where = {"device": self.device}
        job = job._replace(configs=tuple(c.model_copy(update=where) for c in job.configs))
        self.jobs[job.number] = job
        tell(job.number, self.device, Started())
        with suppress(OSError):  # a process that has died is noticed when it is heard
            self.pipe.send(job)

    def _start(self) -> None:
        self.pipe, theirs = self._spawn.Pipe()
        place = (self.device, self._cores, self._threads, Path.cwd())
        self._process = self._spawn.Process(target=serve, args=(theirs, *place, self._num_cells))
        self._process.start()
        theirs.close()
        self._is_ready = False

    def stop(self) -> None:
        if self.jobs and not self._is_stopped:
            self._is_stopped = True
            with suppress(OSError):
                self.pipe.send(Stop())

    def hear(self, tell: Tell) -> list[CellJob]:
        """Take in what the process says; if it is dead, its cells failed.  What to try again."""
        again: list[CellJob] = []
        while self.jobs:
            alive = self._process is not None and self._process.is_alive()
            try:
                heard = self.pipe.recv() if self.pipe.poll() else None
            except (EOFError, OSError):
                heard, alive = None, False
            if heard is not None:
                number, message = heard
                again += self._take(number, message, tell)
            elif alive:
                break
            else:
                epitaph = Ended([], self._epitaph())
                for number in list(self.jobs):
                    again += self._end(number, epitaph, tell, is_fault=True)
                self.release()
        return again

    def _take(self, number: int, message: ChildMessage, tell: Tell) -> list[CellJob]:
        if isinstance(message, Ready):
            self._is_ready = True
            return []
        if number not in self.jobs:  # a warning of a thread that is at no cell
            number = next(iter(self.jobs))
        if not isinstance(message, Ended):
            tell(number, self.device, message)
            return []
        is_fault = message.trace is not None
        self._is_spoilt |= is_fault  # what an error leaves of a device is not known
        again = self._end(number, message, tell, is_fault=is_fault)
        if self._is_spoilt and not self.jobs:
            self.release()
        return again

    def _end(self, number: int, ended: Ended, tell: Tell, *, is_fault: bool) -> list[CellJob]:
        """A cell is over here; it is given back if it is to be tried again."""
        job = self.jobs.pop(number)
        if is_fault and self._num_cells > 1 and not job.alone:
            said = f"it failed beside other cells, and is tried again alone: {ended.reason}"
            tell(number, self.device, Note(said))
            return [job._replace(alone=True)]
        tell(number, self.device, ended)
        return []

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
        self._process = None
        self.jobs, self._is_spoilt = {}, False

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
