"""What ships with gcfed, and the readers of published files on small ones like them."""

import gzip
import hashlib
import io
import os
import struct
import subprocess
import sys
import weakref
import zipfile
import zlib
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from test_pickles import numbered, official as cifar_batch, text

from gcfed.core.types import Examples
from gcfed.data.augmentation import ImageTransform
from gcfed.data.datasets import images, official, tinyimagenet
from gcfed.data.datasets.builtin import fashion10k, synthetic
from gcfed.data.datasets.dataset import DATASETS, Dataset
from gcfed.data.downloads import cache
from gcfed.data.downloads.formats import contents, idx
from gcfed.errors import InputError

EMBEDDED = Path(official.__file__).parent / "embedded"
SHA256 = "ec7fdd49373febd48308bcecc070f929436f7eabefc0b4011258f460be3e5620"


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setenv("GCFED_OFFLINE", "1")


def test_fashion10k_is_as_it_was_made():
    file = EMBEDDED / "fashion10k.npz"
    assert hashlib.sha256(file.read_bytes()).hexdigest() == SHA256
    assert file.stat().st_size < 6_000_000
    assert "MIT License" in (EMBEDDED / "LICENSE.fashion-mnist").read_text("utf-8")


def test_fashion10k_is_balanced(tmp_path):
    data = fashion10k(tmp_path)
    assert data.train.x.shape == (10_000, 1, 28, 28) and data.train.x.dtype == torch.uint8
    assert data.train.y.bincount().tolist() == 10 * [1000]
    assert data.test.y.bincount().tolist() == 10 * [200] and len(data.test.x) == 2000
    assert len(data.class_names) == data.num_classes == 10
    x = data.transform(data.train.x[:5000], None)
    assert x.dtype == torch.float32 and abs(x.mean()) < 0.02 and abs(x.std() - 1) < 0.02
    assert list(tmp_path.iterdir()) == []


def nearest_mean(data: Dataset) -> float:
    x, y = data.train.x.flatten(1), data.train.y
    means = torch.stack([x[y == c].mean(0) for c in range(data.num_classes)])
    guess = torch.cdist(data.test.x.flatten(1), means).argmin(1)
    return float((guess == data.test.y).float().mean())


def test_synthetic_can_be_learnt_but_not_fully(tmp_path):
    data = synthetic(tmp_path)
    assert data.train.x.shape == (2000, 1, 8, 8) and data.train.x.dtype == torch.float32
    assert data.train.y.bincount().tolist() == 10 * [200] and len(data.test.y) == 500
    assert 0.8 < nearest_mean(data) < 0.97
    assert nearest_mean(synthetic(tmp_path, noise=4)) < 0.5


def test_synthetic_is_drawn_by_its_seed(tmp_path):
    one, same, other = (synthetic(tmp_path, seed=s) for s in (1, 1, 2))
    assert torch.equal(one.train.x, same.train.x) and torch.equal(one.test.y, same.test.y)
    assert not torch.equal(one.train.x, other.train.x)


def test_synthetic_from_a_text(tmp_path):
    data = DATASETS.parse("synthetic(num_classes=3, train=30, test=6, shape=(5,))")(tmp_path)
    assert data.num_classes == 3 and data.train.x.shape == (30, 5)
    with pytest.raises(InputError, match="positive num_classes"):
        synthetic(tmp_path, shape=(0,))


@pytest.mark.parametrize("name", DATASETS)
def test_every_data_set_says_in_a_line_what_it_is(name):
    assert 20 < len(DATASETS.describe(name)) <= 100


def test_a_data_set_checks_itself():
    good = Examples(torch.zeros(4, 2), torch.tensor([0, 1, 2, 0]))
    with pytest.raises(InputError, match="test example 2 is of class 2, and there are 2"):
        Dataset(train=good.take(torch.tensor([0, 1])), test=good, num_classes=2)
    with pytest.raises(InputError, match="3 classes have 2 names"):
        Dataset(train=good, test=good, num_classes=3, class_names=("a", "b"))
    bad = Examples(torch.tensor([[0.0], [torch.nan]]), torch.tensor([0, 1]))
    with pytest.raises(InputError, match="train example 1 holds a number that is not finite"):
        Dataset(train=bad, test=bad, num_classes=2)
    for label in (torch.nan, torch.inf):
        numbers = Examples(torch.zeros(3, 2), torch.tensor([0.5, 0.25, label]))
        with pytest.raises(InputError, match="test example 2 has a label with a number that is no"):
            Dataset(train=numbers.take(torch.tensor([0, 1])), test=numbers, num_classes=0)


def idx_file(array: np.ndarray) -> bytes:
    head = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.astype(np.uint8).tobytes()


def test_idx_files():
    array = np.arange(24).reshape(2, 3, 4)
    assert np.array_equal(idx(idx_file(array), "here"), array)
    blob = idx_file(array)
    for wrong in (b"", blob[:3], blob[:9], b"\0\0\x0d" + blob[3:], b"\0\0\x08\x09" + blob[4:]):
        with pytest.raises(InputError, match=r"^here is not an idx file of bytes$"):
            idx(wrong, "here")
    for wrong in (blob[:-1], blob + b"x", blob[:4] + b"\xff" * 12 + blob[16:]):
        with pytest.raises(InputError, match=r"^here announces .* bytes of shape .* and holds"):
            idx(wrong, "here")


@pytest.mark.parametrize("cut", [slice(0, -4), slice(0, 12), slice(4, None)])
def test_a_damaged_gz_is_named(tmp_path, cut):
    path = tmp_path / "file.gz"
    path.write_bytes(gzip.compress(bytes(range(256)) * 9)[cut])
    with pytest.raises(InputError, match=r"file.gz cannot be read"):
        contents(path)


STROKE = np.zeros((28, 28), np.uint8)
STROKE[3, 2:26] = 255  # upright: a bar across the top


def write_emnist(folder: Path, split="letters", labels=(1, 26, 2), compress=False):
    """As the official files are: transposed, and letters counted from 1."""
    folder.mkdir(parents=True, exist_ok=True)
    for part in ("train", "test"):
        for kind, array in (
            ("images-idx3", np.stack([STROKE.T] * len(labels))),
            ("labels-idx1", np.array(labels)),
        ):
            blob = idx_file(array)
            name = f"emnist-{split}-{part}-{kind}-ubyte{'.gz' if compress else ''}"
            (folder / name).write_bytes(gzip.compress(blob) if compress else blob)


@pytest.mark.parametrize("folder", ["emnist", "emnist/gzip", "EMNIST/raw", "gzip"])
@pytest.mark.parametrize("compress", [True, False])
def test_emnist_stands_upright(tmp_path, folder, compress):
    write_emnist(tmp_path / folder, compress=compress)
    data = official.emnist(tmp_path, split="letters")
    assert data.train.y.tolist() == [0, 25, 1] and data.class_names[25] == "z"
    assert np.array_equal(data.test.x[2, 0], STROKE)
    assert data.transform == ImageTransform((0.1751,), (0.3333,), padding=4, flip=True)


def test_emnist_splits(tmp_path):
    write_emnist(tmp_path / "emnist", "byclass", (0, 61, 10))
    write_emnist(tmp_path / "emnist", "balanced", (0, 46, 10))
    byclass = official.emnist(tmp_path, augment=False)
    assert byclass.num_classes == 62 and byclass.train.y.tolist() == [0, 61, 10]
    assert [byclass.class_names[i] for i in (0, 61, 10)] == ["0", "z", "A"]
    assert byclass.transform == ImageTransform((0.1751,), (0.3333,))
    balanced = DATASETS.parse("emnist(split='balanced')")(tmp_path)
    assert balanced.num_classes == 47 and balanced.class_names[46] == "t"
    with pytest.raises(InputError, match=r"letters-train-images.* and 3 more are missing"):
        official.emnist(tmp_path, split="letters")


def test_wrong_emnist_files(tmp_path):
    write_emnist(tmp_path / "emnist", labels=(1, 27, 2))
    with pytest.raises(InputError, match="train example 1 is of class 26, and there are 26"):
        official.emnist(tmp_path, split="letters")
    labels = tmp_path / "emnist/emnist-letters-train-labels-idx1-ubyte"
    labels.write_bytes(idx_file(np.array([1, 2])))
    with pytest.raises(InputError, match=r"holds 3 images and .*labels-idx1-ubyte 2 labels"):
        official.emnist(tmp_path, split="letters")
    labels.write_bytes(idx_file(np.zeros((3, 28, 28))))
    with pytest.raises(InputError, match="do not hold images of 28 x 28 and labels"):
        official.emnist(tmp_path, split="letters")


def unchecked(monkeypatch, name: str) -> None:
    """Let small files pass for the published ones."""
    published = official.PUBLICATIONS[name]
    files = tuple(replace(f, md5=None) for f in published.files)
    monkeypatch.setitem(official.PUBLICATIONS, name, replace(published, files=files))


def write_cifar(root: Path) -> None:
    folder = root / "cifar-10-batches-py"
    folder.mkdir()
    for i, name in enumerate([*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]):
        (folder / name).write_bytes(cifar_batch(raw=bytes([i]) * 6144))
    names = b"".join(text(f"class {c}".encode()) for c in range(10))
    (folder / "batches.meta").write_bytes(
        numbered(b"\x80\x02}(" + text(b"label_names") + b"](" + names + b"eu.")
    )


def test_cifar_batches_follow_each_other(tmp_path, monkeypatch):
    unchecked(monkeypatch, "cifar10")
    write_cifar(tmp_path)
    data = official.cifar10(tmp_path)
    assert data.train.x.shape == (10, 3, 32, 32) and data.train.y.tolist() == 5 * [3, 7]
    assert data.train.x[:, 0, 0, 0].tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert data.test.x[:, 0, 0, 0].tolist() == [5, 5] and data.class_names[9] == "class 9"
    assert data.transform.padding == 4 and data.transform.flip
    assert official.cifar10(tmp_path, augment=False).transform.padding == 0


def test_altered_cifar_files_are_named(tmp_path, monkeypatch):
    write_cifar(tmp_path)
    with pytest.raises(InputError, match=r"data_batch_1 is not the published file \(6,387 bytes"):
        official.cifar10(tmp_path)
    unchecked(monkeypatch, "cifar10")
    file = tmp_path / "cifar-10-batches-py/test_batch"
    file.write_bytes(cifar_batch(rows=3, columns=2048))
    with pytest.raises(InputError, match=r"test_batch holds no images of 32 x 32"):
        official.cifar10(tmp_path)
    file.write_bytes(cifar_batch().replace(b"K\x07", b"K\x0a"))
    with pytest.raises(InputError, match=r"test_batch holds labels that are not of 10 classes"):
        official.cifar10(tmp_path)
    file.write_bytes(cifar_batch().replace(b"labels", b"wordss"))
    with pytest.raises(InputError, match=r"test_batch does not hold 'labels' for its 2 images"):
        official.cifar10(tmp_path)
    file.write_bytes(b"\x80\x02cos\nsystem\n.")
    with pytest.raises(InputError, match=r"test_batch is not one of CIFAR's python files"):
        official.cifar10(tmp_path)
    assert not (tmp_path / ".gcfed-cache").exists()


def test_mnist_files(tmp_path, monkeypatch):
    unchecked(monkeypatch, "mnist")
    (tmp_path / "mnist").mkdir()
    for part, size in (("train", 5), ("t10k", 2)):
        images, labels = np.arange(size * 784).reshape(size, 28, 28), np.arange(size)
        stem = tmp_path / "mnist" / part
        Path(f"{stem}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx_file(images)))
        Path(f"{stem}-labels-idx1-ubyte").write_bytes(idx_file(labels))
    data = official.mnist(tmp_path)
    assert data.train.x.shape == (5, 1, 28, 28) and data.train.x[0, 0, 1, 1] == 29
    assert data.test.y.tolist() == [0, 1] and data.transform.mean == (0.1307,)


def jpeg(mode: str, value: int) -> bytes:
    out = io.BytesIO()
    Image.new(mode, (64, 64), value if mode == "L" else (value, 0, 0)).save(out, "JPEG")
    return out.getvalue()


PHOTO = Image.fromarray(np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8))


def photo(mode: str = "RGB", size: tuple[int, int] = (64, 64), **options) -> bytes:
    out = io.BytesIO()
    PHOTO.resize(size).convert(mode).save(out, "JPEG", **options)
    return out.getvalue()


@pytest.mark.parametrize(
    ("body", "is_plain"),
    [
        (photo(), True),
        (photo("L"), True),
        (photo(progressive=True), True),
        (photo(comment=b"\xff\xc0\x00\x11\x08\x00\x20\x00\x20"), True),
        (photo("CMYK"), False),
        (photo()[:2] + b"\xff" + photo()[2:], False),  # a byte that fills, as the standard allows
    ],
    ids=["colour", "grey", "progressive", "a size in a comment", "cmyk", "filled"],
)
def test_a_jpeg_has_the_pixels_that_pillow_opens(body, is_plain):
    assert (images._plain_jpeg(body, (64, 64)) is not None) == is_plain
    with Image.open(io.BytesIO(body)) as image:
        expected = np.asarray(image.convert("RGB")).transpose(2, 0, 1)
    assert (images.decode_all(["a"], lambda _: body, (64, 64), "RGB") == expected).all()


@pytest.mark.parametrize("size", [(63, 64), (65, 64), (64, 63), (64, 65), (900, 64)])
def test_no_jpeg_of_another_size_reaches_the_bare_decoder(size, monkeypatch):
    """Told another width than the file's, the decoder of Pillow 10 writes out of bounds."""
    monkeypatch.setattr(Image, "frombytes", None)
    with pytest.raises(InputError, match=r"a is of .* pixels, and others are of \(64, 64\)"):
        images.decode_all(["a"], lambda _: photo(size=size), (64, 64), "RGB")


def test_every_cut_of_a_jpeg_is_broken():
    body = photo()
    for end in range(0, len(body) - 1, 7):
        with pytest.raises(InputError, match="a cannot be read as an image"):
            images.decode_all(["a"], lambda _, end=end: body[:end], (64, 64), "RGB")


TINY = {
    "wnids.txt": b"n02\nn01\n",
    "words.txt": b"n01\tgoldfish, Carassius auratus\nn02\ttabby\nn03\tunused\n",
    "train/n01/images/n01_0.JPEG": jpeg("RGB", 200),
    "train/n01/images/n01_1.JPEG": jpeg("L", 90),
    "train/n02/images/n02_0.JPEG": jpeg("RGB", 50),
    "val/images/val_0.JPEG": jpeg("RGB", 20),
    "val/images/val_1.JPEG": jpeg("L", 7),
    "val/val_annotations.txt": b"val_0.JPEG\tn02\t0\t0\t9\t9\nval_1.JPEG\tn01\t0\t0\t9\t9\n",
}


def write_tiny(root: Path, packed: bool, files=TINY) -> None:
    if packed:
        with zipfile.ZipFile(root / "tiny-imagenet-200.zip", "w") as archive:
            for name, body in files.items():
                archive.writestr(f"tiny-imagenet-200/{name}", body)
        return
    for name, body in files.items():
        path = root / "tiny-imagenet-200" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)


@pytest.mark.parametrize("packed", [True, False], ids=["zip", "folder"])
def test_tinyimagenet(tmp_path, packed, monkeypatch):
    monkeypatch.setattr(official, "_dataset", lambda decoded, _, transform: (decoded, transform))
    write_tiny(tmp_path, packed)
    (train, test, names), transform = official.tinyimagenet(tmp_path)
    assert train.x.shape == (3, 3, 64, 64) and train.y.tolist() == [0, 0, 1]
    assert test.y.tolist() == [1, 0] and names == ("goldfish", "tabby")
    assert train.x[1].unique().tolist() == [90] and (train.x[0, 0] > 190).all()
    assert test.x[1].unique().tolist() == [7] and transform.padding == 8


@pytest.mark.parametrize("packed", [True, False], ids=["zip", "folder"])
@pytest.mark.parametrize(
    ("name", "body", "message"),
    [
        ("val/images/val_0.JPEG", None, "lacks val/images/val_0.JPEG"),
        ("val/images/val_0.JPEG", b"GIF", "val_0.JPEG cannot be read as an image"),
        ("train/n01/images/n01_0.JPEG", jpeg("L", 9)[:-90], "n01_0.JPEG cannot be read as an"),
        ("wnids.txt", b"n01\n", "'n02' of .* is not in wnids.txt"),
        ("wnids.txt", None, "wnids.txt cannot be read"),
        ("val/val_annotations.txt", b"", "holds no images in the layout"),
    ],
)
def test_wrong_tinyimagenet(tmp_path, packed, name, body, message):
    files = {n: b for n, b in {**TINY, name: body}.items() if b is not None}
    write_tiny(tmp_path, packed, files)
    with pytest.raises(InputError, match=message):
        official.tinyimagenet(tmp_path)


def test_a_damaged_zip_is_named(tmp_path):
    (tmp_path / "tiny-imagenet-200.zip").write_bytes(b"PK nothing")
    with pytest.raises(InputError, match=r"tiny-imagenet-200.zip is damaged"):
        official.tinyimagenet(tmp_path)


@pytest.mark.parametrize("how", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2])
def test_members_of_a_zip_are_what_zipfile_reads(tmp_path, how):
    bodies = {"tiny-imagenet-200/a": b"", "b": b"abc" * 5000, "tiny-imagenet-200/ü": bytes(9)}
    path = tmp_path / "any.zip"
    path.write_bytes(b"before the zip begins")
    with zipfile.ZipFile(path, "a", how) as archive:
        for name, body in bodies.items():
            archive.writestr(name, body)
    with zipfile.ZipFile(path) as archive, path.open("rb") as file:
        for name, body in bodies.items():
            assert tinyimagenet._member(archive, file.fileno(), name) == body


@pytest.mark.parametrize("how", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_every_byte_of_a_zip_that_is_wrong_is_found_or_does_not_matter(tmp_path, how):
    path, body = tmp_path / "any.zip", bytes(range(200)) * 2
    with zipfile.ZipFile(path, "w", how) as archive:
        archive.writestr("a", body)
        end = archive.start_dir
    whole = path.read_bytes()
    for at in range(end):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x41]) + whole[at + 1 :])
        with zipfile.ZipFile(path) as archive, path.open("rb") as file, suppress(*BROKEN):
            assert tinyimagenet._member(archive, file.fileno(), "a") == body


BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError)


class Decoder:
    """Counts how often it is asked."""

    def __init__(self):
        self.count = 0

    def __call__(self):
        self.count += 1
        y = torch.arange(6)
        x = torch.arange(600, dtype=torch.uint8).reshape(6, 1, 10, 10)
        return cache.Decoded(Examples(x, y), Examples(x[:2].clone(), y[:2].clone()), ("a", "b"))


@pytest.fixture
def source(tmp_path):
    file = tmp_path / "source"
    file.write_bytes(b"source")
    return file


def test_what_was_decoded_is_mapped(tmp_path, source):
    decode = Decoder()
    first = cache.cached(tmp_path / "cache", "mine", [source], decode)
    second = cache.cached(tmp_path / "cache", "mine", [source], decode)
    assert decode.count == 1 and second.class_names == ("a", "b")
    for found in (first, second):
        assert torch.equal(found.train.x, decode().train.x) and found.test.y.tolist() == [0, 1]
    file = tmp_path / "cache/mine.safetensors"
    assert [p.name for p in file.parent.iterdir()] == [file.name]
    assert file.stat().st_mode == source.stat().st_mode
    maps = Path("/proc/self/maps")
    assert not maps.exists() or str(file) in maps.read_text()


def test_writing_to_what_is_mapped_changes_no_one_elses(tmp_path, source):
    one, other = (cache.cached(tmp_path, "mine", [source], Decoder()) for _ in range(2))
    one.train.x[:] = 0
    assert torch.equal(other.train.x, Decoder()().train.x)
    assert torch.equal(cache.cached(tmp_path, "mine", [source], None).train.x, other.train.x)


def test_what_was_decoded_is_let_go_before_its_file_is_mapped(tmp_path, source, monkeypatch):
    made, alive, read = [], [], cache._read

    def decode():
        decoded = Decoder()()
        made.append(weakref.ref(decoded.train.x))
        return decoded

    def watched(*arguments):
        alive.append([ref() is not None for ref in made])
        return read(*arguments)

    monkeypatch.setattr(cache, "_read", watched)
    cache.cached(tmp_path, "mine", [source], decode)
    assert alive == [[], [False]]


def change_source(file, source):
    source.write_bytes(b"another")


def touch_source(file, source):
    os.utime(source, ns=(1, 1))


def flip_a_bit(file, source):
    blob = bytearray(file.read_bytes())
    blob[-100] ^= 1
    file.write_bytes(blob)


def cut(file, source):
    file.write_bytes(file.read_bytes()[:-1])


def empty(file, source):
    file.write_bytes(b"")


def replace_by_nonsense(file, source):
    file.write_bytes(b"\xff" * 1000)


def older_version(file, source):
    cache.VERSION -= 1


CHANGES = [change_source, touch_source, flip_a_bit, cut, empty, replace_by_nonsense, older_version]


@pytest.mark.parametrize("change", CHANGES, ids=lambda c: c.__name__)
def test_a_cache_file_is_made_anew(tmp_path, source, change, monkeypatch):
    monkeypatch.setattr(cache, "VERSION", cache.VERSION)
    decode, file = Decoder(), tmp_path / "mine.safetensors"
    cache.cached(tmp_path, "mine", [source], decode)
    change(file, source)
    found = cache.cached(tmp_path, "mine", [source], decode)
    assert decode.count == 2 and torch.equal(found.train.x, decode().train.x)
    cache.cached(tmp_path, "mine", [source], decode)
    assert decode.count == 3  # one of them ours


def test_a_folder_that_cannot_be_written_is_said(tmp_path, source):
    (tmp_path / "cache").touch()
    with pytest.warns(UserWarning, match="mine is decoded anew every time, because .*cache cannot"):
        found = cache.cached(tmp_path / "cache", "mine", [source], Decoder())
    assert found.train.y.tolist() == [0, 1, 2, 3, 4, 5]


LOAD = """
import sys
from pathlib import Path
from gcfed.data.datasets.official import emnist
for _ in range(20):
    data = emnist(Path(sys.argv[1]), split="letters")
    assert data.train.y.tolist() == [0, 25, 1] and int(data.train.x.sum()) == 3 * 24 * 255
    for file in Path(sys.argv[1], ".gcfed-cache").glob("emnist*"):
        file.unlink(missing_ok=True)
"""


def test_processes_may_decode_at_once(tmp_path):
    write_emnist(tmp_path / "emnist")
    command = [sys.executable, "-W", "error", "-c", LOAD, str(tmp_path)]
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(2)]
    errors = [process.communicate()[1] for process in processes]
    assert [p.returncode for p in processes] == [0, 0], errors
