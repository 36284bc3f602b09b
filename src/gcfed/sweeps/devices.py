"""The devices of a sweep, and the cores of each."""

import os
from collections.abc import Sequence

import torch

from gcfed.engines.workers import available_cores
from gcfed.errors import InputError


def find_devices(names: str | Sequence[str] | None, default: str) -> list[str]:
    """The devices asked for; if none are, all GPUs there are for ``auto``, else the ``default``."""
    if isinstance(names, str):
        names = names.split(",")
    if names is None:
        gpus = torch.cuda.device_count() if default == "auto" else 0
        names = [f"cuda:{i}" for i in range(gpus)] if gpus > 1 else [default]
    if not names:
        raise InputError("name a device, such as cpu or cuda:0")
    return [_checked(name.strip()) for name in names]


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


def shares(devices: Sequence[str]) -> list[list[int]]:
    """The cores of each device's process: CPU devices divide them, others take any."""
    cores = list(range(available_cores()))
    if hasattr(os, "sched_getaffinity"):
        cores = sorted(os.sched_getaffinity(0))
    num_cpus, found = devices.count("cpu"), list[list[int]]()
    for k, device in enumerate(devices):
        if device != "cpu":
            found.append([])
            continue
        j = devices[:k].count("cpu")
        part = cores[len(cores) * j // num_cpus : len(cores) * (j + 1) // num_cpus]
        found.append(part or [cores[j % len(cores)]])
    return found
