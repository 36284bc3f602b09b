"""The probe clients: who is served how well by the global model, and by a model of one's own."""

import json
import math
from dataclasses import replace

import pytest
import torch
from running import Normed, lines, tiny
from torch import nn

import gcfed as library
from gcfed import InputError, resume, run, simulate, verify
from gcfed.analysis import ClientAccuracy, Observation
from gcfed.analysis.clients import class_accuracy, deciles, expected, label_shares, summary
from gcfed.config.build import build
from gcfed.models import MODELS
from gcfed.results.forgetting import FORGETTING, with_forgetting
from gcfed.runs.store import RunStore
from gcfed.simulation.evaluation import TestSet

pytest_plugins = ["running"]
pytestmark = pytest.mark.usefixtures("float32", "registries")

PROBE = "clients(every=2, at_end=4)"


def rows(path):
    return [json.loads(line) for line in (path / "probes.jsonl").read_text().splitlines()]


def test_an_accuracy_is_expected_by_label_shares():
    by_class = torch.tensor([1.0, 0.5, 0.0]).double()
    shares = torch.tensor([[1.0, 0, 0], [0, 0.5, 0.5], [0.2, 0.4, 0.4]]).double()
    assert expected(by_class, shares).tolist() == pytest.approx([1.0, 0.25, 0.4])


def test_a_class_without_a_test_example_is_left_out():
    by_class = torch.tensor([1.0, 0.5, math.nan]).double()
    shares = torch.tensor([[0.25, 0.25, 0.5], [0, 0, 1.0]]).double()
    found = expected(by_class, shares).tolist()
    assert found[0] == 0.75 and math.isnan(found[1])
    assert summary(expected(by_class, shares))["mean"] == 0.75


def test_the_worst_tenth_and_the_deciles_by_hand():
    values = torch.arange(21).flip(0).double() / 20  # 0, 0.05, ... 1
    found = summary(values)
    assert found["mean"] == pytest.approx(0.5)
    assert found["std"] == pytest.approx((sum((k / 20 - 0.5) ** 2 for k in range(21)) / 21) ** 0.5)
    assert found["worst"] == pytest.approx((0 + 0.05 + 0.1) / 3)  # three of 21
    assert deciles(values) == pytest.approx([0.1 * k for k in range(1, 10)])
    nobody = torch.zeros(0).double()
    assert all(map(math.isnan, [*summary(nobody).values(), *deciles(nobody)]))


class Fixed(nn.Module):
    """Says class x of an example x; classes from ``first`` on, it takes for class 0."""

    def __init__(self, first):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(float(first)))

    def forward(self, x):
        classes = torch.arange(5)
        return 2.0 * ((x == classes) & (x < self.scale)) + (classes == 0) + 0 * self.scale


@pytest.fixture
def view(make_setup, data):
    """A round after which the global model knows classes 0 to 2, and client 0's own all five."""
    x = data.y.double()[:, None]
    held = replace(data, x=x)
    setup = make_setup(
        library.parse("fedavg"), module=Fixed(3.0).double(), data=held, keep=frozenset({"models"})
    )
    result = next(simulate(setup))
    server = result.server._replace(params={"scale": torch.tensor(3.0)})
    own = torch.full_like(result.models.params["scale"], 3.0)
    own[0] = 5.0
    models = result.models._replace(params={"scale": own})
    test = TestSet(torch.arange(5.0)[:, None].repeat(2, 1), torch.arange(5).repeat(2))
    return Observation(setup, server, replace(result, server=server, models=models), test)


def test_what_is_measured_by_hand(view, data):
    found = ClientAccuracy().measure(view)
    assert [found[f"class.{c}"] for c in range(5)] == [1, 1, 1, 0, 0]
    known = [
        sum(int(data.y[i]) < 3 for i in part) / len(part)
        for part in (data.parts[k] for k in range(10))
    ]
    assert found["mean"] == pytest.approx(sum(known) / 10)
    assert found["worst"] == pytest.approx(min(known))
    ids = view.result.ids
    own = [1.0, *(known[i] for i in ids[1:])]
    assert found["local_mean"] == pytest.approx(sum(own) / 4)
    assert found["local_worst"] == pytest.approx(min(own))
    assert found["local_gain"] == pytest.approx((1 - known[ids[0]]) / 4)
    assert math.isnan(found["end_mean"])  # the run goes on


def test_clients_that_were_dropped_do_not_count(view):
    dropped = replace(view.result, dropped=view.result.ids[1:])
    found = ClientAccuracy().measure(replace(view, result=dropped))
    assert found["local_mean"] == found["local_worst"] == 1
    nobody = replace(view.result, ids=[], dropped=[], models=None)
    found = ClientAccuracy().measure(replace(view, result=nobody))
    assert math.isnan(found["local_mean"]) and found["mean"] > 0


def test_classes_weigh_to_the_accuracy_of_the_run(tmp_path):
    """By their shares in the test set, classes come to the accuracy in the line of the round."""
    run(tiny(rounds=2, probes=["clients(every=1)"]), tmp_path / "a")
    made = build(tiny())
    shares = torch.bincount(made.tests["test"].y, minlength=10).double() / 50
    for row, line in zip(rows(tmp_path / "a"), lines(tmp_path / "a"), strict=True):
        found = [row[f"clients.class.{c}"] for c in range(10)]
        assert (torch.tensor(found).double() @ shares).item() == pytest.approx(
            line["test_accuracy"]
        )


def test_the_end_is_a_round_of_all_clients(tmp_path):
    """What clients come to at the end is what a round of them would come to."""
    config = tiny(rounds=1, algorithm="scaffold", probes=["clients(at_end=20)"])
    run(config, tmp_path / "a")
    made = build(config)
    last = next(simulate(made.setup))
    ids = list(range(10))
    again = library.run_round(made.setup, last.server, last.clients, 0, ids)
    own = []
    for k in ids:
        params = {name: w[k] for name, w in again.models.params.items()}
        server = last.server._replace(params=params)
        by_class = class_accuracy(made.setup, server, made.tests["test"])
        own.append(expected(by_class, label_shares(made.setup, [k]))[0])
    (row,) = rows(tmp_path / "a")
    expect = summary(torch.stack(own))
    assert {name: row[f"clients.end_{name}"] for name in expect} == pytest.approx(expect)
    gain = expect["mean"] - row["clients.mean"]
    assert row["clients.end_gain"] == pytest.approx(gain)


def test_the_last_round_is_measured_and_the_end_belongs_to_it(tmp_path):
    run(tiny(rounds=4, probes=[PROBE]), tmp_path / "a")
    found = rows(tmp_path / "a")
    assert [len(row) > 1 for row in found] == [True, False, True, True]
    assert [row.get("clients.end_mean") is not None for row in found] == [False, False, False, True]
    run(tiny(rounds=2, probes=["clients(at_end=0)"]), tmp_path / "b")
    assert rows(tmp_path / "b")[1]["clients.end_mean"] is None


@pytest.mark.parametrize(
    "engine", ["sequential", "vectorized", pytest.param("workers", marks=pytest.mark.slow)]
)
def test_every_engine_measures_the_same(engine, tmp_path):
    run(tiny(rounds=2, probes=[PROBE], engine="sequential"), tmp_path / "a")
    run(tiny(rounds=2, probes=[PROBE], engine=engine), tmp_path / "b")
    for row, other in zip(rows(tmp_path / "a"), rows(tmp_path / "b"), strict=True):
        assert other == pytest.approx(row, abs=0.05)  # an example may fall to the other side


def test_a_measured_run_is_the_same_run(tmp_path):
    run(tiny(rounds=3, algorithm="scaffold"), tmp_path / "plain")
    run(tiny(rounds=3, algorithm="scaffold", probes=[PROBE]), tmp_path / "measured")
    for file in ("rounds.jsonl", "model.safetensors"):
        plain, measured = ((tmp_path / n / file).read_bytes() for n in ("plain", "measured"))
        assert plain == measured


def test_seeds_together_measure_each_its_own(tmp_path):
    store = RunStore(tmp_path)
    configs = [tiny(seed=s, probes=[PROBE], engine="vectorized") for s in (0, 1)]
    first, second = (each.probes for each in store.run_together(configs))
    assert first[-1]["clients.end_mean"] is not None
    assert first != second and len(first) == len(second) == 2


def test_a_run_that_is_extended_can_be_verified(tmp_path):
    run(tiny(rounds=4, probes=[PROBE], checkpoint_every=2), tmp_path / "a")
    resume(tmp_path / "a", rounds=6)
    found = rows(tmp_path / "a")
    ends = [row.get("clients.end_mean") is not None for row in found]
    assert ends == [False, False, False, True, False, True]  # it ended twice
    assert verify(tmp_path / "a").holds
    found[3]["clients.end_mean"] += 1e-9
    (tmp_path / "a" / "probes.jsonl").write_text("".join(json.dumps(r) + "\n" for r in found))
    assert verify(tmp_path / "a").differs == 3


def test_batch_norm_and_what_cannot_be_measured():
    MODELS.register("normed")(Normed)
    build(tiny(model="normed", probes=["clients"]))
    with pytest.raises(InputError, match="where each client has buffers of its own there is none"):
        build(tiny(model="normed", buffers="local", probes=["clients"]))
    with pytest.raises(InputError, match=r"at_end=\.\.\.\) is at least 0"):
        build(tiny(probes=["clients(at_end=-1)"]))
    x, y = torch.randn(40, 3), torch.randn(40, 1)
    changes = {"clients": 4, "cohort": 2, "rounds": 1, "epochs": 1, "batch_size": 5}
    with pytest.raises(InputError, match="needs labels that are classes"):
        library.fit(
            nn.Linear(3, 1), (x, y), loss=lambda p, t: (p - t).square().mean(1),
            algorithm="fedavg", partition="iid", probes=["clients"], **changes,
        )  # fmt: skip


# what is read out of it


def test_forgetting_by_hand():
    """The best of class 0 before is 0.8, of class 1 it is 0.4; a class may be unknown."""
    values = [(0.5, 0.2), (0.8, 0.4), (0.6, 0.5), (0.2, None)]
    probes = [
        {"round": t, "clients.class.0": a, "clients.class.1": b} for t, (a, b) in enumerate(values)
    ]
    found = [row.get(FORGETTING) for row in with_forgetting([*probes, {"round": 4}])]
    assert found[0] is None and found[4] is None
    expect = [(0.5 - 0.8 + 0.2 - 0.4) / 2, (0.8 - 0.6 + 0.4 - 0.5) / 2, 0.8 - 0.2]
    assert found[1:4] == pytest.approx(expect)
    assert with_forgetting([{"round": 0, "drift.norm": 1.0}]) == [{"round": 0, "drift.norm": 1.0}]


def test_it_is_read_and_drawn_like_every_probe(tmp_path, gcfed):
    for seed in (0, 1):
        run(
            tiny(rounds=3, seed=seed, probes=["clients(every=1, at_end=2)"]), tmp_path / f"r/{seed}"
        )
    frame = library.frame(tmp_path / "r")
    assert frame[FORGETTING].notna().sum() == 4
    figure = library.compare(tmp_path / "r").plot("clients.decile")
    (axes,) = figure.axes
    assert axes.get_xlabel() == "share of clients (%)"
    (curve,) = axes.get_lines()
    last = [rows(tmp_path / f"r/{seed}")[-1] for seed in (0, 1)]
    means = [sum(row[f"clients.decile.{n}"] for row in last) * 50 for n in range(10, 100, 10)]
    assert curve.get_xdata().tolist() == list(range(10, 100, 10))
    assert curve.get_ydata().tolist() == pytest.approx(means)
    for name in ("clients.decile", "clients.worst", FORGETTING):
        file = f"{name}.png"
        answer = gcfed("compare", tmp_path / "r", "--plot", file, "--draw", name)
        assert answer.code == 0, answer.err
        assert (tmp_path / file).stat().st_size > 1000


def test_runs_without_the_probe_have_no_deciles(tmp_path, gcfed):
    run(tiny(), tmp_path / "a")
    answer = gcfed("compare", tmp_path / "a", "--plot", "x.png", "--draw", "clients.decile")
    assert answer.code == 2 and "train them with the probe clients" in answer.err
