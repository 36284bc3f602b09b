"""CIFAR's pickles are read, and nothing that a pickle could do besides is done."""

import contextlib
import os
import pickle
import pickletools
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from gcfed.data.downloads import pickles
from gcfed.errors import InputError

PIXELS = bytes(range(256)) * 24


PUT = b"q\xff"
"""An instruction to remember a value, which `numbered` gives its number."""


def text(value: bytes) -> bytes:
    return b"U" + bytes([len(value)]) + value + PUT


def numbered(blob: bytes) -> bytes:
    """Values are remembered under 1, 2, 3, ..."""
    first, *parts = blob.split(PUT)
    return first + b"".join(b"q" + bytes([n]) + part for n, part in enumerate(parts, 1))


def official(rows=2, columns=3072, raw=PIXELS) -> bytes:
    """A batch of two images, instruction by instruction as the official files have it."""
    data = (
        b"cnumpy.core.multiarray\n_reconstruct\n" + PUT + b"cnumpy\nndarray\n" + PUT
        + b"K\x00\x85U\x01b\x87R" + PUT
        + b"(K\x01M" + rows.to_bytes(2, "little") + b"M" + columns.to_bytes(2, "little")
        + b"\x86cnumpy\ndtype\n" + PUT + b"U\x02u1K\x00K\x01\x87R" + PUT
        + b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        + b"\x89T" + len(raw).to_bytes(4, "little") + b"RAW" + b"tb"
    )  # fmt: skip
    whole = (
        b"\x80\x02}" + PUT + b"("
        + text(b"batch_label") + text(b"testing batch 1 of 1")
        + text(b"labels") + b"]" + PUT + b"(K\x03K\x07e"
        + text(b"data") + data
        + text(b"filenames") + b"]" + PUT + b"(" + text(b"a.png") + text(b"b.png") + b"eu."
    )  # fmt: skip
    return numbered(whole).replace(b"RAW", raw)


def read(blob):
    return pickles.loads(blob, "batch")


def test_an_official_batch_is_read():
    found = read(official())
    assert found["labels"] == [3, 7] and found["filenames"] == [b"a.png", b"b.png"]
    assert found["data"].dtype == np.uint8 and found["data"].tobytes() == PIXELS
    assert found["data"].shape == (2, 3072)
    trusted = pickle.loads(official(), encoding="bytes")
    assert np.array_equal(trusted[b"data"], found["data"])


class Call:
    """Pickled as a call of any function."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def bomb():
    items: list = []
    for _ in range(40):
        items = [items, items]
    return items


MALICIOUS = {
    "os.system": Call(os.system, "touch ran"),
    "eval": Call(eval, "open('ran', 'w').close()"),
    "exec": Call(exec, "open('ran', 'w').close()"),
    "open": Call(open, "ran", "w"),
    "getattr": Call(getattr, Call(__import__, "os"), "system"),
    "nested": {b"data": [Call(os.system, "touch ran")], b"labels": [1]},
    "call in a call": Call(print, Call(os.system, "touch ran")),
    "numpy.load": Call(np.load, "ran", None, True),
    "a large array": Call(np.zeros, 1 << 40),
    "objects": {b"data": np.array([Call(os.system, "touch ran")], object)},
    "numbers": {b"data": np.arange(4)},
    "a bomb": {b"labels": bomb()},
    "a list": [1, 2],
    "a set": {b"labels": {1, 2}},
    "a float": {b"labels": 0.5},
}


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("name", MALICIOUS)
def test_nothing_runs(name, protocol, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blob = pickle.dumps(MALICIOUS[name], protocol, fix_imports=True)
    tracemalloc.start()
    with pytest.raises(InputError, match=r"^batch is not one of CIFAR's python files: "):
        read(blob)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert not Path("ran").exists() and peak < 10_000_000


HEAD = b"\x80\x02}("
ARRAY = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
CRAFTED = {
    "reduce of a string": HEAD + b"U\x01aU\x01b\x85Ru.",
    "ndarray called": HEAD + b"U\x01acnumpy\nndarray\nJ\xff\xff\xff\x7f\x85Ru.",
    "dtype of objects": HEAD + b"U\x01acnumpy\ndtype\nU\x02O8K\x00K\x01\x87Ru.",
    "an array never filled": HEAD + b"U\x01a" + ARRAY + b"u.",
    "build of a list": HEAD + b"U\x01a]K\x01bu.",
    "a name without end": b"\x80\x02c" + b"a" * 1000,
    "a name beyond ASCII": b"\x80\x02cnumpy\xff\nndarray\n.",
    "a string longer than the file": HEAD + b"U\x01aT\xff\xff\xff\x7fxu.",
    "a string of negative length": HEAD + b"U\x01aT\xff\xff\xff\xffxu.",
    "an odd number of entries": HEAD + b"U\x01au.",
    "a key that is a list": HEAD + b"]K\x01u.",
    "no mark": b"\x80\x02}K\x01u.",
    "an empty stack": b"\x80\x02R.",
    "a tuple of a mark": b"\x80\x02(\x85.",
    "a mark at the end": b"\x80\x02}(.",
    "something after the end": official() + b"x",
    "something left on the stack": b"\x80\x02K\x01}.",
    "a get": HEAD + b"U\x01ah\x01u.",
    "a duplicate": HEAD + b"U\x01a2u.",
    "persistent": HEAD + b"U\x01aPos\nu.",
    "inst": b"\x80\x02(S'touch ran'\nios\nsystem\n.",
    "obj": b"\x80\x02(cos\nsystem\nU\x09touch rano.",
    "extension": b"\x80\x02\x82\x01.",
    "a value remembered far away": b"\x80\x02}r\xff\xff\xff\x7f.",
    "a value remembered too early": b"\x80\x02}q\x02.",
    "bytes longer than memory": b"\x80\x02\x96\xff\xff\xff\xff\xff\xff\xff\x7f.",
    "a frame longer than memory": b"\x80\x02\x95\xff\xff\xff\xff\xff\xff\xff\x7f.",
    "a number longer than memory": b"\x80\x02\x8b\xff\xff\xff\x7f.",
    "build of a name": HEAD + b"U\x01acnumpy\ndtype\n}(U\x01xK\x01ubu.",
    "build of an array's name": HEAD + b"U\x01acnumpy\nndarray\n}(U\x01xK\x01ubu.",
    "append to a name": HEAD + b"U\x01acnumpy\ndtype\n(K\x01eu.",
    "a deep key": b"\x80\x02}(K\x01" + b"\x85" * 1_000_000 + b"K\x01u.",
    "stack_global": b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
    "deep": b"\x80\x02" + b"]" * 100_000 + b"(" * 100_000 + b"e" * 100_000 + b".",
    "deep tuples": b"\x80\x02K\x01" + b"\x85" * 1_000_000 + b".",
    "empty": b"",
}


@pytest.mark.parametrize("blob", CRAFTED.values(), ids=CRAFTED)
def test_crafted_programs_are_refused(blob, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"^batch is not one of CIFAR's python files: "):
        read(blob)
    assert not Path("ran").exists()


@pytest.mark.parametrize(
    "changes",
    [{"rows": 3}, {"rows": 65535, "columns": 65535}, {"raw": PIXELS[:-1]}, {"raw": b""}],
    ids=str,
)
def test_a_shape_must_fit_its_bytes(changes):
    with pytest.raises(InputError, match="shape does not fit"):
        read(official(**changes))


def test_a_file_too_long_is_not_looked_at(monkeypatch):
    monkeypatch.setattr(pickles, "MAX_BYTES", 100)
    with pytest.raises(InputError, match="more than any CIFAR file"):
        read(official())


def test_every_cut_is_noticed():
    blob = official()
    for end in [*range(200), *range(200, len(blob), 97), len(blob) - 1]:
        with pytest.raises(InputError):
            read(blob[:end])


CODES = [op.code.encode("latin-1") for op in pickletools.opcodes]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(CODES) | st.binary(max_size=6), max_size=30))
def test_any_bytes_give_an_answer_or_an_input_error(parts):
    with contextlib.suppress(InputError):
        read(b"\x80\x02" + b"".join(parts) + b".")


@settings(max_examples=300, deadline=None)
@given(st.integers(0, len(official()) - 1), st.integers(0, 255))
def test_a_changed_byte_gives_an_answer_or_an_input_error(position, value):
    blob = bytearray(official())
    blob[position] = value
    with contextlib.suppress(InputError):
        read(bytes(blob))


def changed(blob, changes):
    """The file with pieces of it replaced, which may make it shorter or longer."""
    for start, length, piece in changes:
        start %= len(blob) + 1
        blob = blob[:start] + piece + blob[start + length :]
    return blob


CHANGES = st.lists(
    st.tuples(
        st.integers(0, 10_000), st.integers(0, 8), st.sampled_from(CODES) | st.binary(max_size=9)
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=500, deadline=None)
@given(CHANGES, st.sampled_from([(1, 20, b""), (2, 3072, PIXELS)]))
def test_a_mutated_file_gives_an_answer_or_an_input_error(changes, shape):
    """Whatever it becomes, it takes memory in proportion to its length."""
    rows, columns, raw = shape
    blob = changed(official(rows, columns, raw or bytes(20)), changes)
    tracemalloc.start()
    with contextlib.suppress(InputError):
        found = read(blob)
        assert all(isinstance(key, str) for key in found)
        assert all(isinstance(v, int | bytes | list | np.ndarray) for v in found.values())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000 + 100 * len(blob)


def test_a_file_changes_nothing_of_the_reader():
    before = {name: dict(vars(kind)) for name, kind in KINDS.items()}
    for blob in CRAFTED.values():
        with pytest.raises(InputError):
            read(blob)
    assert {name: dict(vars(kind)) for name, kind in KINDS.items()} == before


KINDS = {name: kind for name, kind in pickles._NAMES.items() if isinstance(kind, type)}
