"""The official layout of Tiny ImageNet, as the published zip or unpacked."""

import os
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gcfed.data.datasets.images import decode_all
from gcfed.errors import InputError

_SIZE = (64, 64)
_FOLDER = "tiny-imagenet-200/"

_HEAD = struct.Struct("<26xHH")  # of a member of a zip: how long its name and what follows that are


class _Tree(NamedTuple):
    """Files by their path in the official folder."""

    where: Path
    names: frozenset[str]
    read: Callable[[str], bytes]

    def lines(self, name: str) -> list[list[str]]:
        """A text file, its lines cut at tabs."""
        try:
            text = self.read(name).decode("utf-8")
        except (KeyError, OSError, UnicodeDecodeError) as error:
            raise InputError(f"{self.where}: {name} cannot be read: {error}") from None
        return [line.split("\t") for line in text.splitlines() if line]


class Pixels(NamedTuple):
    """Images of both splits with their labels, and the names of the classes."""

    train: tuple[np.ndarray, np.ndarray]
    val: tuple[np.ndarray, np.ndarray]
    class_names: tuple[str, ...]


def origins(path: Path) -> list[Path]:
    """The files and folders by whose change a change of the data set is noticed."""
    if path.is_file():
        return [path]
    listed = [path / "wnids.txt", path / "words.txt", path / "val" / "val_annotations.txt"]
    folders = [path / "val" / "images", *path.glob("train/*/images")]
    return sorted(p for p in (*listed, *folders) if p.exists())


def read(path: Path) -> Pixels:
    """Train and validation images; a label is the rank of its WordNet id, as ImageFolder has it.

    A part of the data set in the same layout is read too.  Grey images become RGB.
    """
    with _tree(path) as tree:
        ids = sorted(line[0] for line in tree.lines("wnids.txt"))
        labels = {wordnet_id: label for label, wordnet_id in enumerate(ids)}
        words = {line[0]: line[-1].split(",")[0] for line in tree.lines("words.txt")}
        names = tuple(words.get(wordnet_id, wordnet_id) for wordnet_id in ids)
        train, val = _train(tree, labels), _val(tree, labels)
        return Pixels(_images(tree, train), _images(tree, val), names)


def _train(tree: _Tree, labels: dict[str, int]) -> dict[str, int]:
    """Train images, class by class, with their labels: train/n01443537/images/*.JPEG."""
    found = {}
    for name in sorted(n for n in tree.names if n.startswith("train/") and n.endswith(".JPEG")):
        wordnet_id = name.split("/")[1]
        if wordnet_id not in labels:
            raise InputError(f"{tree.where}: {wordnet_id!r} of {name} is not in wnids.txt")
        found[name] = labels[wordnet_id]
    return found


def _val(tree: _Tree, labels: dict[str, int]) -> dict[str, int]:
    found = {}
    for name, wordnet_id, *_ in tree.lines("val/val_annotations.txt"):
        if wordnet_id not in labels:
            raise InputError(f"{tree.where}: {wordnet_id!r} of {name} is not in wnids.txt")
        if f"val/images/{name}" not in tree.names:
            raise InputError(f"{tree.where} lacks val/images/{name}")
        found[f"val/images/{name}"] = labels[wordnet_id]
    return found


def _images(tree: _Tree, labels: dict[str, int]) -> tuple[np.ndarray, np.ndarray]:
    if not labels:
        raise InputError(f"{tree.where} holds no images in the layout of Tiny ImageNet")
    try:
        x = decode_all(list(labels), tree.read, _SIZE, "RGB")
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise InputError(f"{tree.where} is damaged: {error}") from None
    return x, np.array(list(labels.values()), np.uint8)


@contextmanager
def _tree(path: Path) -> Iterator[_Tree]:
    if path.is_dir():
        names = frozenset(p.relative_to(path).as_posix() for p in path.rglob("*.JPEG"))
        yield _Tree(path, names, lambda name: (path / name).read_bytes())
        return
    try:
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, OSError) as error:
        raise InputError(f"{path} is damaged: {error}") from None
    with archive, path.open("rb") as file:
        names = frozenset(n.removeprefix(_FOLDER) for n in archive.namelist())
        yield _Tree(path, names, lambda name: _member(archive, file.fileno(), _FOLDER + name))


def _member(archive: zipfile.ZipFile, file: int, name: str) -> bytes:
    """What a zip holds under a name; ``file`` is the number of its open file.

    `ZipFile.read` makes a file object of each member, which takes a sixth of reading a small image.
    It is asked where a member is not as most are, and says what is wrong with one.
    """
    info = archive.getinfo(name)
    with suppress(struct.error, zlib.error):
        rest = _HEAD.unpack(os.pread(file, _HEAD.size, info.header_offset))
        start = info.header_offset + _HEAD.size + sum(rest)
        data = os.pread(file, info.compress_size, start)
        if info.compress_type == zipfile.ZIP_DEFLATED:
            data = zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, info.file_size + 1)
        if len(data) == info.file_size and zlib.crc32(data) == info.CRC:
            return data
    return archive.read(info)
