"""The global generators of Python, numpy and torch, by which transforms and models draw."""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor


@contextmanager
def generators_kept() -> Iterator[None]:
    """Whatever happens inside, the generators are afterwards as they were."""
    python, of_numpy, of_torch, *_ = states()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(of_numpy)
        torch.default_generator.set_state(of_torch)


@contextmanager
def generators_seeded(key: Tensor, device: torch.device | None = None) -> Iterator[None]:
    """Inside, the generators start from a key, those of a device too; then they are as before.

    It is the device of the key, unless it is named: a key of the host is read without a wait.
    """
    first, second = map(int, key)  # torch 2.6 has no tolist() inside torch.func.grad
    device = device or key.device
    seed, devices = first << 32 | second, [device] if device.type == "cuda" else []
    with generators_kept(), torch.random.fork_rng(devices=devices):
        seed_all(seed)
        for device in devices:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


def seed_all(seed: int) -> None:
    """Have all generators begin at a seed of 64 bits."""
    random.seed(seed)
    np.random.seed([seed & 0xFFFFFFFF, seed >> 32])
    torch.default_generator.manual_seed(seed)


def states() -> list[Any]:
    """Where the generators are: Python's, numpy's, and torch's."""
    return [random.getstate(), np.random.get_state(), *torch_states()]


def drawn_since(before: Sequence[Any]) -> bool:
    """Whether anything was drawn from the generators since their states were ``before``."""
    (python, of_numpy, *of_torch), (now_python, now_numpy, *_) = before, states()
    same_numpy = all(np.array_equal(a, b) for a, b in zip(of_numpy, now_numpy, strict=True))
    return python != now_python or not same_numpy or torch_drew_since(of_torch)


def torch_states() -> list[Any]:
    """Where torch's generators are, those of GPUs that are in use among them.

    During rounds these alone are watched, since other threads may draw by Python's and numpy's.
    """
    used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    on_gpus = torch.cuda.default_generators if used else ()
    places = [(each.initial_seed(), each.get_offset()) for each in on_gpus]
    return [torch.default_generator.get_state(), *places]


def torch_drew_since(before: Sequence[Any]) -> bool:
    """Whether anything was drawn from torch's generators since their states were ``before``."""
    (host, *on_gpus), (now_host, *now_on_gpus) = before, torch_states()
    return on_gpus != now_on_gpus or not torch.equal(host, now_host)
