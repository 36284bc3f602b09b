"""What algorithms cost: bytes and passes, against counts by hand."""

import csv
import io
import json
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.func import grad

import gcfed as library
from gcfed import Algorithm, InputError, costs, register, tree
from gcfed.analysis.costs import AlgorithmCost
from gcfed.core.algorithm import ALGORITHMS

pytest_plugins = ["running"]
pytestmark = pytest.mark.usefixtures("float32", "registries")

SMALL = {"model": "mlp(hidden=(8,))", "shape": (4,), "num_classes": 3}
W = 4 * (4 * 8 + 8 + 8 * 3 + 3)  # bytes of that model


def one(algorithm, **changes):
    (found,) = costs(algorithm, **{**SMALL, **changes}).costs.values()
    return found


def by_hand(*, sent=0, received=0, client=0, server=0, row=0, forward=1, gradient=1):
    """Costs of the small model; what is beside the model is counted in models."""
    sizes = (1, 1 + received, 1 + sent, client, server, row)
    return AlgorithmCost(*(W * size for size in sizes), forward, gradient)


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        ("fedavg", by_hand()),
        ("gcfed", by_hand()),
        ("fedprox", by_hand()),
        ("fedavgm", by_hand(server=1)),
        ("fedadam", by_hand(server=2)),
        ("scaffold", by_hand(sent=1, received=1, client=1, server=1)),
        ("feddyn", by_hand(client=1, server=1)),
        ("fedvarp", by_hand(server=1, row=1)),
        ("fedntd", by_hand(forward=2)),
        ("moon", by_hand(client=1, forward=3)),
        ("fedsam", by_hand(forward=2, gradient=2)),
        ("fedsol", by_hand(forward=3, gradient=2)),
        ("scaffold + gcfed", by_hand(sent=1, received=1, client=1, server=1)),
        ("fedsam + fedntd", by_hand(forward=4, gradient=2)),  # it distils at both points
        ("moon + fedvarp", by_hand(client=1, server=1, row=1, forward=3)),
    ],
)
def test_costs_by_hand(algorithm, expected):
    assert one(algorithm) == expected


def test_every_algorithm_is_counted_if_none_is_named():
    found = costs(**SMALL)
    assert list(found.costs) == list(ALGORITHMS)
    assert not found.notes


def test_what_many_clients_keep():
    found = costs(["fedvarp", "feddyn", "gcfed"], clients=1000, cohort=5, **SMALL)
    kept = {row["algorithm"]: row["kept"] for row in found.rows()}
    assert kept == {"fedvarp": 1001 * W, "feddyn": 1001 * W, "gcfed": 0}
    assert [row["round"] for row in found.rows()] == [5 * 2 * W] * 3


def test_why_three_methods_do_not_fit_with_vgg11():
    """The paper leaves out SCAFFOLD, FedDyn and FedVARP: a model for each of its clients."""
    found = costs(["scaffold", "feddyn", "fedvarp", "gcfed"], model="vgg11", clients=1000)
    model = found.costs["gcfed"].model
    assert model == 4 * 129_176_036  # torchvision's 132,863,336 less 900 rows of the last layer
    kept = {name: each.kept(1000) / model for name, each in found.costs.items()}
    assert kept == {"scaffold": 1001, "feddyn": 1001, "fedvarp": 1001, "gcfed": 0}


def test_buffers_travel_with_the_model():
    net = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(4), nn.Linear(4, 3))
    found = one("fedavg", model=net)
    weights, statistics = 4 + 4 + 12 + 3, 4 + 4
    assert found.down == found.up == found.model == 4 * weights + 4 * statistics + 8
    assert one("scaffold", model=net).up == found.up + 4 * weights


def test_the_bytes_are_those_of_a_round(make_setup, net):
    """A round of four clients, against what is counted without one."""
    for text in ("fedavg", "scaffold", "fedprox + scaffold"):
        result = next(library.simulate(make_setup(library.parse(text))))
        found = one(text, model=net, shape=(1, 4, 4), num_classes=5)
        assert (result.bytes_down, result.bytes_up) == (4 * found.down, 4 * found.up)


def test_a_chain_of_ones_own_that_needs_values():
    """A hook that reads a value cannot go by shapes: it takes its step on the host."""

    @register("peeking")
    @dataclass(frozen=True)
    class Peeking(Algorithm):
        def perturb(self, params, loss, batch, ctx):
            if torch.ones(2).sum().item() != 2:
                raise AssertionError
            first = grad(loss)(params)
            return tree.add(params, grad(loss)(tree.add(params, first)))

    assert one("peeking + fedvarp") == by_hand(server=1, row=1, forward=3, gradient=3)
    assert one(Peeking()) == by_hand(forward=3, gradient=3)


def test_tokens_and_data_sets():
    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.head = nn.Embedding(20, 6), nn.Linear(6, 2)

        def forward(self, x):
            return self.head(self.words(x).mean(1))

    data = library.data.datasets.user.dataset_from(
        (torch.randint(20, (10, 5)), torch.arange(10) % 2)
    )
    found = one("moon", model=Words(), dataset=data, shape=None, num_classes=None)
    assert found.client == 4 * (20 * 6 + 6 * 2 + 2)
    named = costs("fedavg", model="mlp(hidden=(8,))", dataset="synthetic(train=200, test=50)")
    assert named.costs["fedavg"].model == 4 * (64 * 8 + 8 + 8 * 10 + 10)


def test_a_method_that_the_model_does_not_suit_is_left_out():
    net = nn.Sequential(nn.Flatten(), nn.Conv1d(1, 3, 4), nn.Flatten())  # no nn.Linear: no features

    class Unread(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv1d(1, 3, 4)

        def forward(self, x):
            return self.conv(x[:, None]).flatten(1)

    found = costs(["fedavg", "moon"], **{**SMALL, "model": Unread()})
    assert list(found.costs) == ["fedavg"]
    assert "moon is left out" in found.notes[0] and "features" in found.notes[0]
    with pytest.raises(InputError, match="this algorithm reads features"):
        costs("moon", **{**SMALL, "model": Unread()})
    with pytest.raises(InputError, match="no step can be taken on an example of shape"):
        costs("fedavg", **{**SMALL, "model": net, "shape": (9,)})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"clients": 0}, "clients is at least 1; not 0"),
        ({"cohort": 2000}, "a cohort of 2000 cannot be drawn from 1000 clients"),
        ({"shape": ()}, "examples have a shape such as"),
        ({"num_classes": 0}, "at least 1 class"),
        ({"shape": "3x3"}, "shape is"),
        ({"dataset": "fashion10k"}, "a data set has a shape and classes of its own"),
        ({"model": "vgg12"}, "^unknown model: 'vgg12'; did you mean 'vgg11'"),
    ],
)
def test_what_cannot_be_counted_is_refused(changes, said):
    with pytest.raises(InputError, match=said):
        costs("fedavg", **{**SMALL, **changes})


@pytest.mark.parametrize("wrong", ["fedavgg", 5, [5]])
def test_what_is_no_algorithm_is_refused(wrong):
    with pytest.raises(InputError, match="algorithm"):
        costs(wrong, **SMALL)


# the command


def test_the_command_prints_and_writes(gcfed, tmp_path):
    words = ["costs", "scaffold", "fedprox + gcfed", "--model", "mlp(hidden=(8,))"]
    words += ["--shape", "4", "--classes", "3", "--clients", "1000", "--cohort", "5"]
    answer = gcfed(*words)
    assert answer.code == 0, answer.err
    lines = answer.out.splitlines()
    assert lines[0].split()[:5] == ["method", "down", "(MB)", "up", "(MB)"]
    assert lines[2].startswith("fedprox + gcfed") and lines[2].split()[-6:] == ["-"] * 6
    assert "in all with 1,000 clients" in answer.out
    rows = list(csv.DictReader(io.StringIO(gcfed(*words, "--format", "csv").out)))
    assert [row["up"] for row in rows] == [str(2 * W), str(W)]
    for name, start in {"a.tex": "% down", "a.md": "| method", "a.json": "["}.items():
        assert gcfed(*words, "--out", name).code == 0
        assert (tmp_path / name).read_text().startswith(start)
    assert json.loads((tmp_path / "a.json").read_text())[0]["kept"] == 1001 * W


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--shape", "3by3"], "--shape is one such as 3x32x32; not '3by3'"),
        (["--out", "a.xyz"], "say what a.xyz is to hold"),
        (["--dataset", "fashion10k", "--classes", "3"], "leave out the others"),
        (["nothing"], "unknown algorithm: 'nothing'"),
    ],
)
def test_the_command_refuses(gcfed, words, said):
    answer = gcfed("costs", *words)
    assert answer.code == 2 and said in answer.err


def test_a_notebook_shows_a_table():
    assert "<table" in costs("gcfed", **SMALL)._repr_html_()
    assert str(costs("gcfed", **SMALL)).startswith("method")
