"""Image files to arrays, by Pillow."""

import io
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from PIL import Image

from gcfed.errors import InputError
from gcfed.processes import available_cores

FORMATS = ("JPEG", "PNG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
"""What is decoded; Pillow's other formats, some of which run programs, are not."""

ColorMode = Literal["RGB", "L"]

AT_ONCE = 64  # images that a thread is given: to hand over each alone costs a tenth of reading it

SMALL = 128 * 128  # pixels; up to so many, threads wait for each other longer than they decode

_MAX_PIXELS = 2**26


class Header(NamedTuple):
    """What an image file says of itself before it is decoded."""

    size: tuple[int, int]
    mode: ColorMode


def header(path: Path) -> Header:
    """Width, height and whether an image is grey."""
    with _opened(lambda: path, str(path)) as image:
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
        with _opened(lambda: io.BytesIO(read(names[i])), names[i]) as image:
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


def _opened(source: Callable[[], Path | io.BytesIO], where: str) -> Image.Image:
    try:
        image = Image.open(source(), formats=FORMATS)
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
