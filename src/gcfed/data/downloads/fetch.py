"""Published data sets on this machine: fetch what is missing, say what is there."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from filelock import FileLock

from gcfed.data.datasets.dataset import DATASETS
from gcfed.data.downloads.archives import members
from gcfed.data.downloads.catalog import (
    PUBLICATIONS,
    Download,
    File,
    Publication,
    publication,
    sources,
)
from gcfed.data.downloads.formats import contents, idx, md5_of, md5_of_file
from gcfed.errors import InputError

CACHE = ".gcfed-cache"
"""The folder, in the folder of data, for what gcfed makes and may make again."""

FileVerdict = Literal["verified", "unverified", "different", "folder", "empty", "missing"]
"""Of a file: its md5 is the published one; it can be read and no md5 is published; it is not the
published file; a folder lies where it belongs; it may be a folder, which holds no file; it is not
there."""


@dataclass(frozen=True)
class FileStatus:
    """What is known of one file of a data set; ``path`` is where it lies."""

    file: str
    status: FileVerdict
    path: Path | None = None


@dataclass(frozen=True)
class DatasetInfo:
    """A registered data set, and what of it is in the folder of data.

    One without ``sources`` needs no download: it is part of gcfed or the user's own.
    """

    name: str
    description: str
    sources: tuple[Download, ...]
    present: tuple[str, ...]
    missing: tuple[str, ...]

    @property
    def size(self) -> int:
        """The bytes to download, about."""
        return sum(source.size for source in self.sources)


def info(name: str, root: Path) -> DatasetInfo:
    """What there is to know of a data set without reading it."""
    published = PUBLICATIONS.get(name)
    files = () if published is None else published.files
    there = tuple(f.name for f in files if f.find(root) is not None)
    missing = tuple(f.name for f in files if f.name not in there)
    return DatasetInfo(name, DATASETS.describe(name), sources(name), there, missing)


def check(name: str, root: Path) -> list[FileStatus]:
    """Read every file of a published data set and compare it with what was published."""
    return [_status(file, root) for file in publication(name).files]


def _status(file: File, root: Path) -> FileStatus:
    path = file.find(root)
    status: FileVerdict = "missing"
    if path is not None:
        try:
            status = _verdict(path, file)
        except (InputError, OSError):
            status = "different"
    return FileStatus(file.name, status, path)


def _verdict(path: Path, file: File) -> FileVerdict:
    if path.is_dir() and file.exact:
        return "folder"
    if path.is_dir():
        return "unverified" if any(p.is_file() for p in path.rglob("*")) else "empty"
    if file.md5 is None:
        idx(contents(path), path)
        return "unverified"
    digest = md5_of(contents(path)) if file.exact else md5_of_file(path)
    return "verified" if digest == file.md5 else "different"


def fetch(name: str, root: Path, progress: bool = True) -> None:
    """Download what is missing of a published data set; what is there is left alone."""
    install(publication(name), root, progress)


def install(published: Publication, root: Path, progress: bool = True) -> None:
    """As `fetch`, for a data set of which the caller knows where it is published.

    Files appear one by one, each in one step, and only after all that come out of an archive have
    been verified.  Other processes that want the same wait.
    """
    try:
        (root / CACHE).mkdir(parents=True, exist_ok=True)
        with FileLock(root / CACHE / f"{published.name}.lock"):
            for source in published.sources:
                if set(source.gives) & set(published.missing(root)):
                    _install(published, source, root, progress)
    except OSError as error:
        raise InputError(f"{published.name} cannot be put into {root}: {error}") from None


def _install(published: Publication, source: Download, root: Path, progress: bool) -> None:
    from gcfed.data.downloads.download import download  # what it needs of the web takes time

    archive = root / source.file
    was_there = archive.exists()
    download(source, root, progress=progress)
    if source.members:
        _unpack(published, source, root)
        if not was_there:
            archive.unlink()


def _unpack(published: Publication, source: Download, root: Path) -> None:
    known = {f.name: f for f in published.files}
    archive = root / source.file
    limit = 2 * archive.stat().st_size  # the published ones hold at most a tenth more than that
    with members(archive, source.members, root, limit) as found:
        for name, path in found.items():
            if known[name.removesuffix(".gz")].md5 not in (None, md5_of(contents(path))):
                raise InputError(f"{name} in {source.file} is not the published file (wrong md5)")
        for name, path in found.items():
            if not (root / name).exists():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                path.replace(root / name)


def ensure(published: Publication, files: Sequence[File], root: Path) -> dict[str, Path]:
    """Where the given files of a data set lie, by name; they are fetched if any is missing.

    If that fails, as it does without a network or with GCFED_OFFLINE set, the `InputError` says
    what is missing and how to come by it.
    """
    missing = [f.name for f in files if f.find(root) is None]
    if missing:
        try:
            install(published, root)
        except InputError as error:
            raise _missing(published, missing, root, str(error)) from None
    found = {f: path for f in files if (path := f.find(root)) is not None}
    for file, path in found.items():
        if path.is_dir() and file.exact:
            raise InputError(f"{published.name}: {path} is a folder, and should be a file: move it")
    return {file.name: path for file, path in found.items()}


def _missing(published: Publication, missing: list[str], root: Path, reason: str) -> InputError:
    urls = ", ".join(source.urls[0] for source in published.sources)
    more = f" and {len(missing) - 1} more are" if missing[1:] else " is"
    return InputError(
        f"{published.name}: {missing[0]}{more} missing from {root}. {reason}. "
        f"Run `gcfed data fetch {published.name}` where there is a network, or put there what "
        f"lies at {urls}; another folder of data is named by GCFED_DATA"
    )
