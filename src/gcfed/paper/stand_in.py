"""Blank images in the numbers and shapes of the paper's data, for costs where data are missing."""

from pathlib import Path

from gcfed.data import data_dir
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
    """What stands for each data set of an extent that is not at hand."""
    root = data_dir(None if extent.data_dir is None else Path(extent.data_dir))
    names = {part.settings["dataset"] for part in extent.parts}
    return {name: text for name, text in STAND_INS.items() if name in names and _lacks(name, root)}


def _lacks(name: str, root: Path) -> bool:
    return any(NEEDED.get(name, "") in file for file in info(name, root).missing)
