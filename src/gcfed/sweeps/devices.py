"""The devices of a sweep, and the cores of each."""

import json
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from gcfed.cpu import available_cores
from gcfed.errors import InputError


def find_devices(names: str | Sequence[str] | None, default: str, per_device: int = 1) -> list[str]:
    """The devices asked for; if none are, all GPUs there are for ``auto``, else the ``default``.

    Each is there as often as cells are to share it.
    """
    if per_device < 1:
        raise InputError(f"the cells that share a device are a positive count; not {per_device}")
    if isinstance(names, str):
        names = names.split(",")
    if names is None:
        gpus = torch.cuda.device_count() if default == "auto" else 0
        names = [f"cuda:{i}" for i in range(gpus)] if gpus > 1 else [default]
    if not names:
        raise InputError("name a device, such as cpu or cuda:0")
    return [_checked(name.strip()) for name in names] * per_device


def _checked(name: str) -> str:
    """A device by the name that runs record; CUDA itself is left to the processes."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InputError(f"there is no device {name!r}: write cpu, cuda, cuda:1, ...") from None
    gpus = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= gpus:
        raise InputError(f"device {name!r} cannot be used: there are {gpus or 'no'} GPUs")
    return str(device)


class Allotment(NamedTuple):
    """What each process of a sweep gets on a CPU.

    Last bits depend on both: sums are split among threads, and ``auto`` takes another engine where
    there is one core.  So they are settled when a sweep begins, and stay what they are.
    """

    cores: int
    threads: int


def allot(devices: Sequence[str], num_cells: int) -> Allotment:
    """Equal parts of this machine for so many processes as can be busy at once."""
    num_cpus = max(devices[:num_cells].count("cpu"), 1)
    cores = max(available_cores() // num_cpus, 1)
    return Allotment(cores, min(torch.get_num_threads(), cores))


def recorded_allotment(record: Path) -> Allotment | None:
    """What the record of a sweep says that its processes got, if it is there and says so."""
    try:
        found = json.loads(record.read_text(encoding="utf-8"))["allotment"]
        before = Allotment(int(found["cores"]), int(found["threads"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if before.cores > 1 and available_cores() == 1:
        warnings.warn(
            f"the sweep began with {before.cores} cores for each process, and there is one now: "
            "last bits may differ",
            stacklevel=2,
        )
    return before if min(before) > 0 else None


def shares(devices: Sequence[str], num_cores: int) -> list[list[int]]:
    """The cores of each device's process: on a CPU ``num_cores`` each, elsewhere any."""
    cores = list(range(available_cores()))
    if hasattr(os, "sched_getaffinity"):
        cores = sorted(os.sched_getaffinity(0))
    found, first = list[list[int]](), 0
    for device in devices:
        if device != "cpu":
            found.append([])
            continue
        found.append(sorted({cores[(first + i) % len(cores)] for i in range(num_cores)}))
        first += num_cores
    return found
