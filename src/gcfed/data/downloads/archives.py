"""Files out of a tar or zip archive that is not trusted.

An archive is read, never "extracted": no name, link, mode or device of its own reaches the disk.
Libraries do less.  ``tarfile.data_filter`` refuses devices and what leads out of the folder, but it
bounds no size and lets links within the folder pass, and ``zipfile`` has nothing like it.  pooch's
``Untar`` and ``Unzip`` bound no size either, leave what they extracted beside the archive when they
fail, and use that filter from Python 3.12 on only.
"""

import gzip
import lzma
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO, NamedTuple

from gcfed.errors import InputError

_CHUNK = 1 << 20
_DAMAGE = (
    *(tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, lzma.LZMAError),
    *(EOFError, OSError, NotImplementedError),
)


class _Member(NamedTuple):
    name: str
    size: int
    plain: bool
    open: Callable[[], IO[bytes] | None]


@contextmanager
def members(
    archive: Path, wanted: Mapping[str, str], beside: Path, limit: int
) -> Iterator[dict[str, Path]]:
    """The wanted files of an archive, by what they are to be called, in a folder that goes away.

    The folder lies in ``beside``, so that a file can be moved from it in one step.  `InputError`
    if a wanted file is missing, if the archive holds more than ``limit`` bytes, or if any member of
    it would leave the folder or is neither a plain file nor a folder.
    """
    with tempfile.TemporaryDirectory(prefix=".unpacking-", dir=beside) as name:
        yield _copy(archive, wanted, Path(name), limit)


def _copy(archive: Path, wanted: Mapping[str, str], folder: Path, limit: int) -> dict[str, Path]:
    found: dict[str, Path] = {}
    total = 0
    try:
        for member in _read(archive):
            total += member.size
            _refuse_unsafe(archive, member, limit - total)
            file = wanted.get(member.name)
            if file is None or file in found:
                continue
            found[file] = folder / f"{len(found)}{Path(file).suffix}"
            _write(archive, member, found[file])
    except _DAMAGE as error:
        raise InputError(f"{archive} cannot be unpacked: {error or type(error).__name__}") from None
    missing = [name for name, file in wanted.items() if file not in found]
    if missing:
        raise InputError(f"{archive} does not hold {', '.join(missing[:3])}")
    return found


def _read(archive: Path) -> Iterator[_Member]:
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as file:
            for info in file.infolist():
                yield _zip_member(file, info)
    else:
        with tarfile.open(archive) as tar:
            for entry in tar:
                yield _tar_member(tar, entry)


def _zip_member(file: zipfile.ZipFile, info: zipfile.ZipInfo) -> _Member:
    kind = stat.S_IFMT(info.external_attr >> 16)
    plain = kind in (0, stat.S_IFREG, stat.S_IFDIR) and not info.flag_bits & 1  # 1: encrypted
    return _Member(info.filename, info.file_size, plain, lambda: file.open(info))


def _tar_member(tar: tarfile.TarFile, entry: tarfile.TarInfo) -> _Member:
    plain = entry.isdir() or (entry.isreg() and not entry.issparse())
    return _Member(entry.name, entry.size, plain, lambda: tar.extractfile(entry))


def _refuse_unsafe(archive: Path, member: _Member, left: int) -> None:
    for path in (PurePosixPath(member.name), PureWindowsPath(member.name)):
        if path.is_absolute() or path.drive or ".." in path.parts:
            raise InputError(f"{archive} is not safe: {member.name!r} leads out of its folder")
    if not member.plain:
        raise InputError(f"{archive} is not safe: {member.name!r} is a link, a device or locked")
    if left < 0:
        raise InputError(f"{archive} is not safe: it holds far more than it should")


def _write(archive: Path, member: _Member, target: Path) -> None:
    """Copy a member, and no more of it than the archive announced."""
    source, left = member.open(), member.size
    if source is None:
        raise InputError(f"{archive} holds {member.name!r} as a folder, not as a file")
    with source, target.open("wb") as file:
        while chunk := source.read(_CHUNK):
            left -= len(chunk)
            if left < 0:
                raise InputError(f"{archive} is not safe: {member.name!r} is longer than it says")
            file.write(chunk)
    if left:
        raise InputError(f"{archive} is cut short in {member.name!r}")
