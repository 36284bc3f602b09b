"""The real data sets, as ../shared/data packs them, through the readers of the published files."""

import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from gcfed.data.datasets.official import cifar10, cifar100, emnist, fashionmnist, tinyimagenet
from gcfed.data.downloads.catalog import PUBLICATIONS
from gcfed.data.downloads.fetch import check

SHARED = Path(__file__).parents[2] / "shared" / "data"
DEBIAN = Path("/usr/share/datasets/fashion-mnist")
TOOLS = Path(__file__).parents[1] / "tools"

pytestmark = [pytest.mark.realdata, pytest.mark.slow]


def require(path):
    """The real data may be missing on someone's machine, and not where changes are tested."""
    if not path.exists():
        reason = f"the real data is not at {path.parent}"
        pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """The official files, unpacked once and deleted in the end: they take a gigabyte."""
    require(SHARED / "unpack.py")
    folder = tmp_path_factory.mktemp("real")
    subprocess.run(
        [sys.executable, SHARED / "unpack.py", folder], check=True, stdout=subprocess.DEVNULL
    )
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setenv("GCFED_OFFLINE", "1")


def statistics(x):
    levels = torch.stack([channel.flatten().bincount(minlength=256) for channel in x.unbind(1)])
    share, level = levels / levels.sum(1, keepdim=True), torch.arange(256) / 255
    mean = (share * level).sum(1)
    return mean, ((share * level**2).sum(1) - mean**2).sqrt()


def test_cifar10(root):
    data = cifar10(root)
    assert data.train.x.shape == (50_000, 3, 32, 32) and data.test.x.shape == (10_000, 3, 32, 32)
    assert data.train.y[:10].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]
    assert data.test.y[:10].tolist() == [3, 8, 8, 0, 6, 6, 1, 6, 3, 1]
    assert data.train.y.bincount().tolist() == 10 * [5000]
    assert data.class_names[:3] == ("airplane", "automobile", "bird")
    mean, deviation = statistics(data.train.x)
    torch.testing.assert_close(mean, torch.tensor(data.transform.mean), atol=6e-5, rtol=0)
    torch.testing.assert_close(deviation, torch.tensor(data.transform.std), atol=6e-5, rtol=0)
    again = cifar10(root, augment=False)
    assert torch.equal(again.train.x, data.train.x) and again.transform.mean == data.transform.mean


def test_cifar100(root):
    data = cifar100(root)
    assert data.train.x.shape == (50_000, 3, 32, 32) and data.num_classes == 100
    assert data.train.y[:5].tolist() == [19, 29, 0, 11, 1]
    assert data.test.y.bincount().tolist() == 100 * [100]
    assert data.class_names[0] == "apple" and data.class_names[99] == "worm"
    mean, _ = statistics(data.train.x)
    torch.testing.assert_close(mean, torch.tensor([0.5071, 0.4865, 0.4409]), atol=1e-4, rtol=0)
    assert data.transform.mean == (0.4914, 0.4822, 0.4465) and data.transform.padding == 4


def test_emnist_letters(root):
    data = emnist(root, split="letters")
    assert data.train.x.shape == (124_800, 1, 28, 28) and len(data.test.y) == 20_800
    assert data.train.y.bincount().tolist() == 26 * [4800]
    assert data.test.y.bincount().tolist() == 26 * [800]
    means = [data.train.x[data.train.y == c, 0].float().mean(0) for c in range(26)]
    t = means[data.class_names.index("t")]  # its bar lies across, above the middle
    assert t[:14].sum() > t[14:].sum() and t[5:12].sum() > t[:, 5:12].sum()
    letter_l, letter_m = (means[data.class_names.index(c)] for c in "lm")  # tall; wide
    extent = torch.arange(28.0)
    spread = [
        [float((m.sum(axis) / m.sum() * (extent - 13.5) ** 2).sum()) for axis in (1, 0)]
        for m in (letter_l, letter_m)
    ]
    assert spread[0][0] > spread[0][1] and spread[1][0] < spread[1][1]


def test_tinyimagenet(root):
    data = tinyimagenet(root)
    assert data.train.x.shape == (5000, 3, 64, 64) and data.test.x.shape == (1000, 3, 64, 64)
    assert data.train.y.bincount().tolist() == 200 * [25]
    assert data.test.y.bincount().tolist() == 200 * [5]
    assert data.class_names[0] == "goldfish" and len(set(data.class_names)) > 190
    mean, _ = statistics(data.train.x)
    torch.testing.assert_close(mean, torch.tensor([0.480, 0.448, 0.397]), atol=0.01, rtol=0)
    grey = (data.train.x.amax(1) == data.train.x.amin(1)).all(2).all(1)
    assert 0 < grey.sum() < 250
    assert data.transform.padding == 8 and data.transform.mean == (0.4914, 0.4822, 0.4465)


def test_the_published_checksums_hold(root):
    for name in ("cifar10", "cifar100"):
        assert {s.status for s in check(name, root)} == {"verified"}
    letters = [s.status for s in check("emnist", root) if "letters" in s.file]
    assert letters == 4 * ["unverified"]
    assert [s.status for s in check("tinyimagenet", root)] == ["different"]  # a part of it


@pytest.mark.skipif(not DEBIAN.exists(), reason="Debian's dataset-fashion-mnist is not installed")
def test_fashionmnist_and_the_part_that_ships(tmp_path):
    (tmp_path / "fashion-mnist").symlink_to(DEBIAN)
    data = fashionmnist(tmp_path)
    assert data.train.x.shape == (60_000, 1, 28, 28) and len(data.test.y) == 10_000
    assert data.train.y[:5].tolist() == [9, 0, 0, 3, 0]
    mean, deviation = statistics(data.train.x)
    assert abs(mean.item() - 0.2860) < 1e-4 and abs(deviation.item() - 0.3530) < 1e-4
    assert {s.status for s in check("fashionmnist", tmp_path)} == {"verified"}
    made = runpy.run_path(str(TOOLS / "make_fashion10k.py"))
    rng = np.random.default_rng(made["SEED"])
    x, y = made["draw"]("train", rng)
    with np.load(made["TARGET"]) as ours:
        assert np.array_equal(ours["x_train"], x) and np.array_equal(ours["y_train"], y)


@pytest.mark.parametrize(
    ("value", "outcome"),
    [("true", pytest.fail.Exception), ("", pytest.skip.Exception), (None, pytest.skip.Exception)],
)
def test_missing_data_fails_where_changes_are_tested(value, outcome, monkeypatch, tmp_path):
    monkeypatch.delenv("CI", raising=False)
    if value is not None:
        monkeypatch.setenv("CI", value)
    with pytest.raises(outcome, match="the real data is not at"):
        require(tmp_path / "unpack.py")
    (tmp_path / "unpack.py").touch()
    require(tmp_path / "unpack.py")


def test_every_published_data_set_is_known_here():
    assert set(PUBLICATIONS) == {
        *("cifar10", "cifar100", "emnist", "fashionmnist", "mnist", "tinyimagenet")
    }
