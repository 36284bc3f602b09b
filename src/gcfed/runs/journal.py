"""A file that only grows, a line at a time, and can be cut back to where it was."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from gcfed.files import append, sync


class DamagedError(Exception):
    """A file is not what it was when it was written."""


class Mark(NamedTuple):
    """A place in a journal: how many bytes come before it, and their hash."""

    bytes: int = 0
    sha256: str = hashlib.sha256().hexdigest()


class Journal:
    """Lines of JSON in a file; a torn line at its end does not count."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.num_lines = 0
        self._bytes = 0
        self._digest = hashlib.sha256()

    def append(self, value: Any) -> None:
        line = json.dumps(value, allow_nan=False).encode() + b"\n"
        append(self.path, line)
        self._digest.update(line)
        self._bytes += len(line)
        self.num_lines += 1

    def mark(self) -> Mark:
        """The place at its end, once everything before it is safe on the disk."""
        sync(self.path)
        return Mark(self._bytes, self._digest.hexdigest())

    def read(self, mark: Mark) -> list[Any]:
        """Its lines up to ``mark``."""
        data = self._until(mark)
        return [json.loads(line) for line in data.splitlines()]

    def cut(self, mark: Mark) -> None:
        """Delete what comes after ``mark``; makes the file where there is none."""
        data = self._until(mark)
        self.path.touch()
        os.truncate(self.path, len(data))
        self._bytes, self._digest = len(data), hashlib.sha256(data)
        self.num_lines = data.count(b"\n")

    def _until(self, mark: Mark) -> bytes:
        data = b""
        if mark.bytes:
            try:
                with self.path.open("rb") as file:
                    data = file.read(mark.bytes)
            except OSError as error:
                raise DamagedError(f"{self.path.name}: {error.strerror}") from None
        if hashlib.sha256(data).hexdigest() != mark.sha256:
            raise DamagedError(f"{self.path.name} is not what was written")
        return data
