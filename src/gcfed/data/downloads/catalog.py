"""The published data sets: which files they are, where those come from and where they lie.

Addresses and md5 sums are the publishers' or, where a publisher names none, those that torchvision
and others check against (Tiny ImageNet's).  None of the addresses has been reached from where gcfed
is developed, which has no internet: downloads are tested against a server on the same machine, and
the readers against the real files.  The md5 sums of CIFAR's files and of Fashion-MNIST's contents
have been seen to hold.  An md5 tells a damaged file, not a forged one, and some publishers offer no
https, so every reader takes its file for a stranger's.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gcfed.caches import cache_dir
from gcfed.errors import unknown


@dataclass(frozen=True)
class Download:
    """A file to download, into the folder of data.

    ``md5`` says whether a file is the one; ``size`` is for progress and to stop what is far too
    long.  ``urls`` are tried in turn.  ``members`` says which files to take out of an archive: the
    name inside, and the file it becomes.
    """

    file: str
    md5: str
    size: int
    urls: tuple[str, ...]
    members: Mapping[str, str] = field(default_factory=dict)

    @property
    def gives(self) -> tuple[str, ...]:
        """The files that are there once this one has been fetched, by the names of a `File`."""
        files = tuple(self.members.values()) or (self.file,)
        return tuple(file.removesuffix(".gz") for file in files)


@dataclass(frozen=True)
class File:
    """A file that a reader needs, plain or as ``.gz``, by its path in the folder of data.

    ``md5`` is of its contents, decompressed; None where none is published.  ``places`` are other
    paths at which it, or the same unpacked, may lie.  A file that is not ``exact`` may hold less
    than the published one does.
    """

    name: str
    md5: str | None = None
    places: tuple[str, ...] = ()
    exact: bool = True

    def find(self, root: Path) -> Path | None:
        """The path of the file, or None if it is not there."""
        places = (root / f"{p}{s}" for p in (self.name, *self.places) for s in ("", ".gz"))
        return next((p for p in places if p.exists()), None)


@dataclass(frozen=True)
class Publication:
    """A data set as its authors publish it."""

    name: str
    sources: tuple[Download, ...]
    files: tuple[File, ...]

    def missing(self, root: Path) -> tuple[str, ...]:
        """The files that are not in the folder of data."""
        return tuple(f.name for f in self.files if f.find(root) is None)


def data_dir(given: Path | None = None) -> Path:
    """The folder of data: as given, else what GCFED_DATA names, else the cache."""
    chosen = given or os.environ.get("GCFED_DATA") or cache_dir()
    return Path(chosen).expanduser()


def publication(name: str) -> Publication:
    if name not in PUBLICATIONS:
        raise unknown("published data set", name, PUBLICATIONS)
    return PUBLICATIONS[name]


def sources(name: str) -> tuple[Download, ...]:
    """What is downloaded for a data set; nothing for one that is not published."""
    return PUBLICATIONS[name].sources if name in PUBLICATIONS else ()


def _cifar(name: str, folder: str, archive: tuple[str, int], files: dict[str, str]) -> Publication:
    stem, (md5, size) = folder.replace("-batches-py", "-python"), archive
    paths = {f"{folder}/{f}": f"{folder}/{f}" for f in files}
    url = f"https://www.cs.toronto.edu/~kriz/{stem}.tar.gz"
    source = Download(f"{stem}.tar.gz", md5, size, (url,), paths)
    return Publication(
        name, (source,), tuple(File(f"{folder}/{f}", md5) for f, md5 in files.items())
    )


def _mnist(
    name: str, folder: str, raw: str, urls: tuple[str, ...], files: dict[str, tuple[str, int, str]]
) -> Publication:
    """Four idx files, each downloaded by itself: the md5 and size of the ``.gz``, and the md5."""
    return Publication(
        name,
        tuple(
            Download(f"{folder}/{f}.gz", md5, size, tuple(f"{url}{f}.gz" for url in urls))
            for f, (md5, size, _) in files.items()
        ),
        tuple(File(f"{folder}/{f}", md5, (f"{raw}/{f}",)) for f, (_, _, md5) in files.items()),
    )


def _emnist() -> Publication:
    names = [
        f"emnist-{split}-{part}-{kind}-ubyte"
        for split in ("byclass", "balanced", "letters")
        for part in ("train", "test")
        for kind in ("images-idx3", "labels-idx1")
    ]
    source = Download(
        "emnist/gzip.zip",
        "58c8d27c78d21e728a6bc7b3cc06412e",
        561_753_746,
        ("https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",),
        {f"gzip/{n}.gz": f"emnist/{n}.gz" for n in names},
    )
    places = ("emnist/gzip", "EMNIST/raw", "EMNIST/raw/gzip", "gzip")
    files = tuple(File(f"emnist/{n}", None, tuple(f"{p}/{n}" for p in places)) for n in names)
    return Publication("emnist", (source,), files)


def _tinyimagenet() -> Publication:
    file, md5 = "tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de"
    source = Download(file, md5, 248_100_043, (f"http://cs231n.stanford.edu/{file}",))
    return Publication(
        "tinyimagenet", (source,), (File(file, md5, ("tiny-imagenet-200",), exact=False),)
    )


PUBLICATIONS: Mapping[str, Publication] = {
    p.name: p
    for p in (
        _cifar(
            "cifar10",
            "cifar-10-batches-py",
            ("c58f30108f718f92721af3b95e74349a", 170_498_071),
            {
                "data_batch_1": "c99cafc152244af753f735de768cd75f",
                "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
                "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
                "data_batch_4": "634d18415352ddfa80567beed471001a",
                "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
                "test_batch": "40351d587109b95175f43aff81a1287e",
                "batches.meta": "5ff9c542aee3614f3951f8cda6e48888",
            },
        ),
        _cifar(
            "cifar100",
            "cifar-100-python",
            ("eb9058c3a382ffc7106e4002c42a8d85", 169_001_437),
            {
                "train": "16019d7e3df5f24257cddd939b257f8d",
                "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
                "meta": "7973b15100ade9c7d40fb424638fde48",
            },
        ),
        _emnist(),
        _mnist(
            "fashionmnist",
            "fashion-mnist",
            "FashionMNIST/raw",
            ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
            {
                "train-images-idx3-ubyte": (
                    "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                    26_421_880,
                    "f4a8712d7a061bf5bd6d2ca38dc4d50a",
                ),
                "train-labels-idx1-ubyte": (
                    "25c81989df183df01b3e8a0aad5dffbe",
                    29_515,
                    "9018921c3c673c538a1fc5bad174d6f9",
                ),
                "t10k-images-idx3-ubyte": (
                    "bef4ecab320f06d8554ea6380940ec79",
                    4_422_102,
                    "8181f5470baa50b63fa0f6fddb340f0a",
                ),
                "t10k-labels-idx1-ubyte": (
                    "bb300cfdad3c16e7a12a480ee83cd310",
                    5_148,
                    "15d484375f8d13e6eb1aabb0c3f46965",
                ),
            },
        ),
        _mnist(
            "mnist",
            "mnist",
            "MNIST/raw",
            (
                "https://ossci-datasets.s3.amazonaws.com/mnist/",
                "http://yann.lecun.com/exdb/mnist/",
            ),
            {
                "train-images-idx3-ubyte": (
                    "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                    9_912_422,
                    "6bbc9ace898e44ae57da46a324031adb",
                ),
                "train-labels-idx1-ubyte": (
                    "d53e105ee54ea40749a09fcbcd1e9432",
                    28_881,
                    "a25bea736e30d166cdddb491f175f624",
                ),
                "t10k-images-idx3-ubyte": (
                    "9fb629c4189551a2d022fa330f9573f3",
                    1_648_877,
                    "2646ac647ad5339dbf082846283269ea",
                ),
                "t10k-labels-idx1-ubyte": (
                    "ec29112dd5afa0611ce80d1b7f02629c",
                    4_542,
                    "27ae3e4e09519cfbb04c329615203637",
                ),
            },
        ),
        _tinyimagenet(),
    )
}
"""The published data sets by the name under which they are registered."""
