"""Files that are whole or not there: written beside their place and moved into it."""

import json
import os
import shlex
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gcfed.errors import InputError

PART = ".part"
"""How the name of a file ends that is not whole yet."""


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` make a file, and put it in the place of ``path`` in one step."""
    with naming(path):
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=PART)
        os.close(handle)
        temporary = Path(name)
        try:
            write(temporary)
            sync(temporary)
            mask = os.umask(0)
            os.umask(mask)
            temporary.chmod(0o666 & ~mask)  # mkstemp makes files for one's own eyes
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_bytes(path: Path, data: bytes) -> None:
    write_atomically(path, lambda temporary: temporary.write_bytes(data))


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def append(path: Path, data: bytes) -> None:
    with naming(path), path.open("ab") as file:
        file.write(data)


def sync(path: Path) -> None:
    """Wait until what was written to a file is on the disk."""
    with naming(path), path.open("rb+") as file:
        os.fsync(file.fileno())


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let an error of the disk say which file it met, and not one beside it on the way there."""
    try:
        yield
    except OSError as error:
        if not error.filename or Path(error.filename).suffix == PART:
            error.filename = str(path)
        raise


def create_folder(path: Path, *, exist_ok: bool = False) -> Path:
    """A new folder; one that is there already is only written into if that is ``exist_ok``."""
    try:
        path.mkdir(parents=True, exist_ok=exist_ok)
    except OSError as error:
        raise InputError(f"{path} cannot be made: {error.strerror}") from None
    return path


def refuse_existing(path: Path) -> None:
    """Say so, before any work is done, if ``path`` is taken or lies below what is no folder."""
    if path.exists() or path.is_symlink():
        raise InputError(f"{path} exists already: name another folder")
    above = next(folder for folder in path.absolute().parents if folder.exists())
    if not above.is_dir():
        raise InputError(f"{path} cannot be made: {above} is a file, not a folder")


def unused_folder(parent: Path, name: str) -> Path:
    """A folder that is not there yet: ``name``, ``name-2``, ``name-3``, ..."""
    path, number = parent / name, 1
    while path.exists():
        number += 1
        path = parent / f"{name}-{number}"
    return path


def quoted(path: Path) -> str:
    """A path as a shell takes it, in a command that a person would copy.

    >>> quoted(Path("runs/a")), quoted(Path("my runs/a"))
    ('runs/a', "'my runs/a'")
    """
    return shlex.quote(str(path))
