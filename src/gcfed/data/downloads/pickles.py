"""Read the pickles in which CIFAR is published, and let them do nothing else.

A pickle is a program, and some of its instructions call whatever the file names.  So a file is
read twice.  The first pass looks at every instruction and refuses those that the official files do
not hold.  The second is `pickle.Unpickler`, for which the three numpy names of those files stand
for two classes of ours, which can only become an array of the bytes that the file itself holds.
What is made takes memory in proportion to the file's own length.
"""

import io
import pickle
from pickletools import genops, markobject
from typing import Any

import numpy as np

from gcfed.errors import InputError

MAX_BYTES = 200_000_000
"""No official file is longer than 156 MB."""

MAX_TUPLES = 20
"""The official files hold 6; many could be nested too deeply to be compared or hashed."""

ALLOWED = {
    *("PROTO", "MARK", "STOP", "NONE", "NEWFALSE", "GLOBAL", "REDUCE", "BUILD"),
    *("EMPTY_DICT", "SETITEMS", "EMPTY_LIST", "APPENDS", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"),
    *("BININT", "BININT1", "BININT2", "BINSTRING", "SHORT_BINSTRING", "BINPUT", "LONG_BINPUT"),
}
"""The instructions of the official files; none of them recalls a value, so nothing is shared."""

Value = int | bytes | list[int] | list[bytes] | np.ndarray
"""What an entry of an official file may be."""


class _RefusedError(Exception):
    """The file holds something that the official ones do not."""


def loads(blob: bytes, where: str) -> dict[str, Value]:
    """The dictionary that a file holds: numbers, byte strings, lists of either, arrays of uint8.

    ``where`` names the file in the `InputError` that anything else raises.
    """
    if len(blob) > MAX_BYTES:
        raise InputError(f"{where}: {len(blob):,} bytes are more than any CIFAR file holds")
    try:
        _check(blob)
        found = _Unpickler(io.BytesIO(blob), encoding="bytes").load()
        if not isinstance(found, dict):
            raise _RefusedError("it does not hold a dictionary")
        return {_word(key): _value(item) for key, item in found.items()}
    except Exception as error:  # what a hostile program meets may be any of them
        reason = str(error)[:200] or type(error).__name__
        raise InputError(f"{where} is not one of CIFAR's python files: {reason}") from None


def _check(blob: bytes) -> None:
    """Refuse a file for what it tells an unpickler to do.

    Values are numbered as they come, because an unpickler makes room for as many as a number says.
    """
    if not blob.startswith(b"\x80\x02"):
        raise _RefusedError("it does not begin as a pickle of protocol 2")
    height, num_tuples, num_puts, position, marks = 0, 0, 0, 0, list[int]()
    for code, argument, start in genops(blob):
        position = start or 0
        if code.name not in ALLOWED:
            raise _RefusedError(f"it holds the instruction {code.name}")
        num_puts += code.name.endswith("BINPUT")
        if code.name.endswith("BINPUT") and argument != num_puts:
            raise _RefusedError("it does not number its values as they come")
        num_tuples += code.name.startswith("TUPLE")
        if num_tuples > MAX_TUPLES:
            raise _RefusedError(f"it holds more than {MAX_TUPLES} tuples")
        before, after = code.stack_before, code.stack_after
        if markobject in after:
            marks.append(height)
        elif markobject in before:
            height = marks.pop() - before.index(markobject) + len(after)
        else:
            height += len(after) - len(before)
    if height or marks or position + 1 != len(blob):
        raise _RefusedError("something is left on its stack, or follows its end")


class _Bytes:
    """The dtype of bytes, the only one there is."""

    def __init__(self, *arguments: object) -> None:
        if arguments != (b"u1", 0, 1):
            raise _RefusedError("it holds an array of something else than bytes")

    def __setstate__(self, state: object) -> None:
        if state != (3, b"|", None, None, None, -1, -1, 0):
            raise _RefusedError("its bytes are of an unknown kind")


class _Array:
    """An array, which the file first makes empty and then fills."""

    value: np.ndarray | None = None

    def __init__(self, *arguments: object) -> None:
        if arguments != (_NDARRAY, (0,), b"b"):
            raise _RefusedError("it asks for a call that makes no array of bytes")

    def __setstate__(self, state: object) -> None:
        match state:
            case (1, (int(rows), int(columns)), _Bytes(), False, bytes(raw)):
                if rows >= 0 and columns >= 0 and rows * columns == len(raw):
                    self.value = np.frombuffer(raw, np.uint8).reshape(rows, columns)
                    return
        raise _RefusedError("an array's shape does not fit its bytes")


_NDARRAY = object()
_NAMES = {
    "numpy.core.multiarray._reconstruct": _Array,
    "numpy.ndarray": _NDARRAY,
    "numpy.dtype": _Bytes,
}


class _Unpickler(pickle.Unpickler):
    """An unpickler that finds nothing but our stand-ins for numpy's names."""

    def find_class(self, module: str, name: str) -> Any:
        if (found := _NAMES.get(f"{module}.{name}")) is None:
            raise _RefusedError(f"it names {module}.{name}, which is neither array nor bytes")
        return found


def _word(key: object) -> str:
    if not isinstance(key, bytes) or not key.isascii():
        raise _RefusedError("it has a key that is not a word")
    return key.decode("ascii")


def _value(item: object) -> Value:
    if isinstance(item, _Array) and item.value is not None:
        return item.value
    if type(item) in (int, bytes):
        return item  # type: ignore[return-value]
    if isinstance(item, list) and ({type(v) for v in item} in ({int}, {bytes}, set())):
        return item
    raise _RefusedError("an entry is neither numbers, words nor an array of bytes")
