"""People's own data, in the forms they hold it."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Subset, TensorDataset

from gcfed.data.augmentation import ImageTransform
from gcfed.data.datasets.dataset import DATASETS, Examples
from gcfed.data.datasets.normalisation import normalisation
from gcfed.data.datasets.user import dataset_from
from gcfed.errors import InputError

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (40, 6, 5, 3), dtype=np.uint8)
LABELS = np.arange(40) % 4
FIRST = IMAGES.transpose(0, 3, 1, 2)


class Items:
    """A map-style dataset, whose images `form` makes."""

    def __init__(self, form, labels=LABELS, images=IMAGES):
        self.form, self.labels, self.images = form, labels, images

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return self.form(self.images[i]), self.labels[i]


FORMS = {
    "PIL": Image.fromarray,
    "arrays": lambda image: image,
    "tensors": lambda image: torch.tensor(image).permute(2, 0, 1),
    "channels first": lambda image: image.transpose(2, 0, 1),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_map_style_dataset(form):
    data = dataset_from(Items(form), Items(form))
    assert data.train.x.dtype == torch.uint8 and np.array_equal(data.train.x, FIRST)
    assert data.train.y.tolist() == LABELS.tolist() and data.train.y.dtype == torch.int64
    assert data.num_classes == 4 and data.keys == {}


@pytest.mark.parametrize("labels", [LABELS.tolist(), torch.tensor(LABELS), LABELS.astype(np.uint8)])
def test_labels_of_any_kind_of_number(labels):
    assert dataset_from(Items(FORMS["PIL"], labels)).num_classes == 4


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_numbers_of_half_precision_become_floats(dtype):
    x = torch.arange(80).reshape(40, 2).to(dtype)
    data = dataset_from((x, torch.tensor(LABELS)), test_fraction=0.5)
    assert data.train.x.dtype == torch.float32 and data.train.x.min() >= 0


def test_torch_datasets():
    x, y = torch.rand(40, 7, dtype=torch.float64), torch.tensor(LABELS)
    data = dataset_from(TensorDataset(x, y), Subset(TensorDataset(x, y), [3, 5]))
    assert data.train.x.dtype == torch.float32 and data.transform is None
    assert data.test.y.tolist() == [3, 1]


def test_grey_and_other_pictures():
    grey = Items(lambda image: Image.fromarray(image[..., 0]))
    assert np.array_equal(dataset_from(grey, grey).train.x[:, 0], IMAGES[..., 0])
    palette = Items(lambda image: Image.fromarray(image).convert("P"))
    assert dataset_from(palette, palette).train.x.shape == (40, 3, 6, 5)
    mixed = Items(lambda image: Image.fromarray(image[..., 0] if image[0, 0, 0] > 90 else image))
    with pytest.raises(
        InputError, match=r"train example \d+ is of shape \[\d, 6, 5\], and the fir"
    ):
        dataset_from(mixed)


def test_pairs_of_arrays_and_tensors():
    last, first = (dataset_from((x, LABELS[:, None])) for x in (IMAGES, FIRST))
    assert torch.equal(last.train.x, first.train.x) and last.num_classes == 4
    grey = dataset_from((torch.tensor(IMAGES[..., 0]), torch.tensor(LABELS)))
    assert grey.train.x.shape == (32, 1, 6, 5)
    same = dataset_from(Examples(torch.tensor(FIRST), torch.tensor(LABELS)))
    assert torch.equal(same.train.x, last.train.x)
    tokens = dataset_from((torch.arange(80).reshape(40, 2), torch.tensor(LABELS)))
    assert tokens.train.x.dtype == torch.int64 and tokens.transform is None


def test_labels_of_an_array_may_be_a_list():
    arrays = dataset_from((FIRST, LABELS))
    for source in ((FIRST, LABELS.tolist()), (torch.tensor(FIRST), list(LABELS))):
        data = dataset_from(source)
        assert torch.equal(data.train.x, arrays.train.x)
        assert torch.equal(data.train.y, arrays.train.y)
    words = dataset_from((FIRST, ["a", "b", "c", "d"] * 10))
    assert words.class_names == ("a", "b", "c", "d")
    assert dataset_from((FIRST, [[0.5, 1.0]] * 40)).train.y.shape == (32, 2)
    with pytest.raises(InputError, match="train: "):
        dataset_from((FIRST, [[0.5], [1.0, 2.0]]))


def test_test_examples_are_drawn_class_by_class():
    skewed = np.repeat([0, 1, 2], [30, 8, 2])
    data = dataset_from((FIRST, skewed), test_fraction=0.25, seed=3)
    assert data.test.y.bincount().tolist() == [8, 2, 1] and len(data.train.y) == 29
    again, other = (dataset_from((FIRST, skewed), test_fraction=0.25, seed=s) for s in (3, 4))
    assert torch.equal(data.test.x, again.test.x) and not torch.equal(data.test.x, other.test.x)
    together = torch.cat([data.train.x, data.test.x]).flatten(1)
    assert sorted(together.tolist()) == sorted(FIRST.reshape(40, -1).tolist())
    with pytest.raises(InputError, match="test_fraction lies between 0 and 1; not 1"):
        dataset_from((FIRST, LABELS), test_fraction=1)
    with pytest.raises(InputError, match="too few examples"):
        dataset_from((FIRST[:2], np.array([0, 1])))


def test_numbers_to_predict():
    data = dataset_from((np.ones((40, 3)), np.linspace(0, 1, 40)))
    assert data.num_classes == 0 and not data.has_classes and data.train.y.dtype == torch.float32
    assert len(data.test.y) == 8


def test_words_for_classes():
    words = np.array(["cat", "dog", "ant", "bee"])[LABELS]
    data = dataset_from((FIRST, words), (FIRST, words))
    assert data.class_names == ("ant", "bee", "cat", "dog")
    assert data.train.y[:4].tolist() == [2, 3, 0, 1]
    with pytest.raises(InputError, match="unknown class of test example 1: 'dgo'; did you mean"):
        dataset_from((FIRST, words), (FIRST[:2], np.array(["cat", "dgo"])))


def test_words_as_pandas_holds_them():
    words = np.array(["cat", "dog"], dtype=object)[LABELS % 2]
    mine = dataset_from((IMAGES, words))
    assert mine.class_names == ("cat", "dog")
    assert torch.equal(mine.train.y, dataset_from((IMAGES, words.astype(str))).train.y)
    with pytest.raises(InputError, match="neither numbers nor words, but object: give either"):
        dataset_from((IMAGES, np.where(LABELS, words, None)))


def test_data_by_client():
    parts = [(FIRST[:5], LABELS[:5]), TensorDataset(torch.tensor(FIRST[5:]), torch.arange(35) % 4)]
    data = dataset_from(parts, (FIRST, LABELS))
    assert data.keys["client"].tolist() == 5 * [0] + 35 * [1] and data.num_classes == 4
    data = dataset_from(parts)
    assert np.bincount(data.keys["client"]).tolist() == [4, 28] == [4, len(data.train.y) - 4]
    with pytest.raises(InputError, match="clients hold examples of different shapes"):
        dataset_from([(FIRST, LABELS), (FIRST[:, :1], LABELS)])
    with pytest.raises(InputError, match=r"client 1 example 3 holds a number that is not finite"):
        dataset_from([(np.zeros((4, 2)), LABELS[:4]), (with_nan(3), LABELS)])


class Image_:  # noqa: N801
    """Named like Hugging Face's feature."""


class ClassLabel:
    names = ("ant", "bee", "cat", "dog")


Image_.__name__ = "Image"


class Table:
    """As much of a Hugging Face dataset as is needed."""

    def __init__(self, columns, features):
        self.columns, self.features = columns, features
        self.column_names = list(columns)

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def __getitem__(self, key):
        if isinstance(key, str):
            return self.columns[key]
        return {name: values[key] for name, values in self.columns.items()}


def table():
    writers = [f"writer {i % 5}" for i in range(40)]
    pictures = [Image.fromarray(image) for image in IMAGES]
    columns = {"id": list(range(40)), "photo": pictures, "kind": LABELS.tolist(), "who": writers}
    features = {"id": None, "photo": Image_(), "kind": ClassLabel(), "who": None}
    return Table(columns, features)


def test_a_hugging_face_dataset():
    data = dataset_from(table(), client="who")
    assert data.class_names == ClassLabel.names and len(data.train.y) == 30
    assert sorted(set(data.keys["client"])) == [f"writer {i}" for i in range(5)]
    both = dataset_from({"train": table(), "validation": table()})
    assert np.array_equal(both.train.x, FIRST) and len(both.test.y) == 40
    named = dataset_from(table(), table(), columns=("photo", "id"), num_classes=50)
    assert named.num_classes == 50 and named.train.y.tolist() == list(range(40))


def test_columns_that_are_not_there():
    with pytest.raises(InputError, match="unknown column of the train data: 'whom'; did you mean"):
        dataset_from(table(), client="whom")
    plain = Table({"a": [1.0], "b": [1]}, {"a": None, "b": None})
    with pytest.raises(InputError, match="train: which column is it"):
        dataset_from(plain)


def test_usual_names_are_found_without_features():
    rows = Table({"x": [[0.0, 1.0]] * 4, "y": [0, 1, 0, 1]}, {"x": None, "y": None})
    assert dataset_from(rows).train.x.shape == (2, 2)


def write_folder(path, images=IMAGES):
    for i, image in enumerate(images):
        folder = path / ("cat", "dog")[i % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / f"{i:02}.png")


def test_a_folder_of_images_by_class(tmp_path, monkeypatch):
    write_folder(tmp_path / "mine")
    (tmp_path / "mine/cat/notes.txt").touch()
    (tmp_path / "mine/.hidden").mkdir()
    data = DATASETS.parse("folder(path='mine')")(tmp_path)
    assert data.class_names == ("cat", "dog") and data.train.x.shape == (32, 3, 6, 5)
    assert data.test.y.bincount().tolist() == [4, 4]
    monkeypatch.chdir(tmp_path)
    resized = DATASETS.parse("folder(path='mine', size=8)")(tmp_path / "elsewhere")
    assert resized.train.x.shape == (32, 3, 8, 8)
    assert torch.equal(dataset_from(tmp_path / "mine").train.x, data.train.x)
    with pytest.raises(InputError, match=r"neither .*/yours nor .*elsewhere/yours"):
        DATASETS.parse("folder(path='yours')")(tmp_path / "elsewhere")


def test_a_folder_with_test_images(tmp_path):
    write_folder(tmp_path / "train", IMAGES[..., 0])
    write_folder(tmp_path / "val", IMAGES[1:2, ..., 0])
    (tmp_path / "val/cat").rename(tmp_path / "val/dog")
    data = DATASETS.parse(f"folder(path={str(tmp_path)!r})")(tmp_path)
    assert data.train.x.shape == (40, 1, 6, 5) and data.test.y.tolist() == [1]
    assert np.array_equal(data.test.x[0, 0], IMAGES[1, ..., 0])
    (tmp_path / "val/dog").rename(tmp_path / "val/cow")
    with pytest.raises(InputError, match="unknown class of test example 0: 'cow'"):
        DATASETS.parse(f"folder(path={str(tmp_path)!r})")(tmp_path)


def test_folders_that_cannot_be_read(tmp_path):
    with pytest.raises(InputError, match="holds no images in folders"):
        dataset_from(tmp_path)
    with pytest.raises(InputError, match=r"is not a folder .*read \(.npz, .csv, .tsv, .parquet\)"):
        dataset_from(str(tmp_path / "nothing.xlsx"))
    write_folder(tmp_path)
    Image.fromarray(IMAGES[0, :4]).save(tmp_path / "cat/odd.png")
    with pytest.raises(
        InputError, match=r"odd.png is of \(5, 4\) pixels, and others are of \(5, 6"
    ):
        dataset_from(tmp_path)
    (tmp_path / "cat/odd.png").write_bytes(b"\x89PNG nothing")
    with pytest.raises(InputError, match=r"odd.png cannot be read as an image"):
        dataset_from(tmp_path)


def test_an_npz(tmp_path):
    path = tmp_path / "mine.npz"
    np.savez(path, x_train=IMAGES, y_train=LABELS, x_test=IMAGES[:3], y_test=LABELS[:3])
    data = DATASETS.parse("npz(path='mine.npz')")(tmp_path)
    assert np.array_equal(data.train.x, FIRST) and data.test.y.tolist() == [0, 1, 2]
    np.savez(path, x=IMAGES, y=LABELS, client=np.arange(40) // 20)
    data = dataset_from(path)
    assert len(data.test.y) == 8 and np.bincount(data.keys["client"]).tolist() == [16, 16]


def test_an_npz_that_cannot_be_read(tmp_path):
    path = tmp_path / "mine.npz"
    np.savez(path, images=IMAGES)
    with pytest.raises(InputError, match=r"mine.npz holds images; not x_train"):
        dataset_from(path)
    np.savez(path, x=np.array([{}, {}]), y=LABELS[:2])
    with pytest.raises(InputError, match=r"mine.npz cannot be read as an .npz: Object arrays"):
        dataset_from(path)
    for blob in (b"", b"PK", b"\x93NUMPY nothing"):
        path.write_bytes(blob)
        with pytest.raises(InputError, match=r"mine.npz cannot be read"):
            dataset_from(path)
    np.savez(path, x=IMAGES, y=LABELS, client=np.zeros(3))
    with pytest.raises(InputError, match="train: 40 examples have 3 clients"):
        dataset_from(path)


def with_nan(row, size=40):
    x = np.zeros((size, 2))
    x[row, 1] = np.nan
    return x


def test_numbers_that_are_not_finite_are_named():
    with pytest.raises(InputError, match="train example 7 holds a number that is not finite"):
        dataset_from((with_nan(7), LABELS))
    with pytest.raises(InputError, match="test example 4999 holds"):
        dataset_from((with_nan(7)[:7], LABELS[:7]), (with_nan(4999, 5000), np.zeros(5000, int)))
    with pytest.raises(InputError, match="train example 7 has a label with a number that is not"):
        dataset_from((np.zeros((40, 2)), with_nan(7)[:, 1]))


MISTAKES = [
    ((FIRST, LABELS[:3]), "train: 40 examples have 3 labels"),
    ((FIRST[:0], LABELS[:0]), "train: there are no examples"),
    ([(FIRST[0], 1), (FIRST[1], -1)], "train example 1 has the label -1; they count from 0"),
    (42, "train data is a dataset whose items .* not int"),
    (iter([]), "train data is a dataset whose items .* not list_iterator"),
    (
        DataLoader(Items(lambda image: image)),
        "train data is a DataLoader: give its dataset, loader",
    ),
    ([DataLoader(Items(lambda image: image))] * 2, "client 0 data is a DataLoader: give its dat"),
    (torch.tensor(FIRST), r"train data is a Tensor alone: give a pair .* \(images, labels\)"),
    (Items(lambda image: object()), "train example 0: neither numbers nor words, but object"),
    (Items(lambda image: "text"), "train: inputs are words"),
    ([(FIRST[0], 1), (FIRST[1], [1, 2])], "train example 1 has a list as its label"),
    ([FIRST, LABELS], r"a pair is a tuple of two arrays, \(x, y\); not a list of ndarray and nd"),
    ([torch.tensor(FIRST), torch.tensor(LABELS)], "a pair is a tuple of .* Tensor and Tensor"),
    ((FIRST, LABELS[:3].tolist()), "train: 40 examples have 3 labels"),
    ((FIRST, LABELS - 1), "train example 0 has the label -1; .* to predict: give these as floats"),
    ([(FIRST, LABELS), [FIRST, LABELS.tolist()]], "a pair is a tuple of two arrays"),
    ((list(FIRST), LABELS), r"a list of the inputs of each example: give torch.stack\(inputs\)"),
    (
        (np.ma.masked_array(FIRST, FIRST > 0), LABELS),
        "train: values are masked: give value.fi",
    ),
    (TensorDataset(torch.zeros(3, 2)), "train example 0 is no pair of an input and a label"),
]


@pytest.mark.parametrize(("source", "message"), MISTAKES, ids=[m for _, m in MISTAKES])
def test_mistakes_are_explained(source, message):
    with pytest.raises(InputError, match=message):
        dataset_from(source)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_tensor_is_to_be_padded():
    ragged = torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)])
    with pytest.raises(InputError, match=r"nested or quantized: give to_padded_tensor\(0\)"):
        dataset_from((ragged, LABELS[:2]))


def test_shapes_of_train_and_test_must_agree():
    with pytest.raises(InputError, match="train and test examples are of different shapes"):
        dataset_from((FIRST, LABELS), (FIRST[:, :, :4], LABELS))


def test_images_are_normalised_by_their_own_statistics():
    data = dataset_from((FIRST, LABELS), (FIRST, LABELS))
    x = data.transform(data.train.x, None).double()
    assert x.mean((0, 2, 3)).abs().max() < 1e-6
    assert (x.var((0, 2, 3), correction=0) - 1).abs().max() < 1e-5
    black = torch.zeros(3, 1, 2, 2, dtype=torch.uint8)
    assert normalisation(black) == ImageTransform((0.0,), (1.0,))
    mine = ImageTransform((0.5,) * 3, (0.5,) * 3)
    assert dataset_from((FIRST, LABELS), transform=mine).transform is mine
