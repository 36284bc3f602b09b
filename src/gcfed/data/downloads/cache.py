"""Decoded data sets on disk, mapped into memory: processes that read one share its pages."""

import hashlib
import json
import os
import secrets
import warnings
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from gcfed.core.types import Examples

VERSION = 1
"""To be raised whenever a reader decodes differently: what older ones left is then made anew."""

_TENSORS = ("x_train", "y_train", "x_test", "y_test")


class Decoded(NamedTuple):
    """A data set as its files hold it."""

    train: Examples
    test: Examples
    class_names: tuple[str, ...] = ()


def cached(
    folder: Path, name: str, sources: Iterable[Path], decode: Callable[[], Decoded]
) -> Decoded:
    """What ``decode`` gives, from the cache if the sources have not changed since it was written.

    A source is known by its name, size and time of change.  A cache file that is damaged, of
    another version or of other sources is made anew.  Where none can be written, a warning says so.
    """
    path, origin = folder / f"{name}.safetensors", _fingerprint(sources)
    found = _read(path, origin)
    if found is not None:
        return found
    decoded = decode()
    try:
        _write(path, origin, decoded)
    except (OSError, SafetensorError) as error:
        warnings.warn(
            f"{name} is decoded anew every time, because {folder} cannot be written ({error})",
            stacklevel=2,
        )
        return decoded
    del decoded  # or it would be in memory twice when the file is mapped
    return _read(path, origin) or decode()


def _fingerprint(sources: Iterable[Path]) -> str:
    known = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in sources]
    return hashlib.sha256(json.dumps([VERSION, known]).encode()).hexdigest()


def _read(path: Path, origin: str) -> Decoded | None:
    """What a cache file holds, unless it is missing, outdated or damaged."""
    try:
        with safe_open(path, framework="pt") as file:
            notes = file.metadata() or {}
            if notes.get("origin") != origin or sorted(file.keys()) != sorted(_TENSORS):
                return None
            tensors = [file.get_tensor(name) for name in _TENSORS]
    except (OSError, SafetensorError, RuntimeError):  # the last if it changes while being opened
        return None
    if notes.get("crc32") != _checksum(tensors):
        return None
    x_train, y_train, x_test, y_test = tensors
    names = tuple(json.loads(notes["class_names"]))
    return Decoded(Examples(x_train, y_train), Examples(x_test, y_test), names)


def _write(path: Path, origin: str, decoded: Decoded) -> None:
    """Write beside and rename: a reader sees the old file or the whole new one, never a part."""
    (x_train, y_train), (x_test, y_test), names = decoded
    tensors = [torch.as_tensor(t).contiguous() for t in (x_train, y_train, x_test, y_test)]
    notes = {
        "origin": origin,
        "crc32": _checksum(tensors),
        "class_names": json.dumps(names),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        beside.touch()
        mode = beside.stat().st_mode
        save_file(dict(zip(_TENSORS, tensors, strict=True)), beside, notes)
        beside.chmod(mode)  # safetensors shuts everyone else out, and folders of data are shared
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _checksum(tensors: Iterable[torch.Tensor]) -> str:
    """A crc32 of all bytes: safetensors itself notices a file cut short, and no flipped bit."""
    total = 0
    for tensor in tensors:
        total = zlib.crc32(tensor.numpy().reshape(-1).view("u1").data, total)
    return f"{total:08x}"
