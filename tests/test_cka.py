"""The probe cka: clients and global models compared layer by layer, in every kind of run."""

import copy
import json
from dataclasses import replace

import pytest
import torch
from running import tiny
from torch import nn

import gcfed as library
from gcfed import InputError, resume, run, simulate, verify
from gcfed.analysis import CKA, Observation
from gcfed.analysis.probe import make_probes
from gcfed.config.build import build
from gcfed.runs.store import RunStore
from gcfed.simulation.evaluation import TestSet

pytest_plugins = ["running"]
pytestmark = pytest.mark.usefixtures("float32", "registries")


def rows(path):
    return [json.loads(line) for line in (path / "probes.jsonl").read_text().splitlines()]


def seen(make_setup, module, x, **changes):
    """The first round of a run of ``module``, and ``x`` as its test examples."""
    setup = make_setup(
        library.parse("fedavg"), module=module.double(), keep=frozenset({"models"}), **changes
    )
    received = setup.server_task.start(setup.model.params, setup.model.buffers)
    test = TestSet(x, torch.zeros(len(x), dtype=torch.int64))
    return Observation(setup, received, next(simulate(setup)), test)


def direct(x, y):
    """The linear CKA of two matrices of activations."""
    x, y = ((z - z.mean(0)).double() for z in (x.flatten(1), y.flatten(1)))
    return ((y.T @ x).norm() ** 2 / ((x.T @ x).norm() * (y.T @ y).norm())).item()


@pytest.fixture
def module(data):
    torch.manual_seed(0)
    width = data.x[0].numel()
    return nn.Sequential(nn.Flatten(), nn.Linear(width, 7), nn.Tanh(), nn.Linear(7, 5)).double()


def activations(view, params, x):
    """What the two linear layers of the module put out, by plain torch."""
    weights = [params[f"{layer}.{leaf}"] for layer in (1, 3) for leaf in ("weight", "bias")]
    first = nn.functional.linear(x.flatten(1), *weights[:2])
    return {"1": first, "3": nn.functional.linear(first.tanh(), *weights[2:])}


@pytest.mark.parametrize("batch", [256, 9])
def test_it_is_the_mean_over_clients_of_each_layers_cka(make_setup, module, data, batch):
    view = seen(make_setup, module, data.x[:30].clone())
    found = CKA(batch=batch).measure(view)
    assert list(found) == ["received.1", "received.3", "new.1", "new.3"]
    x, models = view.sample(512), view.result.models
    assert len(x) == 30
    for which, server in (("received", view.received), ("new", view.result.server)):
        for layer in ("1", "3"):
            theirs = activations(view, server.params, x)[layer]
            each = [
                direct(
                    activations(view, {n: w[k] for n, w in models.params.items()}, x)[layer], theirs
                )
                for k in range(len(view.result.ids))
            ]
            assert len(each) > 1
            assert found[f"{which}.{layer}"] == pytest.approx(sum(each) / len(each), abs=1e-9)


def test_a_model_is_wholly_like_itself(make_setup, module, data):
    view = seen(make_setup, module, data.x[:30].clone())
    models = view.result.models
    params = {n: view.received.params[n].expand_as(w) for n, w in models.params.items()}
    result = replace(view.result, models=models._replace(params=params))
    for probe in (CKA(), CKA(unbiased=True, batch=10), CKA(kernel="rbf")):
        found = probe.measure(replace(view, result=result))
        assert found["received.1"] == pytest.approx(1) and found["new.1"] < 1 - 1e-6


def test_the_received_model_is_what_was_broadcast(make_setup, module, data):
    """FedACG sends its clients a point ahead of the global weights."""
    setup = make_setup(
        library.parse("fedacg"), module=module.double(), keep=frozenset({"models"}), rounds=2
    )
    first, second = simulate(setup)
    anchor, _ = setup.server_task.broadcast(first.server)
    assert not torch.equal(anchor["1.weight"], first.server.params["1.weight"])
    models = second.models
    params = {n: anchor[n].expand_as(w) for n, w in models.params.items()}
    result = replace(second, models=models._replace(params=params))
    test = TestSet(data.x, data.y)
    found = CKA().measure(Observation(setup, first.server, result, test))
    assert found["received.3"] == pytest.approx(1)


class Branches(nn.Module):
    """A module that returns a tuple, one that is called by nobody, and one that counts steps."""

    def __init__(self, width):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.recurrent = nn.LSTM(4, 3)  # steps before examples
        self.fc, self.head = nn.Linear(width, 12), nn.Linear(12, 5)

    def forward(self, x):
        x = self.fc(x.flatten(1)).view(-1, 3, 4)
        x = x + self.attention(x, x, x)[0]
        steps, _ = self.recurrent(x.transpose(0, 1))
        return self.head(x.flatten(1)) + steps.mean()


def test_hooks_go_on_any_module(make_setup, data):
    module = Branches(data.x[0].numel())
    view = seen(make_setup, module, data.x.clone(), engine="sequential")
    layers = ("attention", "fc", "logits")
    found = CKA(layers=layers, against=("new",)).measure(view)
    assert list(found) == ["new.attention", "new.fc", "new.logits"]
    assert all(0 < value <= 1 for value in found.values())
    with pytest.raises(InputError, match=r"recurrent puts out \[3, 8, 3\] for 8 examples"):
        CKA(layers=("recurrent",), examples=8).measure(view)
    with pytest.raises(InputError, match=r"runs without attention\.out_proj"):
        CKA(layers=("attention.out_proj",)).measure(view)
    assert not any(m._forward_hooks for m in view.setup.model._shells[False].modules())


def test_a_layer_is_seen_before_the_next_writes_into_it(make_setup, data):
    """A ReLU in place turns what the layer before it gave into something else."""
    width, found = data.x[0].numel(), []
    for inplace in (False, True):
        torch.manual_seed(0)
        layers = (nn.Flatten(), nn.Linear(width, 9), nn.ReLU(inplace), nn.Linear(9, 5))
        found.append(CKA().measure(seen(make_setup, nn.Sequential(*layers), data.x)))
    assert found[0] == found[1]


def test_layers_are_those_with_weights_unless_named(make_setup, data):
    width = data.x[0].numel()
    module = nn.Sequential(nn.Flatten(), nn.LayerNorm(width), nn.Linear(width, 5))
    assert list(CKA().measure(seen(make_setup, module, data.x))) == ["received.2", "new.2"]
    build(tiny(probes=["cka(layers=('fc1', 'logits'))"]))
    with pytest.raises(InputError, match=r"unknown module: 'fc3'; did you mean 'fc\d'"):
        build(tiny(probes=["cka(layers=('fc3',))"]))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("cka(kernel='cosine')", "one of 'linear', 'rbf'"),
        ("cka(examples=0)", "at least 1"),
        ("cka(batch=0)", "at least 1"),
        ("cka(bandwidth=0.0)", "positive"),
        ("cka(unbiased=True, batch=3)", "at least 4 examples"),
        ("cka(against=('old',))", "against"),
        ("cka(against=())", "names a global model"),
        ("cka(every=0)", "at least 1"),
    ],
)
def test_what_makes_no_sense_is_refused_before_the_run(text, said):
    with pytest.raises(InputError, match=said):
        build(tiny(probes=[text]))


def test_the_examples_are_the_same_for_every_run_and_of_every_class(make_setup, module, data):
    """A test set in the order of its classes: its first examples are all of one."""
    x = torch.arange(100, dtype=torch.float64)[:, None].expand(100, data.x[0].numel()).clone()
    first, second = (seen(make_setup, module, x, seed=s).sample(20) for s in (0, 1))
    assert torch.equal(first, second) and len(first[:, 0].unique()) == 20
    assert all(((first[:, 0] // 25) == quarter).any() for quarter in range(4))


@pytest.mark.parametrize("engine", ["sequential", "vectorized", "workers"])
def test_every_engine_measures_the_same(engine, tmp_path):
    config = {"algorithm": "gcfed", "probes": ["cka(examples=30)", "drift"]}
    run(tiny(engine="sequential", **config), tmp_path / "specification")
    run(tiny(engine=engine, **config), tmp_path / engine)
    for row, wanted in zip(rows(tmp_path / engine), rows(tmp_path / "specification"), strict=True):
        assert list(row) == list(wanted)
        assert [row[name] for name in row] == pytest.approx(list(wanted.values()), abs=1e-4)
        assert 0 < row["cka.received.fc1"] <= 1


@pytest.mark.parametrize("buffers", ["average", "local"])
def test_batch_norm_is_seen_with_its_buffers(buffers, make_setup, data):
    """With the weights that they received, clients differ from what they received by buffers."""
    width = data.x[0].numel()
    module = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(width), nn.Linear(width, 5))
    view = seen(make_setup, module, data.x, buffers=buffers, engine="sequential")
    models, received = view.result.models, view.received
    params = {n: received.params[n].expand_as(w) for n, w in models.params.items()}
    result = replace(view.result, models=models._replace(params=params))
    found = CKA(layers=("1",)).measure(replace(view, result=result))["received.1"]
    assert found == pytest.approx(1) if buffers == "local" else found < 0.999


def test_bf16_is_measured_as_it_computes(tmp_path):
    for precision in ("float32", "bf16"):
        run(tiny(precision=precision, probes=["cka"]), tmp_path / precision)
    plain, low = (rows(tmp_path / name)[0] for name in ("float32", "bf16"))
    assert low != plain
    assert list(low.values()) == pytest.approx(list(plain.values()), abs=0.02)


def test_several_seeds_a_stop_and_verify(tmp_path):
    probes = ["cka(every=2, unbiased=True, batch=25)", "drift"]
    configs = [tiny(rounds=5, seed=s, probes=probes, engine="vectorized") for s in (0, 1)]
    whole = RunStore(tmp_path).run_together(configs)
    assert verify(whole[1].path).holds
    assert whole[0].probes != whole[1].probes
    run(tiny(rounds=3, probes=probes, checkpoint_every=1), tmp_path / "cut")
    resume(tmp_path / "cut", rounds=5)
    run(tiny(rounds=5, probes=probes), tmp_path / "whole")
    assert rows(tmp_path / "cut") == rows(tmp_path / "whole")
    measured = ["cka.new.fc1" in row for row in rows(tmp_path / "cut")]
    assert measured == [True, False, True, False, True]
    assert all("drift.norm" in row for row in rows(tmp_path / "cut"))
    assert verify(tmp_path / "cut").holds


def test_fit_has_the_rounds_that_were_measured():
    x, y = torch.randn(60, 4), torch.arange(60) % 3
    changes = {"clients": 5, "cohort": 2, "rounds": 3, "epochs": 1, "batch_size": 10}
    history = library.fit(
        nn.Linear(4, 3),
        (x, y),
        algorithm="fedavg",
        probes=["cka(every=2)"],
        progress=False,
        **changes,
    )
    assert len(history["cka.received.logits"]) == 2


def test_a_round_without_clients_has_the_same_names_and_no_numbers(make_setup, module, data):
    view = seen(make_setup, module, data.x)
    found = CKA().measure(replace(view, result=replace(view.result, ids=[], models=None)))
    assert list(found) == list(CKA().measure(view))
    assert all(torch.tensor(value).isnan() for value in found.values())


def test_a_client_whose_layer_is_dead_does_not_count(make_setup, module, data):
    view = seen(make_setup, module, data.x)
    params = copy.copy(view.result.models.params)
    params["1.weight"] = params["1.weight"].clone()
    params["1.weight"][0] = 0
    result = replace(view.result, models=view.result.models._replace(params=params))
    rest = replace(result, ids=[9, *result.ids[1:]], dropped=[9])
    found = [CKA().measure(replace(view, result=each))["new.1"] for each in (result, rest)]
    assert found[0] == pytest.approx(found[1]) and found[0] > 0


def test_every_is_a_field_of_any_probe():
    probes = make_probes(["drift(every=3)", "cka"])
    assert [probe.every for probe in probes.values()] == [3, 1]
