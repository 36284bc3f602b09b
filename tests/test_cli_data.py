"""``gcfed data``: what there is, what it holds, who holds it; and the pictures."""

import gzip
import hashlib
import json
import shutil
import struct

import numpy as np
import pytest
import torch
from PIL import Image
from running import tiny

from gcfed.config.build import build
from gcfed.data import DATASETS
from gcfed.data.augmentation import ImageTransform
from gcfed.data.datasets.dataset import Dataset, Examples
from gcfed.data.datasets.user import dataset_from, settled
from gcfed.data.downloads.catalog import PUBLICATIONS, File, Publication
from gcfed.data.partitions.ways import divide
from gcfed.errors import InputError

pytest_plugins = ["running", "serving"]

PNG = b"\x89PNG\r\n\x1a\n"


def wrong(answer):
    """What a command says that was asked for something impossible."""
    assert answer.code == 2 and answer.out == ""
    assert answer.err.startswith("error: ") and "Traceback" not in answer.err
    return " ".join(answer.err.split())


def size(path):
    with Image.open(path) as image:
        return image.size


def table(text, *start):
    """The rows of the table whose header begins with these words."""
    lines = iter(text.splitlines())
    while next(lines).split()[: len(start)] != list(start):
        pass
    return [line.split() for line in iter(lambda: next(lines, ""), "")]


@pytest.fixture
def root(tmp_path, monkeypatch):
    """An empty folder of data, and no network."""
    monkeypatch.setenv("GCFED_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("GCFED_OFFLINE", "1")
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def md5(blob):
    return hashlib.md5(blob).hexdigest()


@pytest.fixture
def letters(registries, monkeypatch):
    """A published data set of two files, which go by this name."""

    @DATASETS.register("letters")
    def letters(root):
        """Made for a test."""

    files = (File("letters/one", md5(b"1")), File("letters/two"))
    monkeypatch.setitem(PUBLICATIONS, "letters", Publication("letters", (), files))


# ---------------------------------------------------------------- list, fetch, check


def test_list_says_where_each_is(gcfed, root):
    (root / "cifar-10-batches-py").mkdir()
    (root / "cifar-10-batches-py/test_batch").touch()
    for name in PUBLICATIONS["mnist"].files:
        (root / name.name).parent.mkdir(exist_ok=True)
        (root / name.name).touch()
    answer = gcfed("data", "list")
    rows = {r[0]: " ".join(r[1:]) for r in table(answer.out, "data", "set")}
    assert answer.code == 0 and rows.keys() - {"the"} == set(DATASETS)
    assert rows["cifar10"].startswith("170 MB 1 of 7 files CIFAR-10, 50,000")
    assert rows["mnist"].startswith("12 MB present MNIST")
    assert rows["tinyimagenet"].startswith("248 MB missing Tiny")
    assert rows["fashion10k"].startswith("- built in Fashion-MNIST")
    assert rows["npz"].startswith("- yours Your arrays")
    assert answer.out.endswith(f"the folder of data is {root}\n")
    elsewhere = gcfed("data", "list", "--data-dir", root / "other").out
    assert "present" not in elsewhere and elsewhere.endswith("/other\n")


def test_plugins_are_listed_too(gcfed, root, registries, tmp_path):
    (tmp_path / "mine.py").write_text(
        "from gcfed import DATASETS\n"
        "@DATASETS.register('owls')\n"
        "def owls(root):\n"
        "    'Owls of the night.'\n"
    )
    answer = gcfed("data", "list", "--plugin", "mine.py")
    assert ["owls", "-", "yours", "Owls", "of", "the", "night."] in table(answer.out, "data", "set")


def test_fetch_downloads_verifies_and_says_so(gcfed, root, letters, server, monkeypatch):
    monkeypatch.delenv("GCFED_OFFLINE")
    served = server.publish("letters/one", b"1"), server.publish("letters/two.gz", idx(b"ab"))
    files = PUBLICATIONS["letters"].files
    monkeypatch.setitem(PUBLICATIONS, "letters", Publication("letters", served, files))
    answer = gcfed("data", "fetch", "letters", "fashion10k")
    assert answer.code == 0
    assert answer.out.splitlines() == [
        f"letters: 1 files verified, 1 files unverified in {root}",
        "fashion10k: there is nothing to fetch",
    ]
    assert "letters/one: 100 % of 0.0 MB" in answer.err
    assert (root / "letters/one").read_bytes() == b"1" and len(server.asked) == 2
    again = gcfed("data", "fetch", "letters")
    assert again.out == answer.out.splitlines(keepends=True)[0] and len(server.asked) == 2
    (root / "letters/one").write_bytes(b"2")
    changed = gcfed("data", "fetch", "letters")
    assert changed.code == 1 and "gcfed data check letters" in changed.err


def test_a_download_that_fails_says_why(gcfed, root, letters, server, monkeypatch):
    monkeypatch.delenv("GCFED_OFFLINE")
    gone = server.publish("letters/one", b"1")
    server.files.clear()
    monkeypatch.setitem(PUBLICATIONS, "letters", Publication("letters", (gone,), ()))
    monkeypatch.setattr(Publication, "missing", lambda self, root: ("letters/one",))
    assert "the server answers 404" in wrong(gcfed("data", "fetch", "letters"))


def test_all_names_are_looked_at_before_any_is_fetched(gcfed, root, letters):
    words = wrong(gcfed("data", "fetch", "letters", "cifar"))
    assert "unknown data set: 'cifar'; did you mean 'cifar10'?" in words
    assert not list(root.iterdir())
    assert "GCFED_OFFLINE is set" in wrong(gcfed("data", "fetch", "mnist"))


def idx(content):
    return gzip.compress(b"\0\0\x08\x01" + struct.pack(">I", len(content)) + content)


def test_check_says_what_each_file_is(gcfed, root, letters):
    (root / "letters").mkdir()
    (root / "letters/one").write_bytes(b"1")
    (root / "letters/two.gz").write_bytes(idx(b"ab"))
    answer = gcfed("data", "check", "letters")
    assert answer.code == 0
    assert table(answer.out, "file")[:2] == [
        ["letters/one", "verified", str(root / "letters/one")],
        ["letters/two", "unverified", str(root / "letters/two.gz")],
    ]
    assert answer.out.splitlines()[-2:] == [
        "verified: its md5 is the published one",
        "unverified: it can be read, and no md5 is published for it",
    ]


@pytest.mark.parametrize(("content", "status"), [(b"2", "different"), (None, "missing")])
def test_check_fails_where_something_is_wrong(gcfed, root, letters, content, status):
    (root / "letters").mkdir()
    if content is not None:
        (root / "letters/one").write_bytes(content)
    (root / "letters/two.gz").write_bytes(idx(b"ab"))
    answer = gcfed("data", "check", "fashion10k", "letters")
    assert answer.code == 1 and "fashion10k: there are no files to check" in answer.out
    assert [r[1] for r in table(answer.out, "file")[:2]] == [status, "unverified"]
    assert f"{status}: it is not" in answer.out and "gcfed data fetch" in answer.out


def test_check_fails_for_an_empty_folder(gcfed, root):
    (root / "tiny-imagenet-200/train").mkdir(parents=True)
    answer = gcfed("data", "check", "tinyimagenet")
    assert answer.code == 1 and "empty: the folder holds no file" in answer.out
    (root / "tiny-imagenet-200/words.txt").write_text("n01\tgoldfish\n")
    assert "unverified" in gcfed("data", "check", "tinyimagenet").out
    (root / "photos").mkdir()
    assert "photos" in wrong(gcfed("data", "check", "folder(path='photos')"))


def test_check_reads_data_of_ones_own(gcfed, root):
    np.savez(root / "mine.npz", x=np.zeros((10, 5), np.float32), y=np.arange(10) % 2)
    answer = gcfed("data", "check", "npz(path='mine.npz')")
    assert answer.out == "npz(path='mine.npz'): 8 train and 2 test examples\n"


# ---------------------------------------------------------------- show


def test_show_says_what_a_data_set_holds(gcfed, root):
    answer = gcfed("data", "show", "fashion10k")
    facts = {tuple(r[:2]): r[2:] for r in table(answer.out, "data", "set")}
    assert facts["train", "examples"] == ["10,000"] and facts["test", "examples"] == ["2,000"]
    assert "1 x 28 x 28, uint8" in answer.out and "classes         10" in answer.out
    rows = table(answer.out, "label", "class")
    assert len(rows) == 10 and rows[9] == ["9", "Ankle", "boot", "1,000", "200", "#" * 20]


def test_show_counts_labels(gcfed, root):
    labels = np.repeat([0, 1, 3], [40, 20, 4])
    np.savez(root / "mine.npz", x=np.zeros((64, 5), np.float32), y=labels)
    answer = gcfed("data", "show", "npz(path='mine.npz', test_fraction=0.25)")
    assert [r[1:] for r in table(answer.out, "label", "class")] == [
        ["0", "30", "10", "#" * 20],
        ["1", "15", "5", "#" * 10],
        ["2", "0", "0"],
        ["3", "3", "1", "#" * 2],
    ]
    assert "transform       none" in answer.out and "5, float32" in answer.out


def test_show_of_what_has_no_classes(gcfed, root, registries):
    @DATASETS.register("heights")
    def heights(root):
        """Numbers to predict, of two kinds of input and five people."""
        x = {"age": torch.zeros(9), "photo": torch.zeros(9, 3, 4, 4)}
        both = Examples(x, torch.linspace(0, 1, 9))
        keys = {"person": np.arange(9) % 5}
        return Dataset(train=both, test=both, num_classes=0, keys=keys)

    answer = gcfed("data", "show", "heights")
    assert answer.code == 0 and "label  class" not in answer.out
    words = [" ".join(line.split()) for line in answer.out.splitlines()]
    assert "shape age one number, float64" in words and "shape photo 3 x 4 x 4, float64" in words
    assert "classes none: other targets" in words and "key person, of 5 values" in words
    assert "no images" in gcfed("data", "show", "heights", "--out", "x.png").err


def test_show_says_what_training_does_to_images(gcfed, root, registries):
    x = torch.zeros(8, 3, 4, 4, dtype=torch.uint8)

    @DATASETS.register("squares")
    def squares(root):
        """Black."""
        data = dataset_from((x, torch.arange(8) % 2))
        transform = ImageTransform((0.5,) * 3, (0.25,) * 3, padding=4, flip=True)
        return Dataset(train=data.train, test=data.test, num_classes=2, transform=transform)

    words = " ".join(gcfed("data", "show", "squares").out.split())
    assert (
        "in training crop with a padding of 4 and flip; normalise by means 0.5, 0.5, 0.5" in words
    )


def test_show_draws_images_of_every_class(gcfed, root, tmp_path):
    answer = gcfed("data", "show", "fashion10k", "--out", "new/grid.png", "--per-class", 3)
    path = tmp_path / "new/grid.png"
    assert answer.code == 0 and answer.out.endswith("plot  new/grid.png\n")
    assert path.read_bytes().startswith(PNG) and [p.name for p in path.parent.iterdir()] == [
        "grid.png"
    ]
    width, height = size(path)
    assert height > 1.5 * width  # ten rows of three
    before = path.read_bytes()
    assert "is there already" in wrong(gcfed("data", "show", "fashion10k", "--out", path))
    assert path.read_bytes() == before
    assert gcfed("data", "show", "fashion10k", "--out", path, "--force").code == 0
    assert path.read_bytes() != before


IMPOSSIBLE = [
    (("show", "fashion10k", "--out", "grid.jpeg"), "--out ends in one of .png, .pdf, .svg"),
    (("show", "fashion10k", "--per-class", "3"), "--per-class goes with --out"),
    (("show", "fashion10k", "--out", "a.png", "--per-class", "0"), "--per-class is at least 1"),
    (("show", "fashion10k", "--force"), "--force goes with --out"),
    (("show", "fashion11k"), "did you mean 'fashion10k'?"),
    (("show", "mnist"), "mnist/train-images-idx3-ubyte and 3 more are missing"),
    (("partition", "--kind", "stack"), "--kind goes with --out"),
    (("partition", "--out", "a.png", "--kind", "stacks"), "did you mean 'stack'?"),
    (("partition", "--first", "0"), "--first is at least 1"),
    (("partition", "--alpha", "1", "--alphas", "1,2"), "--alpha or --alphas, not both"),
    (("partition", "--alphas", "1,x"), "--alphas takes numbers"),
    (("partition", "--alphas", "1,1.0"), "names a number twice"),
    (("partition", "--alphas", "1,-1"), "alpha is a positive number; not -1.0"),
    (("partition", "--alphas", "1", "--partition", "iid"), "alpha is short for dirichlet"),
    (("partition", "--partition", "dirichet"), "did you mean 'dirichlet'?"),
    (("partition", "--clients", "0"), "clients should be greater than or equal to 1"),
    (("partition", "--clients", "10001"), "10001 clients of at least 1 examples need"),
    (("partition", "--seed", "-1"), "seed should be greater than or equal to 0"),
]


@pytest.mark.parametrize(("words", "message"), IMPOSSIBLE, ids=[" ".join(w) for w, _ in IMPOSSIBLE])
def test_what_makes_no_sense_is_refused(gcfed, root, tmp_path, words, message):
    assert message in wrong(gcfed("data", *words))
    assert not list(tmp_path.glob("*.*"))


# ---------------------------------------------------------------- partition


def test_partition_prints_what_was_achieved(gcfed, root):
    labels = np.repeat([0, 1], [30, 10])
    arrays = {"x_train": np.zeros((40, 2)), "y_train": labels}
    arrays |= {"x_test": np.zeros((1, 2)), "y_test": np.zeros(1, int)}
    np.savez(root / "mine.npz", **arrays)
    asked = ("data", "partition", "--dataset", "npz(path='mine.npz')", "--partition")
    answer = gcfed(*asked, "shards(per_client=1)", "--clients", 4, "--first", 3)
    assert answer.code == 0 and "examples per client  " in answer.out
    rows = table(answer.out, "client", "examples", "classes")
    shares = {"10 1 0.250 0: 10", "10 1 0.750 1: 10"}
    assert {" ".join(row[1:]) for row in rows[:3]} <= shares
    assert " ".join(rows[3]) == "and 1 more clients (--first 4)"
    found = json.loads(gcfed(*asked, "shards(per_client=1)", "--clients", 4, "--json").out)
    assert found["partition"] == "shards(per_client=1)" and found["clients"] == 4
    assert sorted(c["label_distance"] for c in found["first"]) == [0.25, 0.25, 0.25, 0.75]
    assert sum(c["labels"] == {"1": 10} for c in found["first"]) == 1


def test_partition_without_labels_has_sizes(gcfed, root):
    np.savez(root / "mine.npz", x=np.zeros((50, 2)), y=np.linspace(0, 1, 50))
    asked = ("data", "partition", "--dataset", "npz(path='mine.npz')", "--partition", "iid")
    answer = gcfed(*asked, "--clients", 4)
    assert table(answer.out, "client", "examples")[0] == ["0", "10", "-", "-"]
    found = json.loads(gcfed(*asked, "--clients", 4, "--json").out)
    assert found["first"][3] == {"client": 3, "examples": 10}
    assert "needs class labels" in gcfed(*asked, "--clients", 4, "--out", "x.png").err


def test_clients_of_the_data_are_found(gcfed, root):
    client = np.repeat([3, 7, 9], [10, 20, 30])
    np.savez(root / "mine.npz", x=np.zeros((60, 2)), y=np.zeros(60, int), client=client)
    asked = ("--dataset", "npz(path='mine.npz')", "--partition", "by(key='client')", "--json")
    found = json.loads(gcfed("data", "partition", *asked).out)
    assert [c["examples"] for c in found["first"]] == [8, 16, 24]


SAME = [
    ({}, ()),
    ({"partition": "shards(per_client=3)"}, ("--partition", "shards(per_client=3)")),
    ({"alpha": 0.05, "clients": 30}, ("--alpha", "0.05", "--clients", "30")),
    ({"alpha": 0.05, "partition": None}, ("--alphas", "1,0.05")),
]


@pytest.mark.parametrize(("changes", "words"), SAME, ids=[" ".join(w) or "-" for _, w in SAME])
@pytest.mark.usefixtures("float32")
def test_a_seed_draws_the_partition_of_a_run(gcfed, root, changes, words):
    config = tiny(seed=3, **{"clients": None, "dataset": "synthetic", **changes})
    experiment = build(config)
    asked = ("--dataset", "synthetic", "--seed", 3, "--json", "--first", 100)
    found = json.loads(gcfed("data", "partition", *asked, *words).out)
    found = found[-1] if isinstance(found, list) else found
    assert found["partition"] == experiment.config.partition
    ids = range(experiment.setup.data.num_clients)
    counts = experiment.setup.data.label_counts(ids).tolist()
    labels = [{str(c): n for c, n in enumerate(row) if n} for row in counts]
    assert [client["labels"] for client in found["first"]] == labels
    same = divide(config.partition, experiment.dataset.pool, config.clients, 3)
    assert torch.equal(same.indices, experiment.setup.data.parts.indices)


def test_the_figure_of_the_paper_is_one_command(gcfed, root, tmp_path):
    """10 classes, 10 clients, several alpha: heterogeneous where alpha is small."""
    asked = ("data", "partition", "--alphas", "0.05,0.1,1,1000", "--clients", "10")
    answer = gcfed(*asked, "--out", "figure.png")
    assert answer.code == 0 and answer.out.endswith("plot  figure.png\n")
    rows = table(answer.out, "alpha")
    assert [row[0] for row in rows] == ["0.05", "0.1", "1", "1000"]
    found = json.loads(gcfed(*asked, "--json").out)
    distances = [one["label_distance"]["mean"] for one in found]
    sizes = [one["size_gini"] for one in found]
    assert distances == sorted(distances, reverse=True) and distances[0] > 0.6 > 0.05 > distances[3]
    assert sizes == sorted(sizes, reverse=True)
    assert (tmp_path / "figure.png").read_bytes().startswith(PNG)
    width, height = size(tmp_path / "figure.png")
    assert width > 3 * height
    assert "is there already" in wrong(gcfed(*asked, "--out", "figure.png"))
    assert gcfed(*asked, "--out", "figure.png", "--force", "--kind", "stack").code == 0


@pytest.mark.parametrize(("suffix", "start"), [("png", PNG), ("pdf", b"%PDF"), ("svg", b"<?xml")])
def test_one_partition_is_drawn_too(gcfed, root, tmp_path, suffix, start):
    asked = ("data", "partition", "--clients", "12", "--kind", "stack", "--json")
    answer = gcfed(*asked, "--out", f"a.{suffix}")
    assert json.loads(answer.out)["clients"] == 12
    assert (tmp_path / f"a.{suffix}").read_bytes().startswith(start)


def test_a_picture_is_whole_or_not_there(gcfed, root, tmp_path, monkeypatch):
    def fail(self, path, **_):
        path.write_bytes(PNG)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", fail)
    assert "No space left" in gcfed("data", "partition", "--out", "a.png").err
    assert [p.name for p in tmp_path.iterdir()] == ["data"]


def test_a_file_that_cannot_be_written_is_told_by_its_own_name(gcfed, root, monkeypatch):
    def refuse(dir, prefix, suffix):
        raise PermissionError(13, "Permission denied", f"{dir}/{prefix}x{suffix}")

    monkeypatch.setattr("gcfed.files.tempfile.mkstemp", refuse)
    answer = gcfed("data", "partition", "--out", "a.png")
    assert answer.code == 2 and "error: a.png: Permission denied" in answer.err


def test_names_of_classes_are_no_formulas(gcfed, root):
    for name in ("$x", "$\\wrong$"):
        folder = root / "mine" / name
        folder.mkdir(parents=True)
        for i in range(5):
            Image.new("L", (4, 4)).save(folder / f"{i}.png")
    mine = ("--dataset", "folder(path='mine')", "--clients", "2")
    for kind in ("bubble", "stack"):
        assert gcfed("data", "partition", *mine, "--out", f"{kind}.png", "--kind", kind).code == 0
    assert gcfed("data", "show", "folder(path='mine')", "--out", "grid.png").code == 0


# ---------------------------------------------------------------- paths


def test_the_path_of_a_data_set_holds_wherever_it_is_read(tmp_path, monkeypatch):
    here, root = tmp_path / "here", tmp_path / "root"
    for folder in (here, root):
        folder.mkdir()
    np.savez(here / "mine.npz", x=np.zeros((50, 2)), y=np.arange(50) % 2)
    shutil.copy(here / "mine.npz", root / "theirs.npz")
    monkeypatch.chdir(here)
    mine = settled("npz(path='mine.npz', seed=3)", root)
    assert mine == f"npz(path={str(here / 'mine.npz')!r}, test_fraction=0.2, seed=3)"
    assert str(root / "theirs.npz") in settled("npz(path='theirs.npz')", root)
    monkeypatch.chdir(tmp_path)
    assert settled(mine, tmp_path) == mine
    assert len(DATASETS.parse(mine)(tmp_path).train.y) == 40
    assert settled("synthetic(train=30)", root) == DATASETS.canonical("synthetic(train=30)")
    with pytest.raises(InputError, match=r"neither .*/mine.npz nor .*root/mine.npz"):
        settled("npz(path='mine.npz')", root)
