"""Threads that take turns: several runs in one process, of which one at a time uses the host.

Torch's settings of precision, its tracer and its compiler belong to the whole process, so the code
of two runs must not mix.  What a device was given to do goes on without the host, and while a run
waits for its device another has its turn.
"""

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager


class Turns:
    """Threads in the order in which they asked; the first has its turn."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._queue: deque[object] = deque()

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Wait for a turn; inside, it is this thread's, but for where it is `offered`."""
        self._take()
        _thread.turns = self
        try:
            yield
        finally:
            _thread.turns = None
            self._leave()

    def _take(self) -> None:
        place = object()
        with self._changed:
            self._queue.append(place)
            self._changed.wait_for(lambda: self._queue[0] is place)

    def _leave(self) -> None:
        with self._changed:
            self._queue.popleft()
            self._changed.notify_all()


class _OfThread(threading.local):
    """What a thread takes turns with others in, if it does."""

    turns: Turns | None = None


_thread = _OfThread()


def is_shared() -> bool:
    """Whether this thread takes turns with others."""
    return _thread.turns is not None


@contextmanager
def offered() -> Iterator[None]:
    """Inside, other threads have their turn: for waiting, which needs no host."""
    turns = _thread.turns
    if turns is None:
        yield
        return
    turns._leave()
    try:
        yield
    finally:
        turns._take()
