"""What a run could leave behind: processes, open files, shared memory."""

import gc
import multiprocessing
import os
from contextlib import contextmanager
from pathlib import Path


def children():
    """The processes whose parent is this one, by the system's own account."""
    mine = str(os.getpid())
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        if fields[1] == mine:
            found.append(stat.parent.name)
    return found


def open_files():
    return len(list(Path("/proc/self/fd").iterdir()))


def shared_memory():
    """The parts of this process's memory that engines share."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    return [line for line in maps if "memfd:gcfed" in line]


@contextmanager
def nothing_left():
    """Inside, processes, files and shared memory may come; all must go."""
    gc.collect()
    files, processes = open_files(), children()
    yield
    assert not multiprocessing.active_children()
    assert children() == processes
    assert open_files() == files
    assert not shared_memory()
