"""Processes that are killed while they run: at a write to the disk, or at a moment.

PYTEST_DONT_REWRITE
"""

import os
import signal
import sys
import time
from contextlib import suppress

WRITES = {"os.rename", "os.remove", "os.truncate", "os.mkdir", "shutil.rmtree"}
KILLED = -signal.SIGKILL


def forked(call):
    """Call a function in a process of its own; its process id."""
    child = os.fork()
    if child:
        return child
    code = 1
    with suppress(BaseException):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        call()
        code = 0
    os._exit(code)


def ended(child):
    """How a process ended: its exit code, or minus the signal."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def killed_at_write(call, number):
    """Call a function in a process that is killed as it is about to write that often."""

    def watched():
        count = 0

        def watch(event, arguments):
            nonlocal count
            if event in WRITES or (event == "open" and is_write(arguments)):
                count += 1
                if count == number:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(watch)
        call()

    return ended(forked(watched))


def is_write(arguments):
    flags = arguments[2]
    return bool(flags & (os.O_WRONLY | os.O_RDWR)) if isinstance(flags, int) else False


def killed_after(call, seconds):
    """Call a function in a process that is killed after a while."""
    child = forked(call)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    return ended(child)
