"""Modules as people bring them: inputs by name, outputs that hold logits, steps no vmap can do."""

from dataclasses import replace
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from running import lines
from torch import nn

from gcfed import (
    DATASETS,
    MODELS,
    Config,
    InputError,
    Model,
    Output,
    costs,
    fit,
    load_run,
    run,
    simulate,
    start,
)
from gcfed.core.calling import pad_token
from gcfed.core.types import Examples
from gcfed.data import Dataset
from gcfed.engines import Choice
from gcfed.engines.vectorized import Vectorized
from gcfed.simulation.evaluation import TestSet, visit_batches

pytest_plugins = ["running"]
pytestmark = pytest.mark.usefixtures("float32", "registries")

SETTINGS = {"clients": 4, "cohort": 2, "partition": "iid", "rounds": 2, "batch_size": 8}


class Logits(NamedTuple):
    hidden: torch.Tensor
    logits: torch.Tensor


FORMS = {
    "tensor": lambda z: z,
    "output": Output,
    "attribute": lambda z: SimpleNamespace(loss=None, logits=z),
    "dict": lambda z: {"hidden": z + 1, "logits": z},
    "tuple": lambda z: (z, z + 1),
    "named tuple": lambda z: Logits(z + 1, z),
}


class Text(nn.Module):
    """Says of a padded text which of two classes it is of, by the mean over its tokens."""

    def __init__(self, form="attribute"):
        super().__init__()
        self.embed, self.hidden, self.head = nn.Embedding(7, 6), nn.Linear(6, 8), nn.Linear(8, 2)
        self.form = form

    def forward(self, input_ids, attention_mask=None, *, labels=None):
        assert labels is None and input_ids.dtype == torch.int64
        mask = attention_mask[..., None].to(self.head.weight.dtype)
        mean = (self.embed(input_ids) * mask).sum(-2) / mask.sum(-2)
        return FORMS[self.form](self.head(torch.relu(self.hidden(mean))))


class OneDict(Text):
    def forward(self, batch):
        return super().forward(**batch)


class AnyNames(Text):
    def forward(self, *args, **kwargs):
        return super().forward(*args, **kwargs)


class Peeking(Text):
    """Looks at the values of its inputs, which no vmap can do."""

    def forward(self, input_ids, attention_mask=None):
        if bool((attention_mask == 1).all()):
            attention_mask = torch.ones_like(attention_mask)
        return super().forward(input_ids, attention_mask)


def texts(size=64):
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(1, 7, (size, 5), generator=draw)
    mask = (torch.arange(5) < torch.randint(1, 6, (size, 1), generator=draw)).long()
    y = ((ids * mask == 3).sum(1) > 0).long()
    return Examples({"input_ids": ids * mask, "attention_mask": mask}, y)


@pytest.fixture
def data():
    return Dataset(train=texts(), test=texts(20), num_classes=2)


def module(kind=Text, *arguments):
    torch.manual_seed(0)
    return kind(*arguments)


@pytest.mark.parametrize("form", FORMS)
def test_logits_are_found_in_whatever_form_they_come(form):
    model, (x, _) = Model(module(Text, form)), texts(4)
    out, _ = model(model.params, x, buffers={}, train=False)
    wanted = module(Text, "tensor")(**x)
    assert torch.equal(out.logits, wanted) and out.features.shape == (4, 8)
    with model.outputs({"logits": ""}) as found:
        model(model.params, x, buffers={}, train=False)
    assert torch.equal(found["logits"], wanted)


@pytest.mark.parametrize("given", [None, {"hidden": torch.zeros(2)}, (), "logits"])
def test_what_holds_no_logits_is_refused_in_words(given, data):
    class Wrong(Text):
        def forward(self, input_ids, attention_mask=None):
            return given

    with pytest.raises(InputError, match=f"returns a {type(given).__name__}, where logits belong"):
        fit(module(Wrong), data, **SETTINGS)


def test_several_inputs_come_by_name_or_as_one_dict():
    x, _ = texts(4)
    said = []
    for kind in (Text, OneDict, AnyNames):
        model = Model(module(kind))
        said.append(model(model.params, x, buffers={}, train=False)[0].logits)
    assert torch.equal(said[0], said[1]) and torch.equal(said[0], said[2])
    with pytest.raises(InputError, match=r"takes \(input_ids, attention_mask, labels\).*type_ids"):
        model = Model(module())
        model(model.params, {**x, "type_ids": x["input_ids"]}, buffers={}, train=False)


@pytest.mark.parametrize(
    ("engine", "precision"),
    [("vectorized", "float32"), ("vectorized", "bf16"), ("workers(processes=1)", "float32")],
)
def test_every_engine_trains_on_inputs_by_name(engine, precision, data):
    settings = SETTINGS | {"precision": precision, "probes": ["cka"]}
    one = fit(module(), data, engine="sequential", **settings)
    other = fit(module(), data, engine=engine, **settings)
    tolerance = 1e-4 if precision == "float32" else 2e-2
    for (name, a), b in zip(
        one.module.state_dict().items(), other.module.state_dict().values(), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, msg=name)
    assert one["cka.new.head"][-1] == pytest.approx(other["cka.new.head"][-1], abs=0.05)


def test_few_texts_are_judged_at_once(data):
    """Each of their tokens may have the logits of a whole vocabulary."""
    sizes, setup = [], fit(module(), data, engine="sequential", **SETTINGS).experiment.setup
    server, test = start(setup).server, TestSet(*texts(150))
    visit_batches(setup, [server], test, lambda i, logits, y: sizes.append(len(logits)))
    assert sizes == [64, 64, 22]


def test_a_model_that_vmap_cannot_run_is_no_case_for_auto(data, monkeypatch):
    """Where auto takes vectorized, as it does on a GPU."""
    chosen = Choice("vectorized", Vectorized, "products are fastest together")
    monkeypatch.setattr("gcfed.engines.choice._auto", lambda *_: chosen)
    assert fit(module(), data, **SETTINGS).experiment.config.engine == "vectorized"
    with pytest.warns(UserWarning, match="a client at a time"):
        found = fit(module(Peeking), data, **SETTINGS)
    assert found.experiment.config.engine == "sequential"


def test_a_model_no_vmap_can_run_is_trained_one_client_at_a_time(data):
    wanted = fit(module(), data, engine="sequential", **SETTINGS)
    with pytest.warns(
        UserWarning, match=r"vectorized engine cannot.*a client at a time.*\.item\(\).*test_calling"
    ):
        found = fit(module(Peeking), data, engine="vectorized", **SETTINGS)
    assert found.experiment.config.engine == "sequential"
    assert "mapped over clients" in found.experiment.setup.chosen.reason
    assert wanted.experiment.setup.chosen.reason == "as set"
    assert found.records == wanted.records
    with pytest.warns(UserWarning, match=r"as it is written.*numbers are read out of tensors"):
        found = fit(module(Peeking), data, engine="workers(processes=1)", **SETTINGS)
    assert found["test_loss"] == pytest.approx(wanted["test_loss"])


def test_what_fails_in_every_engine_is_no_fault_of_vmap(data):
    class Broken(Text):
        def forward(self, input_ids, attention_mask=None):
            if self.training:
                raise KeyError("no such thing")
            return super().forward(input_ids, attention_mask)

    with pytest.raises(InputError, match="not in training: KeyError: 'no such thing'"):
        fit(module(Broken), data, engine="vectorized", **SETTINGS)


def test_setups_fall_back_too(data):
    setup = fit(module(Text), data, engine="vectorized", **SETTINGS).experiment.setup
    setup = replace(setup, model=Model(module(Peeking)), initial=None)
    with pytest.warns(UserWarning, match="a client at a time"):
        assert len(list(simulate(setup))) == 2


def test_runs_by_name_read_and_predict_several_inputs(tmp_path, data, gcfed):
    shapes = []

    @MODELS.register("text")
    def text(shape, num_classes):
        shapes.append(shape)
        return Text()

    DATASETS.register("texts")(lambda root: data)
    config = Config(dataset="texts", model="text", engine="vectorized", **SETTINGS)
    run(config, tmp_path / "a")
    assert set(map(str, shapes)) == {"{'input_ids': (5,), 'attention_mask': (5,)}"}
    assert len(lines(tmp_path / "a")) == 2
    x = data.test.x
    classes = load_run(tmp_path / "a").predict({name: v.numpy() for name, v in x.items()})
    accuracy = (classes == data.test.y).double().mean().item()
    assert accuracy == lines(tmp_path / "a")[-1]["test_accuracy"]
    shown = gcfed("inspect", "text", "--dataset", "texts")
    assert shown.code == 0 and "hidden.weight" in shown.out
    assert "attention_mask  5, int64" in gcfed("data", "show", "texts").out
    assert "gcfed" in str(costs(["gcfed"], model="text", dataset=data))
    with pytest.raises(InputError, match=r"'input_ids': \['n', 5\].*not"):
        load_run(tmp_path / "a").predict({**x, "attention_mask": x["attention_mask"][:, :3]})


@pytest.mark.parametrize(
    ("config", "token"),
    [
        ({"pad_token_id": 7, "vocab_size": 9}, 7),
        ({"pad_token_id": 9, "vocab_size": 9}, 0),  # of a tokenizer that knows more words
        ({"pad_token_id": -1}, 0),
        ({"pad_token_id": None}, 0),
        ({"pad_token_id": 3}, 3),
    ],
)
def test_texts_are_filled_up_with_a_token_that_the_model_has(config, token):
    module = nn.Linear(1, 1)
    module.config = SimpleNamespace(**config)
    assert pad_token(module) == token
    assert pad_token(nn.Linear(1, 1)) == 0
