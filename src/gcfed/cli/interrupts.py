"""Ctrl-C before a command has begun its work."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from gcfed.cli.exits import INTERRUPTED


@contextmanager
def ending_imports() -> Iterator[None]:
    """Inside, Ctrl-C ends the process at once while torch is imported; else it is as ever.

    Torch's C++ imports numpy and drops what Python raises on the way: the interrupt would be lost,
    or end the process by an ImportError or an abort.
    """
    is_main = threading.current_thread() is threading.main_thread()  # which alone gets signals
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _interrupt(number: int, frame: FrameType | None) -> None:
    outer = frame
    while outer is not None:
        if outer.f_code.co_name == "<module>" and outer.f_globals.get("__name__") == "torch":
            os._exit(INTERRUPTED)  # nothing was begun that could be finished
        outer = outer.f_back
    signal.default_int_handler(number, frame)
