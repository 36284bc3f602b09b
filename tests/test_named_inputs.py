"""Texts as people hold them: several columns by name, rows of different lengths, labels of -100."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from gcfed import InputError, fit
from gcfed.core.lazy import loaded
from gcfed.data import Lazy, dataset_from
from gcfed.runs.plan import plan

pytest_plugins = ["running"]

IDS = [[5, 1, 2], [4], [3, 6], [2, 2, 2]] * 3
KINDS = [0, 1, 1, 0] * 3


class Table:
    """What a Hugging Face dataset has: features, names of columns, and rows."""

    def __init__(self, **columns):
        self.columns, self.column_names = columns, list(columns)
        kinds = SimpleNamespace(names=["short", "long"])
        self.features = {name: kinds if name == "label" else None for name in columns}

    def __len__(self):
        return len(self.columns["input_ids"])

    def __getitem__(self, key):
        if isinstance(key, str):
            return self.columns[key]
        return {name: values[key] for name, values in self.columns.items()}


def test_texts_of_different_lengths_are_padded_and_masked():
    data = dataset_from(Table(input_ids=IDS, label=KINDS), Table(input_ids=[[1] * 5], label=[1]))
    x, y = data.train
    assert {name: v.dtype for name, v in x.items()} == dict.fromkeys(
        ("input_ids", "attention_mask"), torch.int64
    )
    assert x["input_ids"][:2].tolist() == [[5, 1, 2, 0, 0], [4, 0, 0, 0, 0]]
    assert x["attention_mask"].sum(1).tolist() == [3, 1, 2, 3] * 3
    assert y.tolist() == KINDS and data.class_names == ("short", "long")
    assert data.test.x["input_ids"].shape == (1, 5)


def test_texts_are_filled_up_with_the_token_that_is_asked_for():
    long = Table(input_ids=[[1] * 5], label=[1])
    mask = [[1] * len(row) for row in IDS]
    data = dataset_from(Table(input_ids=IDS, attention_mask=mask, label=KINDS), long, pad=9)
    assert data.train.x["input_ids"][1].tolist() == [4, 9, 9, 9, 9]
    assert data.train.x["attention_mask"][1].tolist() == [1, 0, 0, 0, 0]
    pair = ({"input_ids": [[3], [1, 2]], "decoder_input_ids": [[1, 2], [3]]}, [0, 1])
    clients = dataset_from([pair, pair], pair, pad=7).train.x
    assert clients["input_ids"].tolist() == [[3, 7], [1, 2]] * 2
    assert clients["decoder_input_ids"].tolist() == [[1, 2], [3, 7]] * 2
    with pytest.raises(InputError, match="pad is at least 0; not -1"):
        dataset_from(pair, pad=-1)


def test_columns_of_a_tokenizer_are_found_and_others_left_out():
    mask = [[1] * len(row) for row in IDS]
    table = Table(text=["a"] * 12, input_ids=IDS, attention_mask=mask, label=KINDS)
    data = dataset_from(table)
    assert list(data.train.x) == ["input_ids", "attention_mask"]
    named = dataset_from(table, columns=(["input_ids", "attention_mask"], "label"))
    assert torch.equal(named.train.x["attention_mask"], data.train.x["attention_mask"])
    with pytest.raises(InputError, match="unknown column of the train data: 'type'"):
        dataset_from(table, columns=(("input_ids", "type"), "label"))
    with pytest.raises(InputError, match="inputs are words"):
        dataset_from(table, columns=(("input_ids", "text"), "label"))


def test_one_column_of_texts_that_are_all_of_one_length_needs_no_name():
    data = dataset_from(Table(input_ids=np.ones((12, 4), int).tolist(), label=KINDS))
    assert data.train.x.shape[1:] == (4,)


def test_labels_of_padding_do_not_count():
    tags = [[0] * len(row) for row in IDS]
    data = dataset_from(
        Table(input_ids=IDS, labels=tags), Table(input_ids=IDS[:2], labels=tags[:2])
    )
    assert data.train.y[1].tolist() == [0, -100, -100]
    padded = [[*row, 0, 0][:3] for row in IDS]
    mask = [[1, 1, 1][: len(row)] + [0] * (3 - len(row)) for row in IDS]
    table = Table(input_ids=padded, attention_mask=mask)
    texts = dataset_from(table, columns=(("input_ids", "attention_mask"), "input_ids"))
    assert texts.test.y.tolist() == [
        [t if m else -100 for t, m in zip(*row, strict=True)]
        for row in zip(*(v.tolist() for v in texts.test.x.values()), strict=True)
    ]


def test_dicts_of_arrays_and_rows_that_are_dicts():
    table = dataset_from(Table(input_ids=IDS, label=KINDS))
    rows = [{"input_ids": torch.tensor(r), "label": k} for r, k in zip(IDS, KINDS, strict=True)]
    pair = ({"input_ids": IDS}, torch.tensor(KINDS))
    for source in (rows, pair):
        data = dataset_from(source)
        assert all(torch.equal(data.train.x[name], v) for name, v in table.train.x.items())
        assert torch.equal(data.train.y, table.train.y)


def test_rows_that_lack_a_column_are_named():
    rows = [{"input_ids": [1, 2], "label": 0}, {"input_ids": [3], "kind": 1}]
    with pytest.raises(InputError, match="train example 1 has no label; it has input_ids, kind"):
        dataset_from(rows)


def test_clients_with_texts_of_different_lengths():
    long = {"input_ids": torch.ones(4, 6).long(), "attention_mask": torch.ones(4, 6).long()}
    short = {name: v[:, :2] for name, v in long.items()}
    y = torch.arange(4) % 2
    data = dataset_from([(long, y), (short, y)], ({**short}, y))
    assert data.keys["client"].tolist() == [0] * 4 + [1] * 4
    assert data.train.x["attention_mask"].sum(1).tolist() == [6] * 4 + [2] * 4
    with pytest.raises(InputError, match="has the inputs input_ids, attention_mask, and another"):
        dataset_from([(long, y), ({"input_ids": short["input_ids"], "other": y}, y)])


@pytest.mark.parametrize(
    ("x", "y", "said"),
    [
        ({"a": [[1.0], [2.0, 3.0]], "b": [1, 2]}, [0, 1], "train, a: examples are of different"),
        ({"a": [1, 2, 3], "b": [1, 2]}, [0, 1], "3 a have 2 labels"),
        ({"a": [], "b": []}, [], "there are no examples"),
        ({"a": [[1.0], [np.nan]], "b": [1, 2]}, [0, 1], "example 1 holds a number that is not"),
    ],
)
def test_what_cannot_be_inputs_by_name(x, y, said):
    with pytest.raises(InputError, match=said):
        dataset_from((x, y), (x, y))


class Next(nn.Module):
    """Says of each token of a text, from those before it, which one comes next."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(7, 8), nn.Linear(8, 7)

    def forward(self, input_ids, attention_mask):
        hidden = self.embed(input_ids) * attention_mask[..., None]
        return {"logits": self.head(torch.tanh(hidden.cumsum(-2)))}


class Weighted(nn.Module):
    """Takes two inputs by name, of which it can do without the second."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3, 2)

    def forward(self, x, w=None, name=None, labels=None):
        assert name is None and labels is None
        return self.head(x) * (1.0 if w is None else w[:, None])


ROWS = [
    {"x": torch.full((3,), i / 12), "w": i + 1.0, "name": "a", "label": i % 2} for i in range(12)
]
FEW = {"clients": 2, "cohort": 2, "partition": "iid", "rounds": 1, "batch_size": 4}
FEW |= {"algorithm": "fedavg", "progress": False}


@pytest.mark.usefixtures("float32")
def test_fit_gives_the_model_all_numbers_that_it_takes_by_name():
    history = fit(Weighted(), ROWS, ROWS, **FEW)
    assert history.experiment.dataset.train.x["w"].tolist() == [row["w"] for row in ROWS]
    said = "inputs: x, w; labels: label; columns that are left out: name"
    assert said in plan(history.experiment)
    alone = fit(Weighted(), ROWS, ROWS, columns=("x", "label"), **FEW).experiment
    assert alone.dataset.train.x.shape == (12, 3)
    assert "inputs: x; labels: label; columns that are left out: w, name" in plan(alone)
    clients = fit(Weighted(), [ROWS, ROWS], cohort=2, rounds=1, progress=False, batch_size=4)
    assert said in plan(clients.experiment) and set(clients.experiment.dataset.train.x) == {
        "x",
        "w",
    }
    other = fit(nn.Linear(3, 2), ROWS, ROWS, **FEW).experiment.dataset  # takes an "input"
    assert torch.equal(other.train.x, alone.dataset.train.x)
    texts = Table(input_ids=IDS, w=[1.0] * 12, label=KINDS)
    takes = dataset_from(texts, takes=["input_ids", "w", "label"]).train.x
    assert list(takes) == ["input_ids", "w", "attention_mask"]
    assert list(dataset_from(texts, takes=["w"]).train.x) == ["input_ids", "attention_mask"]


def test_a_picture_is_the_only_input_unless_columns_say_otherwise():
    """Its bytes are normalised, which inputs by name are not."""
    for image in (np.zeros((5, 5, 3), np.uint8), np.zeros((5, 5, 3)), Image.new("RGB", (5, 5))):
        rows = [{"x": image, "w": 1.0, "label": i % 2} for i in range(8)]
        data = dataset_from(rows, takes=["x", "w"])
        assert data.train.x.shape[1:] == (3, 5, 5) and data.note.endswith("left out: w")


class Pairs:
    """A map-style dataset of inputs by name, each with its label."""

    def __init__(self, *names):
        self.names = names

    def __len__(self):
        return 12

    def __getitem__(self, i):
        return {name: ROWS[i][name] for name in self.names}, ROWS[i]["label"]


def test_items_that_are_pairs_of_a_dict_and_a_label():
    rows = dataset_from(ROWS, columns=(("x", "w"), "label"))
    for source in (Pairs("x", "w"), list(Pairs("x", "w"))):
        data = dataset_from(source)
        assert torch.equal(data.train.y, rows.train.y) and data.note == ""
        assert all(torch.equal(data.train.x[name], v) for name, v in rows.train.x.items())
    one = dataset_from(Pairs("x", "w"), Pairs("x", "w"), columns=("x", "label")).train.x
    for source in (Pairs("x"), Lazy(Pairs("x"), processes=0)):
        assert torch.equal(loaded(dataset_from(source, source).train.x), one)
    with pytest.raises(InputError, match="x, w are Lazy"):
        dataset_from(Lazy(Pairs("x", "w")))


class Configured(Next):
    """Says as models of Hugging Face do with which token texts are filled up."""

    def __init__(self, pad):
        super().__init__()
        self.config = SimpleNamespace(pad_token_id=pad)


@pytest.mark.usefixtures("float32")
@pytest.mark.parametrize(("pad", "filled"), [(6, 6), (None, 0), (-1, 0)])
def test_fit_fills_texts_up_with_the_pad_token_of_the_model(pad, filled):
    table = Table(input_ids=IDS, labels=IDS)
    settings = {"clients": 1, "cohort": 1, "partition": "iid", "rounds": 1, "batch_size": 4}
    settings |= {"loss": "next_token", "algorithm": "fedavg", "progress": False}
    found = fit(Configured(pad), table, table, **settings).experiment.dataset
    for part in (found.train, found.test):
        assert part.x["input_ids"][1].tolist() == [4, filled, filled]
    again = fit(Configured(pad), found, ({"input_ids": IDS}, IDS), **settings).experiment.dataset
    assert torch.equal(again.test.x["input_ids"], found.test.x["input_ids"])


@pytest.mark.usefixtures("float32")
def test_how_far_texts_are_padded_changes_nothing():
    """Neither the loss nor a gradient: padding has no label that counts."""
    longer = [[*row, 0, 0] for row in (IDS[0], IDS[1])]
    masks = [[1] * len(row) + [0, 0] for row in IDS[:2]]
    labels = [[*row, -100, -100] for row in IDS[:2]]
    texts = Table(input_ids=IDS[:2], labels=IDS[:2])
    wide = Table(input_ids=longer, attention_mask=masks, labels=labels)
    torch.manual_seed(0)
    module, found = Next(), []

    def next_token(logits, y):
        return nn.functional.cross_entropy(logits[:, :-1].mT, y[:, 1:], reduction="none")

    for table in (texts, wide):
        for engine in ("sequential", "vectorized"):
            settings = {"clients": 1, "cohort": 1, "partition": "iid", "rounds": 2, "batch_size": 2}
            settings |= {"engine": engine, "metrics": ["perplexity"], "loss": next_token}
            found.append(fit(module, table, table, algorithm="fedavg", **settings))
    assert len({round(history["test_perplexity"][-1], 5) for history in found}) == 1


TEXTS = [[5, 6, 7], [5, 6], [8], [9, 5, 6, 7]] * 10


def test_texts_in_pairs_are_padded():
    items = [({"input_ids": text}, i % 2) for i, text in enumerate(TEXTS)]
    found = dataset_from(items, test_fraction=0.5, pad=3)
    assert found.train.x["input_ids"].shape[1] == 4 and 3 in found.train.x["input_ids"]
    assert set(found.train.x) == {"input_ids", "attention_mask"}


def test_a_list_of_texts_with_a_label_at_each_place_is_no_list_of_clients():
    items = [({"input_ids": np.array(t)}, np.array(t) % 2) for t in TEXTS]
    found = dataset_from(items, test_fraction=0.5)
    assert found.keys == {} and found.train.y.shape[1] == 4


@pytest.mark.parametrize("first", [2, 5])
def test_clients_may_be_lists_of_dicts_of_any_length(first):
    def held(count):
        return [{"x": np.ones(3, np.float32) * i, "label": i % 2} for i in range(count)]

    found = dataset_from([held(first), held(6)], test_fraction=0.5)
    assert sorted(set(found.keys["client"].tolist())) == [0, 1]
