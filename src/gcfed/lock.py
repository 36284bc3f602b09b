"""One process at a time writes a run.

On Unix the lock is one of ``fcntl.lockf``.  It belongs to one process: the kernel gives it to no
forked worker, and takes it back when the process ends, even if its workers live on.  ``filelock``
(read in version 4.2) uses ``fcntl.flock``, whose lock forked children share, and makes up for it by
closing the file in every child that Python itself forks.  Nor does its `FileLock` say who holds a
lock, which is what a user who is refused wants to know.  So a run has a lock of ours; downloads,
which neither fork nor refuse, use `FileLock`.
"""

import json
import os
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from gcfed.errors import InputError

LOCK = ".lock"
MOMENT = 0.05  # seconds, far more than it takes to ask whether somebody has a lock

_held: set[Path] = set()
"""What this process has locked: a system's locks are between processes."""

if sys.platform == "win32":
    import msvcrt

    def _try_lock(handle: int) -> None:
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)

    _probe = _try_lock
else:
    import fcntl

    def _try_lock(handle: int) -> None:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # unlike flock's, not a child's too

    def _probe(handle: int) -> None:
        fcntl.lockf(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)  # reading is enough for a shared one


WAIT = "wait until it ends, or end it, and go on with gcfed resume"


@contextmanager
def locked(paths: Sequence[Path], advice: str = WAIT) -> Iterator[None]:
    """Lock run directories, so that no other process writes them until the block ends.

    The system holds the locks, and lets go of them when the process ends, however it ends: the file
    that a killed process leaves behind locks nothing.  It says who has it, for others to read;
    ``advice`` is told to those who are refused.
    """
    with ExitStack() as stack:
        for path in sorted(paths, key=Path.resolve):  # in one order, so that nobody waits in a ring
            stack.enter_context(_locked(path, advice))
        yield


def is_locked(path: Path) -> bool:
    """Whether a process, this or another, is writing the run in this directory."""
    if path.resolve() in _held:
        return True
    try:
        handle = os.open(path / LOCK, os.O_RDONLY)
    except OSError:
        return False
    try:
        if os.read(handle, 1):  # a process that ended by itself has left no name here
            os.lseek(handle, 0, os.SEEK_SET)
            _probe(handle)
        return False
    except OSError:
        return True
    finally:
        os.close(handle)


@contextmanager
def _locked(path: Path, advice: str) -> Iterator[None]:
    real = path.resolve()
    if real in _held:  # opening its file again would end the lock when that is closed
        raise InputError(f"{path} is being written by this very process")
    handle = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            _lock_soon(handle)
        except OSError:
            raise InputError(f"{path} is being written by {_holder(handle)}: {advice}") from None
        _held.add(real)
        try:
            _write(handle, {"pid": os.getpid(), "host": platform.node(), "since": time.time()})
            yield
        finally:
            _held.remove(real)
            _write(handle, None)
    finally:
        os.close(handle)


def _lock_soon(handle: int) -> None:
    """Take the lock; `is_locked` in another process may have it for a moment."""
    try:
        _try_lock(handle)
    except OSError:
        time.sleep(MOMENT)
        _try_lock(handle)


def _write(handle: int, holder: dict[str, Any] | None) -> None:
    with suppress(OSError):  # on a full disk, the lock holds without a name
        os.ftruncate(handle, 0)
        os.lseek(handle, 0, os.SEEK_SET)
        os.write(handle, json.dumps(holder).encode() if holder else b"")


def _holder(handle: int) -> str:
    try:
        found = json.loads(os.read(handle, 4096))
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(found["since"]))
        return f"process {found['pid']} on {found['host']} since {since}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
