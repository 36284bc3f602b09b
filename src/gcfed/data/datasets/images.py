"""Image files to arrays, by Pillow."""

import io
import struct
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from PIL import Image

from gcfed.cpu import available_cores
from gcfed.errors import InputError

FORMATS = ("JPEG", "PNG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
"""What is decoded; Pillow's other formats, some of which run programs, are not."""

ColorMode = Literal["RGB", "L"]

AT_ONCE = 64  # images that a thread is given: to hand over each alone costs a tenth of reading it

SMALL = 128 * 128  # pixels; up to so many, threads wait for each other longer than they decode

_MAX_PIXELS = 2**26

_FRAMES = frozenset({0xC0, 0xC1, 0xC2})  # markers of a JPEG: baseline, extended, progressive
_SEGMENTS = frozenset({0xC4, 0xDB, 0xDD, *range(0xE0, 0xF0), 0xFE})  # DHT, DQT, DRI, APPn, COM


class Header(NamedTuple):
    """What an image file says of itself before it is decoded."""

    size: tuple[int, int]
    mode: ColorMode


def header(path: Path) -> Header:
    """Width, height and whether an image is grey."""
    with _opened(path, str(path)) as image:
        return Header(image.size, "L" if image.mode in ("1", "L") else "RGB")


def decode_all(
    names: Sequence[str],
    read: Callable[[str], bytes],
    size: tuple[int, int],
    mode: ColorMode,
    *,
    resize: bool = False,
) -> np.ndarray:
    """Images as uint8 ``[n, channels, rows, columns]``, decoded by several threads unless small.

    ``size`` is width and height; an image of another is an `InputError` unless ``resize`` is given.
    """
    width, height = size
    out = np.empty((len(names), len(mode), height, width), np.uint8)

    def decode(i: int) -> None:
        try:
            data = read(names[i])
        except (OSError, ValueError) as error:
            raise _broken(names[i], error) from None
        plain = _plain_jpeg(data, size) if mode == "RGB" else None
        with plain or _opened(io.BytesIO(data), names[i]) as image:
            if image.size != size and not resize:
                raise InputError(f"{names[i]} is of {image.size} pixels, and others are of {size}")
            out[i] = _pixels(image, names[i], size, mode)

    def decode_some(start: int) -> None:
        for i in range(start, min(start + AT_ONCE, len(names))):
            decode(i)

    starts = range(0, len(names), AT_ONCE)
    if width * height <= SMALL and not resize:
        for start in starts:
            decode_some(start)
        return out
    with ThreadPoolExecutor(available_cores()) as threads:
        for _ in threads.map(decode_some, starts):
            pass
    return out


def _plain_jpeg(data: bytes, size: tuple[int, int]) -> Image.Image | None:
    """A JPEG of this size as RGB, by Pillow's decoder alone; None where `Image.open` must look.

    `Image.open` reads the header in Python, which costs half as much as decoding a small image.
    """
    if _jpeg_size(data) != size:  # told another size, the decoder writes out of bounds
        return None
    try:
        return Image.frombytes("RGB", size, data, "jpeg", "RGB", "")
    except (OSError, ValueError):  # `Image.open` says what is wrong, or reads what this does not
        return None


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    """Width and height in the header of a JPEG; None if anything unusual comes before them."""
    if not data.startswith(b"\xff\xd8"):
        return None
    at = 2
    while at + 9 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker in _FRAMES:
            height, width = struct.unpack_from(">HH", data, at + 5)
            return width, height
        if marker not in _SEGMENTS:
            return None
        at += 2 + int.from_bytes(data[at + 2 : at + 4])
    return None


def _opened(source: Path | io.BytesIO, where: str) -> Image.Image:
    try:
        image = Image.open(source, formats=FORMATS)
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise _broken(where, error) from None
    if image.width * image.height > _MAX_PIXELS:
        raise InputError(f"{where} is of {image.width} x {image.height} pixels, which is too many")
    return image


def _pixels(image: Image.Image, where: str, size: tuple[int, int], mode: ColorMode) -> np.ndarray:
    """The pixels as [channels, rows, columns]."""
    width, height = size
    try:
        image = image if image.mode == mode else image.convert(mode)
        image = image if image.size == size else image.resize(size)
        # each row of one channel after the other: sooner turned around than pixel by pixel
        rows = image.tobytes("raw", "RGB;L" if mode == "RGB" else "L")
        return np.frombuffer(rows, np.uint8).reshape(height, len(mode), width).swapaxes(0, 1)
    except (OSError, ValueError, SyntaxError, EOFError) as error:
        raise _broken(where, error) from None


def _broken(where: str, error: Exception) -> InputError:
    return InputError(f"{where} cannot be read as an image: {error}")
