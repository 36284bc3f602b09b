"""The global generators of Python, numpy and torch, by which transforms and models draw."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor


@contextmanager
def generators_kept() -> Iterator[None]:
    """Whatever happens inside, the generators are afterwards as they were."""
    python, of_numpy, of_torch = states()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(of_numpy)
        torch.default_generator.set_state(of_torch)


@contextmanager
def generators_seeded(key: Tensor) -> Iterator[None]:
    """Inside, the generators start from a key, those of its device too; then they are as before."""
    first, second = key.tolist()
    seed, devices = first << 32 | second, [key.device] if key.is_cuda else []
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


def states() -> tuple[Any, Any, Tensor]:
    """Where the generators are."""
    of_numpy = np.random.get_state()
    return random.getstate(), of_numpy, torch.default_generator.get_state()


def drawn_since(before: tuple[Any, Any, Tensor]) -> bool:
    """Whether anything was drawn from them since they were there."""
    (python, of_numpy, of_torch), now = before, states()
    same_numpy = all(np.array_equal(a, b) for a, b in zip(of_numpy, now[1], strict=True))
    return not (python == now[0] and same_numpy and torch.equal(of_torch, now[2]))
