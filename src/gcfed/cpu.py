"""The CPU of this machine: how many cores there are, and what it is."""

import os
import platform
from functools import cache
from pathlib import Path

import torch

CPUINFO = Path("/proc/cpuinfo")
KIND = {"cpu family": "family", "model": "model"}  # its words for these, and ours


def available_cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_vendor() -> str:
    """Who made the CPU, as it says itself; empty where the system does not tell."""
    return _told().get("vendor_id", "")


def processor() -> str:
    """What the last bits of sums depend on: the kind of CPU, and the instructions torch takes."""
    told = _told()
    name = told.get("model name") or platform.processor() or platform.machine()
    kind = [f"{what} {told[key]}" for key, what in KIND.items() if key in told]
    return f"{name} ({', '.join([*kind, torch.backends.cpu.get_cpu_capability()])})"


@cache
def _told() -> dict[str, str]:
    """What Linux says of the first core, by name; nothing elsewhere."""
    try:
        lines = CPUINFO.read_text(encoding="utf-8", errors="replace").split("\n\n")[0].splitlines()
    except OSError:
        return {}
    pairs = (line.partition(":") for line in lines)
    return {name.strip(): value.strip() for name, _, value in pairs}
