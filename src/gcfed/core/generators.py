"""Numpy's generators, many at once: as `numpy.random.default_rng` makes them, in less time.

Numpy promises that a `SeedSequence` of the same words gives the same numbers for ever, and so it is
computed here for a whole cohort: its hash, by which the words are mixed, and the start of PCG64.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

WORD, LONG = (1 << 32) - 1, (1 << 128) - 1
POOL = 4
PCG64_FACTOR = 0x2360ED051FC65DA44385DF649FCCF645


def _constants(first: int, factor: int, count: int) -> np.ndarray:
    """The constants of a hash, one for each step: a row to xor with, and a row to multiply by."""
    numbers = [first]
    while len(numbers) <= count:
        numbers.append(numbers[-1] * factor & WORD)
    return np.array([numbers[:-1], numbers[1:]], np.uint32)[..., None]


MIXING = _constants(0x43B0D7E5, 0x931E8875, POOL * POOL)
LEAVING = _constants(0x8B51F9DD, 0x58F38DED, 2 * POOL)
LEFT, RIGHT, HALF = np.uint32(0xCA01F9DD), np.uint32(0x4973F715), np.uint32(16)


def generators(words: np.ndarray) -> Iterator[np.random.Generator]:
    """``numpy.random.default_rng(column)`` of each column of four words; good until the next."""
    rng = np.random.Generator(np.random.PCG64(0))
    start: dict[str, Any] = {"bit_generator": "PCG64", "has_uint32": 0, "uinteger": 0}
    for high, low, high_step, low_step in _states(words).T.tolist():
        step = ((high_step << 64 | low_step) << 1 | 1) & LONG
        state = ((high << 64 | low) + step) * PCG64_FACTOR + step & LONG
        rng.bit_generator.state = start | {"state": {"state": state, "inc": step}}
        yield rng


def _states(words: np.ndarray) -> np.ndarray:
    """``SeedSequence(column).generate_state(4, numpy.uint64)`` of each column, as columns."""
    pool = _hashed(words, MIXING[:, :POOL])
    for k in range(POOL):
        rest = [i for i in range(POOL) if i != k]
        at = POOL + k * (POOL - 1)
        mixed: np.ndarray = LEFT * pool[rest] - RIGHT * _hashed(
            pool[k], MIXING[:, at : at + POOL - 1]
        )
        mixed ^= mixed >> HALF
        pool[rest] = mixed
    left = _hashed(np.concatenate([pool, pool]), LEAVING)
    return left[0::2].astype(np.uint64) | left[1::2].astype(np.uint64) << np.uint64(32)


def _hashed(values: np.ndarray, constants: np.ndarray) -> np.ndarray:
    """Values, or one row of them for each constant, as numpy hashes them."""
    mixed: np.ndarray = (values ^ constants[0]) * constants[1]
    mixed ^= mixed >> HALF
    return mixed
