"""How large the tiles of the kernels are: by one client's shapes alone, so that bits are too.

Chosen by time on an H200 (`benchmarks/tiles.py`), for the layers of the paper's models.
"""


def power(n: int, least: int, most: int) -> int:
    """The power of two that holds ``n``, within limits."""
    return min(most, max(least, 1 << (n - 1).bit_length()))


def convolve_tile(
    m: int, e: int, out: int, pool: bool, item: int
) -> tuple[int, int, int, int, int]:
    """Pixels, channels and inputs of a tile, warps and stages.

    There are ``m`` pixels, each of ``e`` inputs and ``out`` outputs, of ``item`` bytes each.
    """
    widest = 64 if item == 2 else 32
    whole = next((n for n in (widest, 32) if e % n == 0), 0)  # needs no mask
    be = whole or power(e, 16, 2 * widest if e <= 2 * widest else widest)
    if pool:
        return 64, power(out, 16, 64), be, 4, 3 if be < 128 else 2
    if out <= 32:
        return 256, power(out, 16, 32), be, 8, 3
    if m < 2048:
        return 64, power(out, 16, 128), be, 4, 3
    return 128, power(out, 16, 128), be, 8, 3


def weights_tile(m: int, e: int, out: int) -> tuple[int, int, int, int, int]:
    """Inputs, outputs and pixels of a tile, stages, and the pixels one program sums over."""
    be = power(e, 16, 128)
    bn, bm, stages = (128, 64, 3) if out > 64 else (power(out, 16, 64), 128, 2)
    tiles = -(-e // be) * -(-out // bn)
    parts = -(-64 // tiles)  # so that one client alone is 64 programs
    return be, bn, bm, stages, max(2 * bm, -(-m // parts // bm) * bm)


def channel_block(channels: int) -> int:
    """How many channels a program normalises: the largest power of two up to 32 that divides."""
    return next(n for n in (32, 16, 8, 4, 2, 1) if channels % n == 0)
