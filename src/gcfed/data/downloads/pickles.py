"""Read the pickles in which CIFAR is published, without unpickling.

A pickle is a program for a small stack machine, and some of its instructions call whatever the file
names.  This reader knows only the instructions that the official files hold, calls nothing, and
reads "a call" of the two numpy names found there as the description of an array of bytes.  What it
makes takes memory in proportion to the file's own length.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from gcfed.errors import InputError

MAX_BYTES = 200_000_000
"""No official file is longer than 156 MB."""

Value = int | bytes | list[int] | list[bytes] | np.ndarray
"""What an entry of an official file may be."""


class _RefusedError(Exception):
    """The file holds something that the official ones do not."""


class _Name(NamedTuple):
    """A name of the file's, to be compared and never looked up."""

    text: str


_RECONSTRUCT = _Name("numpy.core.multiarray _reconstruct")
_NDARRAY = _Name("numpy ndarray")
_DTYPE = _Name("numpy dtype")
_NAMES = {n.text: n for n in (_RECONSTRUCT, _NDARRAY, _DTYPE)}


class _Bytes:
    """The dtype of bytes, the only one there is."""


@dataclass
class _Array:
    """An array to be: empty until its contents are built."""

    value: np.ndarray | None = None


_MARK = object()


def loads(blob: bytes, where: str) -> dict[str, Value]:
    """The dictionary that a file holds: numbers, byte strings, lists of either, arrays of uint8.

    ``where`` names the file in the `InputError` that anything else raises.
    """
    if len(blob) > MAX_BYTES:
        raise InputError(f"{where}: {len(blob):,} bytes are more than any CIFAR file holds")
    try:
        return _dictionary(_Machine(blob).run())
    except _RefusedError as error:
        raise InputError(f"{where} is not one of CIFAR's python files: {error}") from None


def _dictionary(value: object) -> dict[str, Value]:
    if not isinstance(value, dict):
        raise _RefusedError("it does not hold a dictionary")
    return {_text(key): _value(item) for key, item in value.items()}


def _text(key: object) -> str:
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


class _Machine:
    """The stack machine: one method an instruction, each reading its operands from the file."""

    def __init__(self, blob: bytes) -> None:
        self.blob, self.position = memoryview(blob), 0
        self.stack: list[Any] = []

    def run(self) -> object:
        """Follow the instructions up to the one that stops."""
        if self.take(2) != b"\x80\x02":
            raise _RefusedError("it does not begin as a pickle of protocol 2")
        while (code := self.take(1)) != b".":
            step = _STEPS.get(code)
            if step is None:
                raise _RefusedError(f"it holds the instruction {code!r}")
            step(self)
        value = self.pop()
        if self.stack or self.position != len(self.blob):
            raise _RefusedError("something follows its end")
        return value

    def take(self, size: int) -> bytes:
        return bytes(self.view(size))

    def view(self, size: int) -> memoryview:
        end = self.position + size
        if end > len(self.blob):
            raise _RefusedError("it is cut short")
        part, self.position = self.blob[self.position : end], end
        return part

    def skip(self, size: int) -> None:
        self.view(size)

    def number(self, size: int) -> int:
        return int.from_bytes(self.view(size), "little", signed=size == 4)

    def line(self) -> str:
        """A name, up to the end of its line; none in the official files is longer than 21."""
        text, newline, _ = bytes(self.blob[self.position : self.position + 64]).partition(b"\n")
        if not newline or not text.isascii():
            raise _RefusedError("a name does not end")
        self.position += len(text) + 1
        return text.decode("ascii")

    def push(self, value: object) -> None:
        self.stack.append(value)

    def pop(self) -> Any:
        if not self.stack or self.stack[-1] is _MARK:
            raise _RefusedError("its stack runs empty")
        return self.stack.pop()

    def top(self, kind: type) -> Any:
        if not self.stack or type(self.stack[-1]) is not kind:
            raise _RefusedError(f"there is no {kind.__name__} where one is filled")
        return self.stack[-1]

    def since_mark(self) -> list[Any]:
        items = []
        while self.stack and self.stack[-1] is not _MARK:
            items.append(self.stack.pop())
        if not self.stack:
            raise _RefusedError("a mark is missing")
        self.stack.pop()
        return items[::-1]

    def string(self, size: int) -> None:
        """A short string is copied; the pixels of an array stay where the file has them."""
        if size < 0:
            raise _RefusedError("a string is of negative length")
        self.push(self.take(size) if size < 256 else self.view(size))

    def name(self) -> None:
        text = f"{self.line()} {self.line()}"
        if text not in _NAMES:
            raise _RefusedError(
                f"it names {text.replace(' ', '.')}, which is neither array nor bytes"
            )
        self.push(_NAMES[text])

    def tuple(self, size: int) -> None:
        self.push(tuple([self.pop() for _ in range(size)][::-1]))

    def extend(self) -> None:
        items = self.since_mark()
        self.top(list).extend(items)

    def update(self) -> None:
        items = self.since_mark()
        target, keys = self.top(dict), items[::2]
        if len(items) % 2 or not all(isinstance(key, bytes) for key in keys):
            raise _RefusedError("it has a key that is not a word")
        target.update(zip(keys, items[1::2], strict=True))

    def reduce(self) -> None:
        """What would be a call: of the two that an array needs, with their only arguments."""
        arguments, function = self.pop(), self.pop()
        if _same(function, _RECONSTRUCT) and _same(arguments, (_NDARRAY, (0,), b"b")):
            self.push(_Array())
        elif _same(function, _DTYPE) and _same(arguments, (b"u1", 0, 1)):
            self.push(_Bytes())
        else:
            raise _RefusedError("it asks for a call that makes no array of bytes")

    def build(self) -> None:
        """Give an array its shape and bytes; a dtype's state says nothing new."""
        state = self.pop()
        if self.stack and isinstance(self.stack[-1], _Bytes):
            if not _same(state, (3, b"|", None, None, None, -1, -1, 0)):
                raise _RefusedError("its bytes are of an unknown kind")
            return
        array: _Array = self.top(_Array)
        array.value = _filled(state)


def _same(value: object, expected: object) -> bool:
    """Equality that compares types too, and looks no deeper than what is expected."""
    if type(value) is not type(expected):
        return False
    if isinstance(value, tuple) and isinstance(expected, tuple) and not isinstance(value, _Name):
        return len(value) == len(expected) and all(map(_same, value, expected))
    return bool(value == expected)


def _filled(state: object) -> np.ndarray:
    match state:
        case (1, (int(rows), int(columns)), _Bytes(), False, memoryview() | bytes() as raw):
            if rows >= 0 and columns >= 0 and rows * columns == len(raw):
                return np.frombuffer(raw, np.uint8).reshape(rows, columns)
    raise _RefusedError("an array's shape does not fit its bytes")


Step = Callable[[_Machine], None]
_STEPS: dict[bytes, Step] = {
    b"}": lambda m: m.push({}),
    b"]": lambda m: m.push([]),
    b"(": lambda m: m.push(_MARK),
    b"N": lambda m: m.push(None),
    b"\x89": lambda m: m.push(False),
    b"K": lambda m: m.push(m.number(1)),
    b"M": lambda m: m.push(m.number(2)),
    b"J": lambda m: m.push(m.number(4)),
    b"U": lambda m: m.string(m.number(1)),
    b"T": lambda m: m.string(m.number(4)),
    b"q": lambda m: m.skip(1),  # remembers a value; nothing in the official files recalls one
    b"r": lambda m: m.skip(4),
    b"c": _Machine.name,
    b"\x85": lambda m: m.tuple(1),
    b"\x86": lambda m: m.tuple(2),
    b"\x87": lambda m: m.tuple(3),
    b"t": lambda m: m.push(tuple(m.since_mark())),
    b"e": _Machine.extend,
    b"u": _Machine.update,
    b"R": _Machine.reduce,
    b"b": _Machine.build,
}
