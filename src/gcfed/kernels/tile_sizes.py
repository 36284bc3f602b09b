"""The tile sizes of kernels: they, and so the bits, depend on one client's shapes alone.

Chosen by time on an H200 (`benchmarks/tiles.py`), for the layers of the paper's models.
"""


def power(n: int, least: int, most: int) -> int:
    """The power of two that holds ``n``, within limits."""
    return min(most, max(least, 1 << (n - 1).bit_length()))


def pads_itself(channels: int) -> bool:
    """Whether tiles divide a pixel's channels, so that a border need not be in memory."""
    return channels % 64 == 0


def convolve_tile(
    m: int, e: int, out: int, pool: bool, item: int
) -> tuple[int, int, int, int, int]:
    """Pixels, channels and inputs of a tile, warps and stages.

    There are ``m`` pixels, each of ``e`` inputs and ``out`` outputs, of ``item`` bytes each.
    """
    widest = 64 if item == 2 else 32
    whole = next((n for n in (widest, 32) if e % n == 0), 0)  # needs no mask
    be = whole or power(e, 16, 128 if e <= 128 else widest)
    if pool:
        return 64, power(out, 16, 64), be, 4, 3 if be < 128 and item == 2 else 2
    return _flat_tile(m, be, out)


def back_tile(m: int, channels: int, out: int, item: int) -> tuple[int, int, int, int, int]:
    """The same for a gradient of so many channels, a multiple of 16."""
    be = next(n for n in (64 if item == 2 else 32, 32, 16) if channels % n == 0)
    return _flat_tile(m, be, out)


def _flat_tile(m: int, be: int, out: int) -> tuple[int, int, int, int, int]:
    if out <= 32:
        return 256, power(out, 16, 32), be, 8, 3
    bn = power(out, 16, 256)
    if m < 2048:
        return 64, bn, be, 8 if bn > 64 else 4, 4
    return 128, bn, be, 8, 3


def weights_tile(
    m: int, e: int, out: int, halves: int, of_one: int = 0
) -> tuple[int, int, int, int, int, int]:
    """Inputs, outputs and pixels of a tile, warps, stages, and the pixels a program sums over.

    There are ``m`` pixels, each of ``e`` inputs and ``out`` outputs, in one number of bfloat16 each
    or in two ``halves``; the inputs of a tile may have to lie in one pixel of ``of_one`` channels.
    """
    few = out <= 64 and e > 128
    be = power(e, 16, 64 if (few and halves == 1) or of_one % 128 else 128)
    bn = power(out, 16, 128)
    bm, stages = (128, 2) if out <= 64 or m >= 8192 else (64, 3)
    if halves == 2:
        bm, stages = 64, 2
    tiles = -(-e // be) * -(-out // bn)
    programs = 128 if few and be == 128 else 64  # of one client alone
    parts = -(-programs // tiles)
    return be, bn, bm, 4, stages, max(2 * bm, -(-m // parts // bm) * bm)


def norm_tile(pixels: int, channels: int, size: int) -> tuple[int, int, int]:
    """Channels, whole groups of ``size``, and pixels of a group norm's tile, and its warps.

    A tile has all pixels of an image if registers hold them for enough channels to read memory in
    whole sectors; else it has a part of them.
    """
    held = power(pixels, 16, 1 << 30)
    most = min(64, max(16, 8192 // held))
    bc = max(size, next(n for n in (64, 32, 16, 8, 4, 2, 1) if n <= most and channels % n == 0))
    bp = held if held * bc <= HELD else power(pixels, 16, max(16, 4096 // bc))
    return bc, bp, min(8, max(1, bp * bc // 2048))


HELD = 16384
"""How many numbers of a group norm's input a program holds at once."""
