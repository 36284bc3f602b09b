"""Tables as people hold them: frames, Bunches, sparse matrices, files of comma-separated values."""

import numpy as np
import pytest
import torch
from torch import nn

from gcfed import InputError, fit
from gcfed.data import dataset_from
from gcfed.data.datasets import own_tables

pandas = pytest.importorskip("pandas")
pytestmark = pytest.mark.usefixtures("float32")
pytest_plugins = ["running"]

NUMBERS = np.random.default_rng(0).normal(size=(40, 3))
KINDS = np.arange(40) % 4
SETTINGS = {"clients": 4, "cohort": 2, "rounds": 1, "batch_size": 4, "progress": False}


@pytest.fixture
def frame():
    table = pandas.DataFrame(NUMBERS, columns=["a", "b", "c"])
    return table.assign(whole=range(40), label=np.array(["ant", "bee", "cat", "dog"])[KINDS])


def expected():
    return torch.tensor(np.column_stack([NUMBERS, np.arange(40)])).float()


def test_a_frame_has_its_labels_in_a_column(frame):
    data = dataset_from(frame, frame)
    assert torch.equal(data.train.x, expected()) and data.train.y.tolist() == KINDS.tolist()
    assert data.class_names == ("ant", "bee", "cat", "dog")
    renamed = frame.rename(columns={"label": "kind"})
    named = dataset_from(renamed, renamed, columns=(None, "kind"))
    assert torch.equal(named.train.x, expected())
    known = frame.assign(who=np.array(["Ann", "Bob"])[KINDS // 2])
    one = dataset_from(known, columns=("whole", "label"), client="who")
    assert one.train.x.shape[1] == 1 and set(one.keys["client"]) == {"Ann", "Bob"}
    assert dataset_from(known, client="who").train.x.shape[1] == 4


def test_a_pair_of_a_frame_and_a_column(frame):
    x = frame[["a", "b", "c", "whole"]]
    data = dataset_from((x, frame["label"]), (x, frame["label"].astype("category")))
    assert torch.equal(data.train.x, expected()) and torch.equal(data.test.y, data.train.y)
    assert dataset_from((x.to_numpy(), frame["label"])).num_classes == 4
    one_column = dataset_from((x, pandas.DataFrame({"kind": KINDS})))
    assert one_column.num_classes == 4 and one_column.train.y.ndim == 1
    listed = dataset_from((x, frame["label"].tolist()))
    assert listed.num_classes == 4 and listed.train.x.shape[1] == 4
    by_client = dataset_from([(x[:10], frame["label"][:10]), (x[10:], frame["label"][10:])])
    assert set(by_client.keys["client"].tolist()) == {0, 1}


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".tsv", ".CSV"])
def test_files_that_pandas_reads(frame, tmp_path, suffix):
    path = tmp_path / f"mine{suffix}"
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
        frame.to_parquet(path, index=False)
    else:
        frame.to_csv(path, index=False, sep="\t" if suffix == ".tsv" else ",")
    assert torch.equal(dataset_from(path, str(path)).train.x, expected())
    path.write_bytes(b"")
    with pytest.raises(InputError, match=f"mine{suffix} cannot be read"):
        dataset_from(path)


def test_a_file_where_pandas_is_missing(monkeypatch, tmp_path):
    def missing(name):
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(own_tables, "import_module", missing)
    with pytest.raises(InputError, match=r"to read .*mine.csv takes pandas: .* No module named"):
        dataset_from(tmp_path / "mine.csv")


def test_bunches():
    bunch = {"data": NUMBERS, "target": KINDS, "target_names": np.array(["a", "b", "c", "d"])}
    data = dataset_from(bunch, (NUMBERS, KINDS))
    assert data.class_names == ("a", "b", "c", "d") and data.train.x.shape == (40, 3)
    numbers = dataset_from({"data": NUMBERS, "target": NUMBERS[:, 0], "target_names": ["price"]})
    assert numbers.num_classes == 0


def test_sparse_matrices(monkeypatch):
    sparse = pytest.importorskip("scipy.sparse")
    data = dataset_from((sparse.csr_matrix(NUMBERS), KINDS), (NUMBERS, KINDS))
    assert torch.equal(data.train.x, data.test.x)
    vast = sparse.csr_matrix((10**9, 10**9), dtype=np.float32)
    with pytest.raises(InputError, match=r"train: a sparse matrix of shape .* of memory"):
        dataset_from((vast, KINDS))


MISTAKES = [
    (lambda f: f.drop(columns="label"), "which column holds the labels. There are a, b, c, whole;"),
    (lambda f: f.assign(town="Bath"), "train: column town holds words, such as .*Bath"),
    (lambda f: f[["label"]], "train: beside its labels the table has no column"),
    (lambda f: f.assign(a=[object()] * 40), "train column a: neither numbers nor words"),
    (
        lambda f: f.assign(b=[*range(39), None]),
        "train example 39 holds a number that is",
    ),
]


@pytest.mark.parametrize(("change", "message"), MISTAKES, ids=[m for _, m in MISTAKES])
def test_mistakes_are_explained(frame, change, message):
    with pytest.raises(InputError, match=message):
        dataset_from(change(frame))


def test_a_column_that_is_missing(frame):
    with pytest.raises(InputError, match="unknown column of the train data: 'labels'"):
        dataset_from(frame, columns=(None, "labels"))


def test_a_module_of_float64_reads_float64():
    module = nn.Linear(3, 4).double()
    history = fit(module, (NUMBERS, KINDS), **SETTINGS)
    x = history.experiment.dataset.train.x
    assert x.dtype == torch.float64 and set(x[:, 0].tolist()) <= set(NUMBERS[:, 0].tolist())
    target = dataset_from((NUMBERS, NUMBERS[:, 0]), dtype=torch.float64).train.y
    assert target.dtype == torch.float64
    with pytest.raises(InputError, match=r"float32: weights are float64, so give x.astype"):
        fit(module, dataset_from((NUMBERS, KINDS)), **SETTINGS)
    with pytest.raises(InputError, match=r"dtype is torch.float32 or torch.float64; not"):
        dataset_from((NUMBERS, KINDS), dtype=torch.int8)
