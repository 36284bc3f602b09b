"""Files that say which client was there when."""

import csv
import hashlib
import io
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gcfed.errors import InputError

COLUMNS = ("client", "from", "to")


class Stays(NamedTuple):
    """Client by client and round by round: from ``start`` until before ``stop``; see ``line``."""

    client: np.ndarray
    start: np.ndarray
    stop: np.ndarray
    line: np.ndarray


def read_trace(path: str) -> tuple[str, str, Stays]:
    """The absolute path of a trace, its SHA-256, and what it says."""
    file = Path(path).expanduser().absolute()
    try:
        data = file.read_bytes()
        text = data.decode("utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"there is no trace {file}") from None
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(f"{file}, line {line}: this is not text in UTF-8") from None
    return str(file), hashlib.sha256(data).hexdigest(), _parse(text, file)


def _parse(text: str, file: Path) -> Stays:
    rows = csv.reader(io.StringIO(text, newline=""), skipinitialspace=True, strict=True)
    stays: list[tuple[int, int, int, int]] = []
    names: list[str] = []
    try:
        for row in rows:
            if not names:
                names = _header(row)
            elif row:
                stays.append((*_stay(row, names), rows.line_num))
    except (csv.Error, ValueError) as error:
        raise InputError(f"{file}, line {max(rows.line_num, 1)}: {error}") from None
    if not stays:
        raise InputError(f"{file} says of nobody that they were there: it has no line of a client")
    return Stays(*np.array(stays, dtype=np.int64).T)


def _header(row: list[str]) -> list[str]:
    names = [name.strip() for name in row]
    if missing := [name for name in COLUMNS if name not in names]:
        wanted = f"the first line names the columns {', '.join(COLUMNS)}"
        raise ValueError(f"{wanted}; there is no {' and no '.join(missing)}")
    return names


def _stay(row: list[str], names: list[str]) -> tuple[int, int, int]:
    """A line's client, and the rounds from which and before which it was there."""
    if len(row) != len(names):
        raise ValueError(f"it holds {len(row)} values, and there are {len(names)} columns")
    values = dict(zip(names, row, strict=True))
    client, start, stop = (_count(name, values[name]) for name in COLUMNS)
    if start >= stop:
        raise ValueError(f"a stay ends after it begins; not from {start} to {stop}")
    return client, start, stop


def _count(name: str, text: str) -> int:
    if not (text.strip().isdecimal() and (value := int(text)) < 2**63):
        raise ValueError(f"{name} is a whole number from 0; not {text!r}")
    return value
