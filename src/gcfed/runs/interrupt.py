"""Ctrl-C as a request: the round in progress is done first."""

import os
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


@dataclass
class Request:
    """Whether somebody asked to stop."""

    made: bool = False


@contextmanager
def stop_request() -> Iterator[Request]:
    """Inside, Ctrl-C (or SIGTERM) makes the request; a second one interrupts as it always does."""
    request, owner = Request(), os.getpid()

    def ask(number: int, frame: FrameType | None) -> None:
        if os.getpid() != owner:  # in a forked worker, which is ended as ever
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        elif request.made:
            raise KeyboardInterrupt
        else:
            request.made = True
            warnings.warn("stopping after this round; once more to stop at once", stacklevel=2)

    if threading.current_thread() is not threading.main_thread():  # which alone gets signals
        yield request
        return
    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
