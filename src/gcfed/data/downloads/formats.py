"""Readers of the formats in which data sets are published: idx files and CIFAR's batches."""

import gzip
import hashlib
import math
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gcfed.data.downloads import pickles
from gcfed.data.downloads.catalog import File
from gcfed.errors import InputError

MAX_BYTES = 2**30
"""No published file is larger: EMNIST byclass has 547 MB of train images."""

_UBYTE = 8


def contents(path: Path) -> bytes:
    """A file's bytes, decompressed where its name ends in ``.gz``; damage is an `InputError`."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            blob = file.read(MAX_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} cannot be read: {error}") from None
    if len(blob) > MAX_BYTES:
        raise InputError(f"{path} holds more than {MAX_BYTES:,} bytes: no published file does")
    return blob


def md5_of(blob: bytes) -> str:
    return hashlib.md5(blob, usedforsecurity=False).hexdigest()


def md5_of_file(path: Path) -> str:
    """The md5 of a file as it is, read piece by piece."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, _md5).hexdigest()


def _md5() -> "hashlib._Hash":
    return hashlib.md5(usedforsecurity=False)


def verified(path: Path, file: File) -> bytes:
    """The contents of a file, which must be the published ones where their md5 is known."""
    blob = contents(path)
    if file.md5 is not None and md5_of(blob) != file.md5:
        raise InputError(
            f"{path} is not the published file ({len(blob):,} bytes of md5 {md5_of(blob)}, "
            f"expected {file.md5}): it is damaged, cut short or another; delete it and fetch anew"
        )
    return blob


def idx(blob: bytes, where: Path | str) -> np.ndarray:
    """An array of bytes in the idx format of MNIST; what is too short or too long is an error."""
    ndim = blob[3] if len(blob) >= 4 and blob[:3] == bytes([0, 0, _UBYTE]) else 0
    if not 1 <= ndim <= 4 or len(blob) < 4 * (1 + ndim):
        raise InputError(f"{where} is not an idx file of bytes")
    shape = [int(n) for n in np.frombuffer(blob, ">u4", ndim, 4)]
    found, size = len(blob) - 4 * (1 + ndim), math.prod(shape)
    if found != size:
        raise InputError(f"{where} announces {size:,} bytes of shape {shape} and holds {found:,}")
    return np.frombuffer(blob, np.uint8, offset=4 * (1 + ndim)).reshape(shape)


def idx_split(
    images: tuple[Path, File], labels: tuple[Path, File]
) -> tuple[np.ndarray, np.ndarray]:
    """Images ``[n, 1, 28, 28]`` and labels ``[n]`` of a data set in the manner of MNIST."""
    x, y = (idx(verified(path, file), path) for path, file in (images, labels))
    if x.ndim != 3 or x.shape[1:] != (28, 28) or y.ndim != 1:
        raise InputError(f"{images[0]} and {labels[0]} do not hold images of 28 x 28 and labels")
    if len(x) != len(y):
        raise InputError(f"{images[0]} holds {len(x)} images and {labels[0]} {len(y)} labels")
    return x[:, None], y


def cifar_batches(
    batches: Sequence[tuple[Path, File]], labels: str, num_classes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Images ``[n, 3, 32, 32]`` and labels ``[n]``, those of several files after each other."""
    parts = [_cifar_batch(path, file, labels, num_classes) for path, file in batches]
    return np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])


def _cifar_batch(
    path: Path, file: File, labels: str, num_classes: int
) -> tuple[np.ndarray, np.ndarray]:
    entries = pickles.loads(verified(path, file), str(path))
    x, y = entries.get("data"), entries.get(labels)
    if not isinstance(x, np.ndarray) or x.shape[1] != 3 * 32 * 32:
        raise InputError(f"{path} holds no images of 32 x 32")
    if not isinstance(y, list) or len(y) != len(x):
        raise InputError(f"{path} does not hold {labels!r} for its {len(x)} images")
    if not all(isinstance(label, int) and 0 <= label < num_classes for label in y):
        raise InputError(f"{path} holds labels that are not of {num_classes} classes")
    return x.reshape(-1, 3, 32, 32), np.array(y, np.uint8)


def cifar_names(path: Path, file: File, key: str) -> tuple[str, ...]:
    """The names of the classes."""
    names = pickles.loads(verified(path, file), str(path)).get(key)
    if not isinstance(names, list):
        raise InputError(f"{path} does not hold {key!r}")
    return tuple(name.decode("ascii", "replace") for name in names if isinstance(name, bytes))
