"""The short way: one's own module and data."""

import copy
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from safetensors.torch import save_model
from torch import nn

from gcfed import Algorithm, DivergedError, InputError, fit
from gcfed.algorithms import FedProx
from gcfed.data.datasets.user import dataset_from

pytest_plugins = ["running"]
pytestmark = pytest.mark.usefixtures("float32")

SETTINGS = {"clients": 6, "cohort": 3, "rounds": 3, "epochs": 2, "batch_size": 10, "lr": 0.1}


class Mine(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(12, 9), nn.Linear(9, 3)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x.flatten(1))))


@pytest.fixture
def module():
    torch.manual_seed(0)
    return Mine()


@pytest.fixture
def train():
    torch.manual_seed(1)
    y = torch.arange(150) % 3
    return torch.randn(150, 3, 4) + y[:, None, None], y


@pytest.fixture
def test():
    torch.manual_seed(2)
    y = torch.arange(30) % 3
    return torch.randn(30, 3, 4) + y[:, None, None], y


def test_fit_trains_a_copy_and_gives_a_history(module, train, test):
    before, told = copy.deepcopy(module.state_dict()), []
    history = fit(
        module, train, test, algorithm="gcfed", partition="iid", on_round=told.append, **SETTINGS
    )
    assert told == history.records
    assert len(history["test_accuracy"]) == 3
    assert history["test_accuracy"][-1] > 0.5
    torch.testing.assert_close(module.state_dict(), before)
    assert isinstance(history.module, Mine)
    with torch.no_grad():
        accuracy = (history.module(test[0]).argmax(1) == test[1]).double().mean().item()
    assert accuracy == history["test_accuracy"][-1]
    assert history.experiment.config.algorithm.startswith("gcfed(")


def test_the_head_is_the_modules_last_linear(module, train, test):
    """One step without decay or momentum: Local GC leaves the rows' means of all but the head."""
    settings = {**SETTINGS, "epochs": None, "steps": 3, "weight_decay": 0.0, "rounds": 1}
    settings = {key: value for key, value in settings.items() if value is not None}
    trained = fit(module, train, test, algorithm="localgc(lam=0.5)", **settings).module
    gaps = {
        name: (getattr(trained, name).weight - getattr(module, name).weight).mean(1).abs().max()
        for name in ("first", "last")
    }
    assert gaps["first"] < 1e-6 < 1e-4 < gaps["last"]


def test_a_history_can_be_plotted(module, train, test, tmp_path):
    history = fit(module, train, test, evaluate_every=2, **SETTINGS)
    assert len(history["test_accuracy"]) == 2  # the second round and the last
    axes = history.plot().axes[0]
    curve = axes.lines[0].get_xydata()
    assert curve[:, 0].tolist() == [2, 3]
    assert curve[:, 1].tolist() == pytest.approx([100 * a for a in history["test_accuracy"]])
    history.plot("train_loss").savefig(tmp_path / "loss.png")
    with pytest.raises(InputError, match="did you mean 'test_accuracy'"):
        history["test_acuracy"]


@dataclass(frozen=True)
class Still(Algorithm):
    """Not registered: nobody moves."""

    def update(self, delta, ctx):
        return {name: 0 * x for name, x in delta.items()}, ctx.state


def test_algorithms_by_object_and_by_text(module, train, test):
    by_text = fit(module, train, test, algorithm="fedprox(mu=0.5)", **SETTINGS)
    by_object = fit(module, train, test, algorithm=FedProx(mu=0.5), **SETTINGS)
    assert by_text.records == by_object.records
    still = fit(module, train, test, algorithm=Still(), **SETTINGS)
    assert still["update_norm"] == [0, 0, 0]
    assert still.experiment.config.algorithm == "Still"


def test_data_in_other_forms(module, train, test):
    arrays = (tuple(v.numpy() for v in pair) for pair in (train, test))
    as_arrays = fit(module, *arrays, **SETTINGS)
    as_dataset = fit(module, dataset_from(train, test), **SETTINGS)
    assert as_arrays.records == as_dataset.records == fit(module, train, test, **SETTINGS).records
    without_test = fit(module, train, **SETTINGS)
    assert len(without_test.experiment.dataset.test.y) == 30
    parts = [(train[0][k::6], train[1][k::6]) for k in range(6)]
    divided = fit(module, parts, test, cohort=2, rounds=1)
    assert divided.experiment.config.partition == "by(key='client')"
    assert divided.experiment.config.clients == 6
    assert divided.experiment.setup.data.parts.sizes.tolist() == [25] * 6


def test_numbers_are_divided_by_chance_and_columns_are_named():
    pandas = pytest.importorskip("pandas")
    x = torch.randn(40, 3)
    frame = pandas.DataFrame({"a": x[:, 0], "b": x[:, 1], "c": x[:, 2], "price": x.sum(1)})
    few = {"rounds": 1, "clients": 4, "cohort": 2, "progress": False, "batch_size": 8}
    history = fit(nn.Linear(3, 1), frame, columns=(None, "price"), **few)
    assert history.experiment.config.partition == "iid"
    assert fit(nn.Linear(3, 1), (x, x.sum(1)), **few).experiment.config.partition == "iid"
    with pytest.raises(InputError, match="by class"):
        fit(nn.Linear(3, 1), (x, x.sum(1)), alpha=0.5, **few)
    with pytest.raises(InputError, match="unknown number of a round: 'clients'"):
        history.plot("clients")


def test_a_test_set_beside_a_dataset_takes_the_place_of_its_own(module, train, test):
    dataset = dataset_from(train)
    other = (test[0][:7], test[1][:7])
    history = fit(module, dataset, other, **SETTINGS)
    with torch.no_grad():
        accuracy = (history.module(other[0]).argmax(1) == other[1]).double().mean().item()
    assert accuracy == history["test_accuracy"][-1]
    assert len(history.experiment.dataset.train.y) == len(dataset.train.y)
    with pytest.raises(InputError, match="test is examples and not a Dataset"):
        fit(module, dataset, dataset, **SETTINGS)
    with pytest.raises(InputError, match="examples are of different shapes"):
        fit(module, dataset, (torch.zeros(3, 2), torch.arange(3)), **SETTINGS)


def test_a_loss_and_metrics_of_ones_own(train):
    """Regression, which has no classes to be accurate about."""
    torch.manual_seed(0)
    x = torch.randn(120, 4)
    y = x @ torch.tensor([1.0, -2.0, 0.5, 3.0])

    def squares(out, y):
        return (out[:, 0] - y).square()

    def error(out, y):
        return (out[:, 0] - y).abs()

    given = {**SETTINGS, "rounds": 10, "partition": "iid"}
    history = fit(
        nn.Linear(4, 1),
        (x, y),
        (x[:20], y[:20]),
        algorithm="fedavg",
        loss=squares,
        metrics={"error": error},
        **given,
    )
    assert history["test_error"][-1] < 0.1 < history["test_error"][0]
    assert history["test_accuracy"] == []


def squares(out, y):
    return (out[:, 0] - y).square()


def test_where_gc_does_not_suit_it_is_said_and_fedavg_is_the_default(capsys):
    """Linear regression: GC keeps the sum of the weights, which must go from about 0 to 10."""
    torch.manual_seed(0)
    x = torch.randn(120, 4)
    data = (x, x @ torch.tensor([1.0, 2.0, 3.0, 4.0]))
    given = {**SETTINGS, "rounds": 10, "partition": "iid", "loss": squares}
    linear = nn.Linear(4, 1)
    by_default = fit(linear, data, data, **given)
    assert by_default["test_loss"][-1] < 0.01
    assert "\nfedavg: the model trains nothing before its head" in capsys.readouterr().err
    suits_not = "GCFed does not suit this model.*row of weight stays"
    with pytest.warns(UserWarning, match=suits_not) as warned:
        centralized = fit(linear, data, data, algorithm="gcfed", **given)
    assert len(warned) == 1
    assert centralized["test_loss"][-1] > 10
    fit(nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1)), data, data, **given)
    assert "\nfedavg: the labels are no classes" in capsys.readouterr().err


class ReadsNumbers(nn.Linear):
    def forward(self, x):
        return super().forward(x if x.sum().item() < 1e9 else 0 * x)


def test_a_check_warns_once_where_another_engine_takes_over():
    data = torch.randn(120, 4), torch.arange(120) % 3
    given = {**SETTINGS, "algorithm": "gcfed", "partition": "iid", "engine": "vectorized"}
    with pytest.warns(UserWarning) as warned:
        fit(ReadsNumbers(4, 3), data, data, **given)
    assert [str(w.message).partition(" this model")[0] for w in warned] == [
        "GCFed does not suit",
        "the vectorized engine cannot train",
    ]


@pytest.mark.parametrize(
    ("loss", "metric"),
    [("mse", "r2"), (nn.L1Loss(), "loss"), (nn.functional.l1_loss, "loss")],
    ids=["named", "module", "function"],
)
def test_whole_numbers_are_no_classes_to_a_loss_of_numbers(loss, metric, capsys):
    layers = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1), nn.Flatten(0))
    ages = torch.randn(60, 4), torch.arange(60) % 9
    history = fit(layers, ages, loss=loss, partition="iid", **SETTINGS)
    assert history.experiment.config.algorithm == "fedavg"
    assert history.experiment.metric.name == metric
    assert "\nfedavg: the loss is of numbers, and GC-Fed is" in capsys.readouterr().err


def test_the_default_is_gcfed_where_it_suits(module, train, test, capsys):
    history = fit(module, train, test, **SETTINGS)
    assert history.experiment.config.algorithm.startswith("gcfed(")
    assert "\ngcfed: the model has layers before its head" in capsys.readouterr().err
    asked = fit(module, train, test, algorithm="gcfed", **SETTINGS)
    assert asked.records == history.records
    assert "layers before its head" not in capsys.readouterr().err


def test_given_weights_leave_the_module_alone(module, train, test, tmp_path):
    torch.manual_seed(5)
    other = Mine()
    save_model(other, str(tmp_path / "w.safetensors"))
    before = copy.deepcopy(module.state_dict())
    started = fit(module, train, test, init=str(tmp_path / "w.safetensors"), **SETTINGS)
    assert started.records == fit(other, train, test, **SETTINGS).records
    torch.testing.assert_close(module.state_dict(), before)


def test_what_is_refused(module, train, test):
    with pytest.raises(InputError, match="fit: unknown key: 'round'; did you mean 'rounds'"):
        fit(module, train, test, round=3)
    with pytest.raises(InputError, match="cohort=7 is more than clients=6"):
        fit(module, train, test, **{**SETTINGS, "cohort": 7})
    bad = train[0].clone()
    bad[4] = np.nan
    with pytest.raises(InputError, match="train example 4 holds a number that is not finite"):
        fit(module, (bad, train[1]), test, **SETTINGS)
    with pytest.raises(DivergedError, match="not finite; a smaller lr or server_lr") as error:
        fit(module, train, test, **{**SETTINGS, "lr": 1e38})
    assert error.value.round == 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"algorithm": 3}, "algorithm is a text or an Algorithm; not 3"),
        ({"dataset": "cifar10"}, "fit takes no dataset"),
        ({"track": ["tensorboard"]}, "fit takes no track"),
        ({"module": "mlp"}, "fit trains an nn.Module; not 'mlp'"),
    ],
)
def test_what_would_be_ignored_is_refused(changes, words, module, train):
    with pytest.raises(InputError, match=words):
        fit(changes.pop("module", module), train, **changes)


def test_a_history_says_what_it_is_in_a_line(module, train, test):
    history = fit(module, train, test, rounds=1, cohort=2, clients=4, engine="sequential")
    assert repr(history).startswith("History of 1 rounds of gcfed, test_accuracy=")
