"""Losses by name, torch's own and one's own: what clients minimise, in every engine."""

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from running import TINY, flags, lines, tiny
from torch import nn

from gcfed import InputError, compare, fit, load_run, resume, run, sweep
from gcfed.core.losses import named_loss, per_example
from gcfed.core.metrics import Scale
from gcfed.results.facts import facts

pytest_plugins = ["running"]
pytestmark = pytest.mark.usefixtures("float32", "registries")

TASK = {"clients": 6, "cohort": 3, "partition": "iid", "batch_size": 10, "epochs": 1}
SETTINGS = {**TASK, "rounds": 2, "engine": "sequential", "progress": False}
PLUGIN = """
import torch
from torch import nn

import gcfed
from gcfed.data import dataset_from


@gcfed.LOSSES.register("quantile")
def quantile(outputs, y, *, q: float = 0.5):
    '''The loss whose minimum is a quantile of the labels.'''
    error = y - outputs[:, 0]
    return torch.maximum(q * error, (q - 1) * error)


@gcfed.DATASETS.register("steps")
def steps(root):
    '''Texts of a language in which every word is followed by the next.'''
    draws = torch.Generator().manual_seed(0)
    texts = (torch.randint(7, (80, 1), generator=draws) + torch.arange(6)) % 7
    train, test = (gcfed.Examples(part, part) for part in texts.split([60, 20]))
    return gcfed.Dataset(train=train, test=test, num_classes=7)


@gcfed.MODELS.register("bigram")
def bigram(shape, num_words):
    '''The logits of the next word, from a word alone.'''
    return nn.Sequential(nn.Embedding(num_words, 8), nn.Linear(8, num_words))


@gcfed.DATASETS.register("signs")
def signs(root):
    '''Whether the first of four numbers is positive.'''
    x = torch.randn(80, 4, generator=torch.Generator().manual_seed(0))
    return dataset_from((x, (x[:, 0] > 0).long()))


@gcfed.MODELS.register("one_logit")
def one_logit(shape, num_classes):
    '''How much likelier the second class is than the first.'''
    return nn.Linear(4, 1)
"""


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


LOGITS, CLASSES = draw(6, 4), torch.tensor([0, 1, 2, 3, 3, 1])
SEVERAL = (draw(6, 4, seed=1) > 0).long()
TOKENS = torch.tensor([[1, 2, 0, 3], [3, 3, -100, 1]])


@pytest.fixture
def plugin(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(PLUGIN)
    return str(path)


# what a loss is


@pytest.mark.parametrize(
    ("text", "outputs", "y", "expected"),
    [
        ("cross_entropy", LOGITS, CLASSES, F.cross_entropy(LOGITS, CLASSES)),
        (
            "cross_entropy(label_smoothing=0.2)",
            LOGITS,
            CLASSES,
            nn.CrossEntropyLoss(label_smoothing=0.2)(LOGITS, CLASSES),
        ),
        ("bce", LOGITS, SEVERAL, nn.BCEWithLogitsLoss()(LOGITS, SEVERAL.float())),
        ("mse", LOGITS[:, :1], LOGITS[:, 1], F.mse_loss(LOGITS[:, 0], LOGITS[:, 1])),
        ("mse", LOGITS, LOGITS + 2, torch.tensor(4.0)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_mean_of_a_loss_is_what_torch_gives(text, outputs, y, expected):
    found = named_loss(text)(outputs, y)
    assert len(found) == len(y)
    torch.testing.assert_close(found.mean(), expected)


def test_the_next_token_is_told_from_the_one_before():
    logits = draw(2, 4, 5)
    found = named_loss("next_token")(logits, TOKENS)
    assert found.shape == (2, 3)
    assert found[1, 1] == 0  # its label is -100
    expected = F.cross_entropy(logits[:, :-1].reshape(-1, 5), TOKENS[:, 1:].flatten())
    torch.testing.assert_close(found.sum() / 5, expected)


def test_the_class_at_each_place_of_a_text():
    logits = draw(2, 4, 5)
    found = named_loss("token")(logits, TOKENS)
    assert found.shape == (2, 4)
    assert found[1, 2] == 0  # its label is -100
    torch.testing.assert_close(
        found.sum() / 7, F.cross_entropy(logits.flatten(0, 1), TOKENS.flatten())
    )


OWN = {
    "a module": nn.CrossEntropyLoss(label_smoothing=0.1),
    "a function": F.cross_entropy,
    "of several labels": nn.BCEWithLogitsLoss(pos_weight=torch.arange(4.0)),
    "of numbers": nn.HuberLoss(),
}


@pytest.mark.parametrize("loss", OWN.values(), ids=OWN)
def test_a_loss_of_torchs_is_taken_without_its_mean(loss):
    y = CLASSES if "ross" in repr(loss) else SEVERAL.float()
    found = per_example(loss)(LOGITS, y)
    assert len(found) == 6
    torch.testing.assert_close(found.mean(), loss(LOGITS, y))
    assert loss(LOGITS, y).ndim == 0  # the caller's is as it was


WRONG = {
    "CrossEntropyLoss has reduction='sum', and gcfed takes the mean": nn.CrossEntropyLoss(
        reduction="sum"
    ),
    "KLDivLoss has reduction='batchmean'": nn.KLDivLoss(reduction="batchmean"),
    "CrossEntropyLoss with weights of classes divides by the weights": nn.CrossEntropyLoss(
        weight=torch.ones(3)
    ),
    "CrossEntropyLoss has ignore_index=0, .* set such labels to -100": nn.CrossEntropyLoss(
        ignore_index=0
    ),
    "NLLLoss has ignore_index=-1, .* set such labels to -100": nn.NLLLoss(
        ignore_index=-1, reduction="none"
    ),
    r"loss=MSELoss is a class: write loss=MSELoss\(\)": nn.MSELoss,
    "the loss gives one value for a batch": lambda out, y: F.cross_entropy(out, y),
    r"the loss gives \[3, 3\] values for 3 examples.*broadcast": lambda out, y: F.mse_loss(
        out[:, :1], y, reduction="none"
    ),
    "unknown loss: 'cross_entropi'; did you mean 'cross_entropy'": "cross_entropi",
    r"cross_entropy\(label_smoothing=...\) is between 0 and 1": "cross_entropy(label_smoothing=2)",
    "the loss cannot read .* outputs of shape .3. and labels of shape .., where one": "mse",
    "next_token reads logits of shape": "next_token",
    "the loss cannot read .* token reads logits of shape": "token",
}


@pytest.mark.parametrize(("message", "loss"), WRONG.items(), ids=[m[:30] for m in WRONG])
def test_what_is_no_loss_for_each_example_is_refused(message, loss):
    data = draw(40, 4), torch.arange(40) % 3
    with pytest.raises(InputError, match=message):
        fit(nn.Linear(4, 3), data, loss=loss, **SETTINGS)


# fit


def test_torchs_cross_entropy_is_ours_to_the_last_bit():
    data, module = (draw(60, 4), torch.arange(60) % 3), nn.Linear(4, 3)
    first, second = (fit(module, data, loss=loss, **SETTINGS) for loss in (None, OWN["a function"]))
    assert first.records == second.records
    smoothed = fit(module, data, loss="cross_entropy(label_smoothing=0.1)", **SETTINGS)
    torchs = fit(module, data, loss=OWN["a module"], **SETTINGS)
    assert smoothed.records == torchs.records != first.records
    assert first.experiment.config.loss == "cross_entropy"
    assert smoothed.experiment.config.loss == "cross_entropy(label_smoothing=0.1)"
    assert torchs.experiment.config.loss == "given"


@pytest.mark.parametrize("width", [(), (1,), (2,)], ids=str)
def test_labels_that_are_numbers_have_their_squared_error(width, capsys):
    x = draw(60, 4)
    y = x @ draw(4, *width, seed=1)
    given = {**SETTINGS, "progress": True}
    history = fit(nn.Linear(4, *(width or (1,))), (x, y), algorithm="fedavg", **given)
    assert history.experiment.config.loss == "mse"
    assert history.experiment.metric == Scale("r2")
    assert "\nloss: mse; judged by r2\n" in capsys.readouterr().err


def test_probabilities_of_classes_are_no_numbers():
    data = draw(60, 4), draw(60, 3).softmax(1)
    history = fit(nn.Linear(4, 3), data, algorithm="fedavg", **SETTINGS)
    assert history.experiment.config.loss == "cross_entropy"


def test_cross_entropy_is_not_for_numbers():
    with pytest.raises(InputError, match="labels are numbers, not classes, which cross-entropy"):
        fit(nn.Linear(4, 1), (draw(40, 4), draw(40)), loss=nn.CrossEntropyLoss(), **SETTINGS)


def test_several_labels_an_example():
    x = draw(60, 4)
    y = (x[:, :3] > 0).long()
    given = {**SETTINGS, "algorithm": "fedavg", "epochs": 9, "rounds": 4, "lr": 0.5}
    history = fit(nn.Linear(4, 3), (x, y), loss="bce", **given)
    assert history.experiment.metric == Scale("macro_f1", percent=True)
    assert history["test_macro_f1"][-1] > 0.8


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*does not suit this model")
@pytest.mark.parametrize(
    ("text", "y"),
    [
        ("cross_entropy(label_smoothing=0.1)", torch.arange(200) % 5),
        ("bce", (draw(200, 5) > 0).long()),
        ("mse", draw(200, 5)),
        ("next_token", torch.arange(1000).reshape(200, 5) % 3),
        ("token", torch.arange(1000).reshape(200, 5) % 3),
    ],
)
def test_every_engine_minimises_it(text, y, data, on_every_engine):
    from gcfed import FederatedData, parse

    module = nn.Sequential(nn.Flatten(), nn.Linear(16, 15 if "token" in text else 5))
    if "token" in text:
        module.append(nn.Unflatten(1, (5, 3)))
    task = FederatedData(data.x, y.to(torch.float64) if text == "mse" else y, list(data.parts))
    torch.set_default_dtype(torch.float64)
    last = on_every_engine(
        parse("gcfed"), module=module.double(), data=task, loss=named_loss(text), rounds=1
    )
    assert last.losses.isfinite().all()


PLACES = torch.where(torch.arange(160).reshape(40, 4) % 3 == 0, -100, torch.arange(4) % 2)


@pytest.mark.parametrize("loss", [None, nn.CrossEntropyLoss()])
def test_cross_entropy_says_which_loss_reads_logits_at_each_place(loss):
    with pytest.raises(InputError, match=r"'next_token' reads them.*loss='token' where"):
        fit(nn.Linear(5, 3), (draw(40, 4, 5), PLACES), loss=loss, **SETTINGS)


@pytest.mark.parametrize("wrong", [3, -1])
@pytest.mark.parametrize("loss", ["token", "next_token"])
def test_a_class_without_a_logit_is_refused(loss, wrong):
    y = PLACES.clone()
    y[17, 2] = wrong
    with pytest.raises(InputError, match=f"gives 3 logits at each place.* is the label {wrong}: "):
        fit(nn.Linear(5, 3), (draw(40, 4, 5), y), loss=loss, **SETTINGS)


# runs


def test_a_regression_has_all_that_runs_have(numbers_file, tmp_path):
    config = tiny(**TASK, dataset=numbers_file, rounds=3, lr=0.05)
    summary = run(config, tmp_path / "a")
    assert summary["metric"] == "r2"
    first, *_, last = (line["test_r2"] for line in lines(tmp_path / "a"))
    assert first < last == summary["test_r2_best"] < 1
    made = load_run(tmp_path / "a")
    assert (made.config.loss, made.identity["loss"]) == ("mse", "mse")
    assert list(made.metrics) == ["r2", "loss"]
    assert ("loss", "mse") in facts(made)
    assert made.predict(torch.zeros(2, 4)).shape == (2, 1)
    resume(tmp_path / "a", rounds=5)
    run(config.model_copy(update={"rounds": 5}), tmp_path / "b")
    assert lines(tmp_path / "a") == lines(tmp_path / "b")
    found = compare(tmp_path / "a")
    assert found.plot().axes[0].get_ylabel() == "test r2"
    assert found.table().columns[2:4] == ("final", "best")


@pytest.mark.slow
def test_a_sweep_over_losses(numbers_file, tmp_path, monkeypatch, plugin):
    monkeypatch.chdir(tmp_path)
    losses = ["mse", "quantile(q=0.4)"]
    grid = {**TINY, **TASK, "dataset": numbers_file, "plugins": [plugin], "metrics": ["mae"]}
    made = sweep({**grid, "grid": {"loss": losses}}, devices="cpu")
    assert [each.config.loss for each in made.runs] == losses
    found = made.compare()
    assert found.metric == Scale("mae", "lower")
    assert list(found.blocks) == [f"loss = {loss}" for loss in losses]


def test_a_language_model_is_judged_by_its_perplexity(gcfed, plugin, tmp_path):
    settings = {**TASK, "dataset": "steps", "model": "bigram", "loss": "next_token", "lr": 1.0}
    words = [*flags(**settings, rounds=8), "--plugin", plugin, "--seeds", "0,1"]
    answer = gcfed("run", *words, "--out", "a")
    assert answer.code == 0, answer.err
    assert "\nloss: next_token; judged by perplexity (lower is better)\n" in answer.err
    last = lines(tmp_path / "a" / "seed-0")[-1]
    assert last["test_perplexity"] == pytest.approx(np.exp(last["test_loss"]))
    assert 1 < last["test_perplexity"] < 3 and last["test_accuracy"] is None
    assert "perplexity (lower is better): mean" in gcfed("compare", "a").out
    assert gcfed("resume", "a/seed-0", "--rounds", "9").code == 0


def test_a_classifier_of_one_logit_predicts_both_classes(plugin, tmp_path):
    given = {**TASK, "dataset": "signs", "model": "one_logit", "loss": "bce", "lr": 0.5}
    given |= {"metrics": ("accuracy",), "probes": ("clients(every=1)",), "plugins": (plugin,)}
    summary = run(tiny(**given, algorithm="fedavg", rounds=6), tmp_path / "a")
    made, x = load_run(tmp_path / "a"), draw(80, 4, seed=3)
    assert summary["test_accuracy_last"] > 0.7
    assert ((x[:, 0] > 0) == made.predict(x)).double().mean() > 0.7
    assert made.probes[-1]["clients.class.1"] > 0.6


def test_seeds_are_trained_together_by_a_loss_with_arguments(tmp_path):
    from gcfed.runs.train import run_together

    loss = "cross_entropy(label_smoothing=0.1)"
    configs = [tiny(loss=loss, engine="vectorized", seed=seed) for seed in (0, 1)]
    paths = [tmp_path / str(seed) for seed in (0, 1)]
    run_together(configs, paths)
    assert [load_run(path).config.loss for path in paths] == [loss, loss]


def test_the_default_changes_no_identity(tmp_path):
    for name, changes in {
        "default": {},
        "named": {"loss": "cross_entropy(label_smoothing=0.0)"},
        "other": {"loss": "cross_entropy(label_smoothing=0.1)"},
    }.items():
        run(tiny(**changes, rounds=1), tmp_path / name)
    default, named, other = (
        json.loads((tmp_path / name / "provenance.json").read_text())
        for name in ("default", "named", "other")
    )
    assert "loss" not in default["identity"]
    assert named["identity"] == default["identity"]
    assert other["identity"]["loss"] == "cross_entropy(label_smoothing=0.1)"


class Learnt(nn.Module):
    """Cross-entropy at a temperature of its own."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, logits, y):
        return F.cross_entropy(self.scale * logits, y, reduction="none")


def test_a_loss_that_would_have_to_be_trained_is_refused():
    x, y = torch.randn(60, 4), torch.arange(60) % 3
    with pytest.raises(InputError, match=r"Learnt has a parameter of its own, scale, .*freeze it"):
        fit(nn.Linear(4, 3), (x, y), loss=Learnt(), algorithm="fedavg", **SETTINGS)
    fit(
        nn.Linear(4, 3), (x, y), loss=Learnt().requires_grad_(False), algorithm="fedavg", **SETTINGS
    )
