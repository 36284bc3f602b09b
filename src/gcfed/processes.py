"""Processes that do pieces of work, started in whichever way is safe."""

import ctypes
import gc
import multiprocessing
import signal
import subprocess
import sys
import threading
import traceback
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import Any, cast

import torch

from gcfed.errors import InputError, reason

Work = Callable[..., Any]
"""Does one piece of work; what it gives is sent back, if it does not lie in shared memory."""

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h
PATIENCE = 5.0  # seconds for a process to end by itself


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Inside, torch divides an operation among so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def can_fork() -> bool:
    """Whether a forked copy of this process would work.

    Other threads are not in the copy, but the locks they held are.  And if torch had threads for
    backward passes, it refuses to do one in the copy: so one is tried.
    """
    if threading.active_count() > 1:
        return False
    trial = _forked(_try_backward)
    trial.join()
    return trial.exitcode == 0


def _try_backward() -> None:
    """End with exit code 1 where torch refuses a backward pass."""
    try:
        with torch.enable_grad():
            torch.ones((), requires_grad=True).clone().backward()  # type: ignore[no-untyped-call]
    except RuntimeError:
        sys.exit(1)


def _forked(target: Callable[..., None], *arguments: Any) -> ForkProcess:
    process = multiprocessing.get_context("fork").Process(
        target=target, args=arguments, daemon=True
    )
    with warnings.catch_warnings():
        # Python 3.12 counts torch's threads for products too, which processes of one thread do
        # without
        warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
        process.start()
    return process


class FreshProcess(subprocess.Popen[bytes]):
    """A new Python, which imports what it needs; it is ended as a forked process is."""

    def __init__(self, code: str, *descriptors: int) -> None:
        start = (
            "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); "
            "signal.signal(signal.SIGTERM, signal.SIG_IGN); "
            f"sys.path[:] = {sys.path!r}; {code}"
        )
        super().__init__([sys.executable, "-c", start], pass_fds=descriptors)

    def join(self, timeout: float | None = None) -> None:
        with suppress(subprocess.TimeoutExpired):
            self.wait(timeout)

    def is_alive(self) -> bool:
        return self.poll() is None

    def close(self) -> None:
        """Nothing is left to close."""


Process = ForkProcess | FreshProcess

_ENDS: "weakref.WeakSet[Connection]" = weakref.WeakSet()  # this process's, of all pools


class Question:
    """A piece of work that a process was asked to do."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe: Connection | None = pipe
        self._answer: Any = None

    def receive(self) -> None:
        """Wait until the piece is done, so that its process is free."""
        if self._pipe is not None:
            self._answer, self._pipe = _answer(self._pipe), None

    def answer(self) -> Any:
        """What came of it, which can be asked for once."""
        self.receive()
        answer, self._answer = self._answer, None  # a pool keeps its last questions
        if isinstance(answer, Exception):
            raise answer
        return answer


class WorkerPool:
    """Processes that each take the next piece of work when they are free."""

    def __init__(self, size: int, start: Callable[[Connection, list[Connection]], Process]) -> None:
        """Have ``start`` make each process from its end of a pipe and the ends it must not keep."""
        self._pipes: list[Connection] = []
        self._asked: dict[Connection, Question] = {}
        self._turn = 0
        self.processes: list[Process] = []
        self._finalizer = weakref.finalize(self, _end, self._pipes, self.processes)
        try:
            for _ in range(size):
                ours, theirs = multiprocessing.Pipe()
                self._pipes.append(ours)
                with theirs:
                    self.processes.append(start(theirs, [*self._pipes, *_ENDS]))
                _ENDS.add(ours)
        except BaseException:
            self.close()
            raise

    def run(self, work: Iterable[tuple[Any, ...]]) -> None:
        """Have every piece done; the first error is raised here once all have ended."""
        queue, busy, failure = deque(work), list[Connection](), list[Exception]()
        for pipe in self._pipes[: len(queue)]:
            _send(pipe, queue.popleft())
            busy.append(pipe)
        while busy:
            for pipe in cast(list[Connection], wait(busy)):
                answer = _answer(pipe)
                failure += [answer] if isinstance(answer, Exception) else []
                if queue and not failure:
                    _send(pipe, queue.popleft())
                else:
                    busy.remove(pipe)
        if failure:
            raise failure[0]

    def run_in_each(self, *piece: Any) -> None:
        """Have every process do the same piece."""
        self.run([piece] * len(self._pipes))

    def ask(self, *piece: Any) -> "Question":
        """Have the next process do a piece, once it is through with the one before."""
        pipe = self._pipes[self._turn % len(self._pipes)]
        self._turn += 1
        if pipe in self._asked:
            self._asked[pipe].receive()
        _send(pipe, piece)
        self._asked[pipe] = Question(pipe)
        return self._asked[pipe]

    def close(self) -> None:
        """End the processes."""
        self._finalizer()


def fork(work: Work, pipe: Connection, others: Sequence[Connection]) -> Process:
    """A copy of this process that does ``work``."""
    return _forked(_serve_forked, work, pipe, others)


def _serve_forked(work: Work, pipe: Connection, others: Sequence[Connection]) -> None:
    for other in others:  # inherited; held open here, they would hide that the parent is gone
        other.close()
    serve(pipe, work)


def serve(pipe: Connection, work: Work) -> None:
    """The life of a process: until the other end of its pipe is closed."""
    for number in (signal.SIGINT, signal.SIGTERM):  # Slurm sends the second to every process
        signal.signal(number, signal.SIG_IGN)  # the parent handles it, and ends this process
    gc.enable()  # what a forked parent may have put off
    torch.set_num_threads(1)
    keep_freed_memory()
    while True:
        try:
            piece = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            answer = work(*piece)
        except Exception as error:
            answer = to_send(error, "in a worker process")
        with suppress(OSError):  # the parent has gone: the next look says so
            pipe.send(answer)


def to_send(error: Exception, where: str) -> Exception:
    """The error to send back: an `InputError` as it is, any other with its traceback."""
    if isinstance(error, InputError):
        return error
    trace = "".join(traceback.format_exception(error))
    return RuntimeError(f"{where}: {reason(error)}\n{trace}")


def keep_freed_memory() -> None:
    """Have this process use freed memory again.

    glibc gives large blocks back to the system, and then every page of the next one costs a fault:
    more than what many layers compute.
    """
    with suppress(AttributeError, OSError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_THRESHOLD, 2**25)  # the largest that it takes
        mallopt(M_TRIM_THRESHOLD, 2**30)


def _send(pipe: Connection, piece: tuple[Any, ...]) -> None:
    with suppress(OSError):  # a process that is gone says so when it is asked for its answer
        pipe.send(piece)


def _answer(pipe: Connection) -> Any:
    """What came of a piece, or why nothing did."""
    try:
        return pipe.recv()
    except (EOFError, OSError):
        return RuntimeError("a worker process ended; was it killed for want of memory?")


def _end(pipes: Sequence[Connection], processes: Sequence[Process]) -> None:
    for pipe in pipes:
        pipe.close()
    for process in processes:
        process.join(PATIENCE)
        if process.is_alive():
            process.kill()
            process.join()
        process.close()
