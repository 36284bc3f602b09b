"""Metrics with a direction: what a run is judged by, chosen by, compared by, and shown by."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from made_runs import LOSS, make_run, make_runs
from running import TINY, flags, lines, tiny
from torch import nn

from gcfed import (
    DATASETS,
    METRICS,
    BatchMetric,
    InputError,
    compare,
    fit,
    load_run,
    resume,
    run,
    sweep,
)
from gcfed.core.losses import named_loss
from gcfed.core.metrics import Scale, as_metrics, named
from gcfed.results.directory import saved_best

pytest_plugins = ["running"]
pytestmark = pytest.mark.usefixtures("float32", "registries")

OLD = Path(__file__).parent / "old_runs"
SETTINGS = {"clients": 6, "cohort": 3, "partition": "iid", "rounds": 4, "engine": "sequential"}
SETTINGS |= {"batch_size": 20}
PLUGIN = """
import gcfed


@gcfed.METRICS.register("doubt")
def doubt():
    '''How much the largest probability lacks to one.'''
    return gcfed.Metric(lambda logits, y: 1 - logits.softmax(1).amax(1), better="lower")
"""
KAPPA = """
import torchmetrics

import gcfed


@gcfed.METRICS.register("kappa")
def kappa():
    '''Cohen's kappa.'''
    return torchmetrics.CohenKappa(task="multiclass", num_classes=10)
"""


def squares(outputs, y):
    return (outputs[:, 0] - y).square()


@pytest.fixture
def numbers(numbers_file, tmp_path):
    return DATASETS.parse(numbers_file)(tmp_path)


def value(metric, logits, y, loss=squares):
    return metric.result(torch.stack([c.mean() for c in metric.columns(logits, y, loss)]))


# what a metric is


def test_r2_is_the_share_of_variance_that_is_explained():
    y = torch.tensor([[1.0, 10.0], [2.0, 30.0], [3.0, 50.0], [6.0, 10.0]])
    outputs = y + torch.tensor([[0.5, -1.0], [0.0, 2.0], [-0.5, 0.0], [1.0, 3.0]])
    error, spread = (outputs - y).square().sum(0), (y - y.mean(0)).square().sum(0)
    assert value(named("r2"), outputs, y) == pytest.approx((1 - error / spread).mean().item())
    assert value(named("r2"), y[:, :1], y[:, 0]) == pytest.approx(1)
    assert value(named("r2"), y.mean(0).expand(4, 2), y) == pytest.approx(0)


def test_perplexity_is_the_exponential_of_the_mean_loss():
    """Of tokens: a row of losses for each example, which counts by its mean."""
    losses = torch.tensor([[1.0, 3.0], [0.0, 0.0]])
    found = value(named("perplexity"), losses, torch.zeros(2), lambda logits, y: logits)
    assert found == pytest.approx(np.exp(1))


def test_among_the_five_largest_logits():
    logits = torch.arange(6.0).expand(4, 6)  # class 0 is last
    y = torch.tensor([0, 1, 5, 0])
    assert value(named("top5"), logits, y) == 0.5
    assert value(named("top5"), logits[:, :3], y % 3) == 1  # of fewer classes, among all


@pytest.mark.parametrize("shape", [(5,), (5, 1)], ids=str)
@pytest.mark.parametrize("dtype", [torch.int64, torch.float32], ids=str)
def test_one_logit_tells_label_1_from_label_0(shape, dtype):
    logits = torch.tensor([[2.0], [-1.0], [0.5], [-3.0], [0.0]])
    y = torch.tensor([1, 0, 0, 1, 0], dtype=dtype).reshape(shape)
    assert value(named("accuracy"), logits, y) == pytest.approx(3 / 5)
    assert value(named("accuracy"), logits[:, 0], y) == pytest.approx(3 / 5)
    assert value(named("top5"), logits, y) == 1
    assert value(named("macro_f1"), logits, y) == pytest.approx(2 / (2 + 1 + 1))


@pytest.mark.parametrize("shape", [(2, 1, 3), (2, 1, 1, 3)], ids=str)
def test_one_logit_of_each_pixel(shape):
    logits = torch.tensor([[2.0, -1.0, 0.5], [-3.0, 1.0, 1.0]]).reshape(2, 1, 1, 3)
    y = torch.tensor([[1, 0, 0], [1, 1, 1]]).reshape(shape)
    assert value(named("accuracy"), logits, y) == pytest.approx(4 / 6)


HALVES = (torch.linspace(-1, 1, 120)[:, None], (torch.arange(120) >= 60).long())


def one_output(*after):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(1, 4), nn.ReLU(), nn.Linear(4, 1), *after)


@pytest.mark.parametrize("metric", ["accuracy", "macro_f1"])
@pytest.mark.parametrize("loss", [nn.BCELoss(), nn.functional.binary_cross_entropy])
def test_probabilities_are_not_taken_for_logits(metric, loss):
    x, y = HALVES
    with pytest.raises(InputError, match=f"metric {metric} reads logits, and the loss reads prob"):
        fit(
            one_output(nn.Sigmoid()),
            (x, y[:, None].float()),
            loss=loss,
            metrics=[metric],
            **SETTINGS,
        )


@pytest.mark.parametrize("labels", [HALVES[1], torch.arange(120) % 5])
def test_one_number_under_a_loss_of_ones_own_is_judged_by_the_loss(labels):
    def distance(outputs, y):
        return (outputs[:, 0] - y).abs()

    found = fit(one_output(), (HALVES[0], labels), loss=distance, **SETTINGS)
    assert found.experiment.metric.name == "loss"


def test_the_accuracy_of_one_logit_that_learns():
    found = fit(one_output(), HALVES, loss="bce", metrics=["accuracy"], lr=0.5, **SETTINGS)
    assert found["test_accuracy"][-1] > 0.9


def test_macro_f1_is_the_mean_over_classes():
    """Class 3 neither occurs nor is predicted, and class 2 is never right."""
    predicted, y = torch.tensor([0, 0, 1, 2, 1]), torch.tensor([0, 1, 1, 1, 2])
    logits = nn.functional.one_hot(predicted, 4).float()
    f1 = [2 * 1 / (2 * 1 + 1 + 0), 2 * 1 / (2 * 1 + 1 + 2), 0]
    assert value(named("macro_f1"), logits, y) == pytest.approx(np.mean(f1))
    labels = torch.tensor([[1, 0], [1, 1], [0, 0]])
    outputs = torch.tensor([[2.0, -1.0], [-1.0, 3.0], [1.0, -2.0]])
    assert value(named("macro_f1"), outputs, labels) == pytest.approx((0.5 + 1) / 2)


def test_macro_f1_leaves_out_labels_of_minus_100():
    logits, labels = torch.tensor([[3.0, -3.0], [3.0, 3.0]]), torch.tensor([[1, 0], [-100, 1]])
    f1 = named("macro_f1")
    columns = f1.columns(logits, labels, None)
    assert f1.result(torch.stack([column.mean() for column in columns])) == 1.0


def test_macro_f1_of_tokens_is_by_class():
    labels = torch.tensor([[0, 1, 1], [1, -100, 0]])
    said = torch.tensor([[0, 1, 0], [1, 1, 1]])
    logits = torch.nn.functional.one_hot(said, 2).mT.double()
    f1 = named("macro_f1")
    columns = f1.columns(logits, labels, None)
    # class 0: 1 right, 1 wrong, 1 missed; class 1: 2 right, 1 wrong, 1 missed
    expected = (2 / (2 + 1 + 1) + 4 / (4 + 1 + 1)) / 2
    found = f1.result(torch.stack([column.double().mean() for column in columns]))
    assert found == pytest.approx(expected)


def test_mae_is_the_mean_absolute_error():
    y = torch.tensor([1.0, 2.0, 4.0])
    assert value(named("mae"), y[:, None] + torch.tensor([[1.0], [-2.0], [0.0]]), y) == 1
    assert named("mae").scale("mae") == Scale("mae", "lower")


def test_tokens_with_the_label_minus_100_are_not_judged():
    """Neither is an example that has no other: it does not enter the mean."""
    y = torch.tensor([[1, 0, -100], [-100, -100, -100], [0, -100, -100]])
    logits = nn.functional.one_hot(torch.tensor([[1, 1, 1], [0, 0, 0], [0, 1, 0]])).mT.double()
    cross_entropy = nn.CrossEntropyLoss(reduction="none")
    right, wrong = np.log(1 + np.exp(-1)), np.log(1 + np.exp(1))
    assert value(named("accuracy"), logits, y) == (1 / 2 + 1) / 2
    loss = value(named("loss"), logits, y, cross_entropy)
    assert loss == pytest.approx(((right + wrong) / 2 + right) / 2)
    assert value(named("perplexity"), logits, y, cross_entropy) == pytest.approx(np.exp(loss))
    assert np.isnan(value(named("accuracy"), logits[1:2], y[1:2]))


def test_where_the_classes_are_the_loss_says():
    """There are as many places as classes, so that shapes cannot tell the two apart."""
    y = torch.tensor([[1, 0, -100], [-100, -100, -100], [0, -100, 2]])
    predicted = torch.tensor([[1, 1, 1], [0, 0, 0], [0, 1, 2]])
    logits = nn.functional.one_hot(predicted, 3).double()
    at_place, next_one = named_loss("token"), named_loss("next_token")
    assert value(named("accuracy"), logits, y, at_place) == (1 / 2 + 1) / 2
    assert value(named("accuracy"), logits.mT, y) == (1 / 2 + 1) / 2
    f1 = [2 / (2 + 0 + 1), 2 / (2 + 1 + 0), 1]  # class 0 is missed once, for class 1
    assert value(named("macro_f1"), logits, y, at_place) == pytest.approx(np.mean(f1))
    assert value(named("macro_f1"), logits.mT, y) == pytest.approx(np.mean(f1))
    tokens = torch.tensor([[2, 1, 1], [1, 0, 1], [0, 0, -100]])
    assert value(named("accuracy"), logits, tokens, next_one) == (1 + 1 / 2 + 1) / 3


def test_of_a_plain_function_higher_is_better():
    found = as_metrics({"mine": squares, "loss": named("loss")})
    assert [found[name].better for name in found] == ["higher", "lower"]
    assert found["mine"].scale("mine") == Scale("mine", "higher", percent=False)


def test_the_loss_is_not_replaced_by_a_metric_of_its_name():
    with pytest.raises(InputError, match="called loss is the mean of what clients minimise: give"):
        as_metrics({"loss": squares})


def test_what_makes_no_metric_is_refused():
    METRICS.register("plain")(squares)
    METRICS.register("number")(lambda: 3)
    with pytest.raises(InputError, match=r"metric plain cannot be made: .*missing 2 required"):
        named("plain")
    with pytest.raises(InputError, match="metric number gave a int, where a Metric belongs"):
        named("number")


def test_values_as_tables_show_them():
    accuracy, loss = named("accuracy").scale("accuracy"), named("loss").scale("loss")
    assert (accuracy.text(0.7396), accuracy.text(0.02, "+")) == ("73.96", "+2.00")
    assert (loss.text(0.00012346), loss.text(-1.5, "+")) == ("0.000123", "-1.5000")
    assert (accuracy.quantity(0.5), loss.quantity(0.5), accuracy.quantity(None)) == (
        *("50.00 %", "0.5000", "-"),
    )
    assert (str(accuracy), str(loss)) == ("accuracy", "loss (lower is better)")


# runs


def test_a_regression_is_judged_by_r2(numbers):
    named_r2 = fit(nn.Linear(4, 1), numbers, loss=squares, metrics=["r2", "loss"], **SETTINGS)
    x, y = numbers.test
    outputs = named_r2.module(x)[:, 0].detach().double()
    error, spread = (outputs - y).square().sum(), (y.double() - y.double().mean()).square().sum()
    assert named_r2["test_r2"][-1] == pytest.approx((1 - error / spread).item(), rel=1e-4)
    assert repr(named_r2).endswith(f"test_r2={named_r2['test_r2'][-1]}")
    assert named_r2.plot().axes[0].get_ylabel() == "test r2"
    metrics = {"r2": METRICS["r2"]()}
    given = fit(nn.Linear(4, 1), numbers, loss=squares, metrics=metrics, **SETTINGS)
    assert given.experiment.metric == Scale("r2")
    assert list(given.records[0]) == list(named_r2.records[0])


@pytest.mark.parametrize("width", [1, 2])
def test_r2_of_labels_that_are_all_the_same_has_no_value(width):
    x, y = torch.randn(60, 4), torch.randn(60, width)
    same = torch.cat([torch.full((60, 1), 3.0), y[:, 1:]], 1)  # one output of two is enough
    with pytest.warns(UserWarning, match="labels of an output are all the same, so that R2 has no"):
        history = fit(nn.Linear(4, width), (x, y), (x, same), **SETTINGS)
    assert history["test_r2"] == []


def test_without_classes_the_loss_is_what_counts(numbers):
    history = fit(nn.Linear(4, 1), numbers, loss=squares, **SETTINGS)
    assert history.experiment.metric == LOSS
    assert history.plot().axes[0].get_ylabel() == "test loss"
    assert "test_loss=" in repr(history)


def test_the_best_round_has_the_smallest_loss(tmp_path):
    """On classes, with a learning rate at which the loss goes up and down."""
    config = tiny(metrics=("loss",), rounds=8, lr=1.0, checkpoint_every=3)
    summary = run(config, tmp_path / "a")
    found = lines(tmp_path / "a")
    best = min(found, key=lambda line: line["test_loss"])
    assert 0 < best["round"] < 7
    assert (summary["metric"], summary["chosen_on"]) == ("loss", "test")
    assert summary["best_round"] == best["round"]
    assert summary["test_loss_best"] == best["test_loss"]
    assert summary["test_loss_last"] == found[-1]["test_loss"]
    assert summary["test_loss"] == pytest.approx(np.mean([line["test_loss"] for line in found]))
    assert "test_accuracy" not in summary
    kept = saved_best(tmp_path / "a" / "checkpoints").path
    assert kept.stem.split("-")[1] == f"{best['round'] + 1:08}"
    resume(tmp_path / "a", rounds=9)
    assert saved_best(tmp_path / "a" / "checkpoints").path.name == kept.name


def test_the_best_round_is_chosen_on_validation_examples_where_there_are_some(tmp_path):
    summary = run(tiny(metrics="loss", validation=0.2, rounds=6, lr=1.0), tmp_path / "a")
    best = min(lines(tmp_path / "a"), key=lambda line: line["validation_loss"])
    assert summary["chosen_on"] == "validation"
    assert summary["best_round"] == best["round"]
    assert summary["test_loss_best"] == best["test_loss"]
    assert "best: chosen on validation examples" in str(compare(tmp_path))


def test_the_default_changes_no_identity(tmp_path):
    """So runs of before are found; other metrics make another run, for its lines are others."""
    run(tiny(), tmp_path / "default")
    run(tiny(metrics=("loss",)), tmp_path / "other")
    default, other = (load_run(tmp_path / name).provenance for name in ("default", "other"))
    assert "metrics" not in default["identity"]
    assert other["identity"]["metrics"] == ["loss"]
    assert [metric["name"] for metric in default["metrics"]] == ["accuracy", "loss"]


def test_metrics_are_written_as_lists_or_as_text():
    assert tiny(metrics=["loss", "accuracy"]).metrics == ("loss", "accuracy")
    assert tiny(metrics="loss, top(k=1, of=2) , r2").metrics == ("loss", "top(k=1, of=2)", "r2")


def test_runs_of_before_are_read_by_their_accuracy_or_their_loss(tmp_path):
    for path in OLD.glob("fedavg*seed-0*"):
        shutil.copytree(path, tmp_path / "old")
    old = load_run(tmp_path / "old")
    assert "metric" not in old.summary
    assert list(old.metrics) == ["accuracy", "loss"]
    assert compare(tmp_path).results[0].outcomes[0].final == old.summary["test_accuracy"]
    summary = old.summary | {"test_accuracy": None}
    (tmp_path / "old" / "summary.json").write_text(json.dumps(summary))
    assert load_run(tmp_path / "old").metric == LOSS
    last = [line["test_loss"] for line in old.records][-10:]
    (row,) = compare(tmp_path).rows()
    assert row["final_mean"] == pytest.approx(np.mean(last))
    assert row["best_mean"] == min(last)


# torchmetrics


def told(metric, outputs, y, parts):
    """The value of a metric that is told of these parts of the examples, one by one."""
    judgement = metric.begin(y.device)
    for part in torch.arange(len(y)).split(parts):
        judgement.add(outputs[part], y[part])
    return judgement.result()


class Largest:
    """The largest error so far, a metric as torchmetrics has them."""

    higher_is_better = False

    def __init__(self):
        self.found = []

    def update(self, outputs, y):
        self.found.append((outputs - y).abs().max())

    def compute(self):
        return torch.stack(self.found).max()

    def reset(self):
        self.found = []

    def to(self, device):
        return self


def test_a_metric_that_is_told_of_every_batch(numbers):
    """Each evaluation has a copy of its own, and outputs have the shape of labels."""
    given = Largest()
    history = fit(nn.Linear(4, 1), numbers, metrics={"largest": given}, **SETTINGS)
    x, y = numbers.test
    expected = (history.module(x)[:, 0] - y).abs().max().item()
    assert history["test_largest"][-1] == pytest.approx(expected)
    assert told(BatchMetric(given), y[:, None] + y[:, None].sign(), y, 7) == pytest.approx(1)
    assert history.experiment.metric == Scale("largest", "lower")
    assert given.found == []


@pytest.mark.slow
def test_a_metric_of_torchmetrics_is_told_of_every_batch():
    torchmetrics = pytest.importorskip("torchmetrics")
    draws = torch.Generator().manual_seed(0)
    logits, y = torch.randn(40, 3, generator=draws), torch.randint(3, (40,), generator=draws)
    f1 = torchmetrics.F1Score(task="multiclass", num_classes=3, average="macro")
    error = torchmetrics.MeanSquaredError()
    found = as_metrics({"f1": f1, "error": error})
    expected = pytest.approx(value(named("macro_f1"), logits, y), rel=1e-6)
    assert [told(found["f1"], logits, y, parts) for parts in (40, 7)] == [expected] * 2
    assert [metric.scale(name).better for name, metric in found.items()] == ["higher", "lower"]
    assert BatchMetric(f1, better="lower", percent=True).scale("f1") == Scale("f1", "lower", True)
    # outputs of shape [n, 1] are for labels of shape [n]
    assert told(found["error"], logits[:, :1], logits[:, 1], 9) == pytest.approx(
        (logits[:, 0] - logits[:, 1]).square().mean().item()
    )
    assert f1.update_count == 0  # the one that was given is never told of anything


@pytest.mark.slow
def test_fit_is_judged_by_torchmetrics():
    torchmetrics = pytest.importorskip("torchmetrics")
    x, y = torch.randn(90, 4, generator=torch.Generator().manual_seed(0)), torch.arange(90) % 3
    kappa = torchmetrics.CohenKappa(task="multiclass", num_classes=3)
    matrix = torchmetrics.ConfusionMatrix(task="multiclass", num_classes=3)
    history = fit(nn.Linear(4, 3), (x, y), metrics={"kappa": kappa}, **SETTINGS)
    test = history.experiment.tests["test"]
    assert history["test_kappa"][-1] == pytest.approx(kappa(history.module(test.x), test.y).item())
    assert history.experiment.metric == Scale("kappa")
    with pytest.raises(InputError, match=r"metric matrix cannot judge .*shape \[3, 3\], where one"):
        fit(nn.Linear(4, 3), (x, y), metrics={"matrix": matrix}, **SETTINGS)


@pytest.mark.slow
def test_a_metric_of_torchmetrics_in_a_plugin(gcfed, tmp_path):
    pytest.importorskip("torchmetrics")
    (tmp_path / "mine.py").write_text(KAPPA)
    words = flags(metrics='["kappa", "top5", "macro_f1"]', checkpoint_every=1)
    assert gcfed("run", *words, "--plugin", "mine.py", "--out", "a").code == 0
    assert gcfed("resume", "a", "--rounds", "3").code == 0
    found = lines(tmp_path / "a")
    assert all(-1 <= line["test_kappa"] <= 1 for line in found)
    assert list(found[0])[1:6] == [
        *("test_accuracy", "test_loss", "test_kappa", "test_top5", "test_macro_f1")
    ]
    assert load_run(tmp_path / "a").metric == Scale("kappa")
    assert "kappa: mean" in gcfed("compare", "a").out


# comparisons


@pytest.fixture
def losses(tmp_path):
    make_runs(tmp_path / "a", [1.0, 1.2], algorithm="fedavg", metric=LOSS)
    make_runs(tmp_path / "b", [0.5, 0.9], algorithm="gcfed", metric=LOSS)
    return tmp_path


def test_the_smallest_loss_ranks_first(losses):
    found = compare(losses, baseline="fedavg")
    table = found.table()
    assert table.columns[2:4] == ("final", "best")
    base, other = table.blocks[0].rows
    assert (base[2].value, base[2].mark) == ("1.1000", "second")
    assert (other[2].value, other[2].rest, other[2].mark) == ("0.7000", " (0.2828)", "best")
    assert other[4].value.startswith("-0.4000 [")
    assert "loss (lower is better): mean" in str(found)
    assert "in points" not in str(found)
    assert found.plot().axes[0].get_ylabel() == "test loss"
    assert json.loads(found.render("json"))["better"] == "lower"


def test_rounds_to_a_loss(tmp_path):
    make_run(tmp_path / "a", [4.0, 2.0, 0.0], metric=LOSS)
    (outcome,) = compare(tmp_path, target=3.0).results[0].outcomes
    assert outcome.rounds_to_target == 2
    assert compare(tmp_path, target=3).table().columns[4] == "rounds to 3"
    with pytest.raises(InputError, match="a value of loss to reach; not nan"):
        compare(tmp_path, target=float("nan"))


def test_runs_judged_by_different_metrics(losses, gcfed):
    make_run(losses / "c", [0.5], algorithm="fedprox")
    answer = gcfed("compare", losses)
    assert answer.code == 2
    assert "c by accuracy" in answer.err and "name the metric" in answer.err
    assert [r.spread("final").mean for r in compare(losses, metric="loss").results] == [
        *(pytest.approx(1.1), pytest.approx(0.7), 1.0)
    ]
    shown = gcfed("compare", losses, "--metric", "loss")
    assert shown.out == compare(losses, metric="loss").render()
    with pytest.raises(InputError, match=r"unknown metric of .*a/seed-0: 'accuracy'"):
        compare(losses, metric="accuracy")


def test_diverged_runs_have_the_level_of_chance_in_accuracy_alone(tmp_path):
    ended = {"reason": "not finite", "diverged": True}
    make_run(tmp_path / "a", [0.9], metric=LOSS, status="failed", ended=ended)
    (row,) = compare(tmp_path).table().blocks[0].rows
    assert row[2].value == "failed"


# the command line


def test_a_metric_of_a_plugin(gcfed, tmp_path):
    (tmp_path / "mine.py").write_text(PLUGIN)
    words = flags(metrics='["doubt", "accuracy"]', rounds=3)
    answer = gcfed("run", *words, "--plugin", "mine.py", "--seeds", "0,1", "--out", "a")
    assert answer.code == 0, answer.err
    assert "fedavg: round 3 of 3  doubt 0." in answer.err
    assert "doubt (lower is better): mean" in answer.out
    found = lines(tmp_path / "a" / "seed-0")
    assert list(found[0])[1:5] == ["test_accuracy", "test_loss", "test_doubt", "tested"]
    assert found[0]["test_accuracy"] is not None
    summary = json.loads((tmp_path / "a" / "summary.json").read_text())
    assert summary["metric"] == "doubt"
    first = summary["runs"][0]
    assert first["test_doubt_best"] == min(line["test_doubt"] for line in found)
    METRICS._entries.pop("doubt")  # a run says itself how its metric is read
    assert f" {summary['test_doubt_mean']:.4f} (" in gcfed("compare", "a").out
    assert compare(tmp_path / "a").metric == Scale("doubt", "lower")
    assert f"final doubt      {first['test_doubt']:.4f}" in gcfed("show", "a/seed-0").out


def test_seeds_are_shown_by_their_metric(gcfed, tmp_path):
    answer = gcfed(
        "run", *flags(metrics="loss", rounds=1), "--seeds", "0,1", "--out", "a", "--json"
    )
    summary = json.loads(answer.out)
    found = [run["test_loss"] for run in summary["runs"]]
    assert summary["test_loss_mean"] == pytest.approx(np.mean(found))
    rows = gcfed("show", "a").out.splitlines()
    assert rows[1].split()[-4:] == ["loss", *[f"{found[0]:.4f}"] * 2, "seed-0"]
    assert rows[-1].endswith("best: chosen on the test set")


def test_tuning_selects_the_smallest_loss(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    grid = {**TINY, "metrics": ["loss"], "validation": 0.2, "tune": {"lr": [1e-9, 0.1]}}
    made = sweep(grid, devices="cpu")
    (selection,) = made.selected
    assert selection.scores[1] < selection.scores[0]
    assert selection.best.cell.candidate == {"lr": 0.1}
    assert selection.to_json()["validation_loss"] == selection.score == selection.scores[1]
    assert made.compare().metric == LOSS
    assert {state.score for state in made.cells} == {
        run.records[-1]["validation_loss"] for state in made.cells for run in state.runs
    }
