"""Blank images in the numbers and shapes of the paper's data, for costs where data are missing."""

from pathlib import Path

from gcfed.config.materials import read_dataset
from gcfed.data import DATASETS, data_dir
from gcfed.data.downloads.fetch import info
from gcfed.paper.extent import Extent

STAND_INS = {
    "emnist": "blank(num_classes=62, train=697932, test=116323, shape=(1, 28, 28))",
    "cifar10": "blank(num_classes=10, train=50000, test=10000, shape=(3, 32, 32))",
    "cifar100": "blank(num_classes=100, train=50000, test=10000, shape=(3, 32, 32))",
    "tinyimagenet": "blank(num_classes=200, train=100000, test=10000, shape=(3, 64, 64))",
}
"""What stands for each data set, by the numbers of the paper's table of resources."""

NEEDED = {"emnist": "byclass"}
"""What the names of files have that are needed, where not all of a publication are."""


def stand_ins(extent: Extent) -> dict[str, str]:
    """What stands for each data set of an extent that is not at hand, or not as a whole."""
    partial = parts_at_hand(extent)
    return {
        name: STAND_INS[name]
        for name in _published(extent)
        if name in partial or _lacks(name, _root(extent))
    }


def parts_at_hand(extent: Extent) -> dict[str, tuple[int, int]]:
    """The data sets of which a part is at hand: how many train examples, and how many there are."""
    root, found = _root(extent), dict[str, tuple[int, int]]()
    for name in _published(extent):
        whole: int = DATASETS.parse(STAND_INS[name]).keywords["train"]
        if not _lacks(name, root):
            held = len(read_dataset(name, root).train.y)
            found |= {name: (held, whole)} if held < whole else {}
    return found


def _published(extent: Extent) -> list[str]:
    names = {part.settings["dataset"] for part in extent.parts}
    return [name for name in STAND_INS if name in names]


def _root(extent: Extent) -> Path:
    return data_dir(None if extent.data_dir is None else Path(extent.data_dir))


def _lacks(name: str, root: Path) -> bool:
    return any(NEEDED.get(name, "") in file for file in info(name, root).missing)
