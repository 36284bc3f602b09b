"""Probes: what is measured of a round, by name, beside its line."""

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from killing import KILLED, killed_at_write
from running import flags, lines, tiny
from torch import nn

import gcfed as library
from gcfed import InputError, load_run, resume, run, simulate, verify
from gcfed.analysis import PROBES, Drift, Observation, Probe
from gcfed.analysis.drift import products
from gcfed.analysis.probe import make_probes, measure
from gcfed.config.build import build
from gcfed.core.centralization import centralize
from gcfed.core.roles import Role
from gcfed.core.types import Upload
from gcfed.results.facts import facts
from gcfed.runs.store import RunStore

pytest_plugins = ["running"]
pytestmark = pytest.mark.usefixtures("float32", "registries")

PLUGIN = """
from dataclasses import dataclass
import torch
from gcfed.analysis import PROBES, Probe

@PROBES.register("confidence")
@dataclass(frozen=True)
class Confidence(Probe):
    '''How sure the clients' own models are of some test examples.'''

    size: int = 8
    needs = frozenset({"models", "batch"})

    def measure(self, seen):
        x, models = seen.batch(self.size), seen.result.models
        forward = seen.setup.client_task.forward
        first = {name: w[0] for name, w in models.params.items()}
        logits = forward(first, x, buffers={}, train=False)[0].logits
        return {"largest": logits.softmax(1).amax(1).mean().item(), "examples": len(logits)}
"""


@pytest.fixture(autouse=True)
def forgotten(monkeypatch):
    monkeypatch.setattr(PROBES, "_entries", dict(PROBES._entries))


@pytest.fixture
def plugin(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(PLUGIN)
    return path


def rows(path):
    return [json.loads(line) for line in (path / "probes.jsonl").read_text().splitlines()]


def seen(deltas, make_setup):
    """A round in which clients sent these deltas."""
    setup = make_setup(library.parse("fedavg"))
    result = next(simulate(setup))
    ids = list(range(len(next(iter(deltas.values())))))
    uploads = Upload(deltas, {}, {})
    return Observation(setup, result.server, replace(result, ids=ids, dropped=[], uploads=uploads))


def test_drift_by_hand(make_setup):
    """Two clients: (3, 4 | 0) and (0, 0 | 5), whose plain mean is (1.5, 2 | 2.5)."""
    weight = torch.tensor([[[3.0, 4.0]], [[0.0, 0.0]]])
    bias = torch.tensor([[0.0], [5.0]])
    found = Drift().measure(seen({"weight": weight, "bias": bias}, make_setup))
    square = 1.5**2 + 2**2 + 2.5**2
    assert found["norm"] == pytest.approx(5)
    assert found["mean_norm"] == pytest.approx(square**0.5)
    assert found["pair_cosine"] == pytest.approx(0)
    cosines = [(3 * 1.5 + 4 * 2) / 5 / square**0.5, 5 * 2.5 / 5 / square**0.5]
    assert found["mean_cosine"] == pytest.approx(sum(cosines) / 2)
    assert found["variance"] == pytest.approx(square)
    assert found["centred"] == pytest.approx(2 * 1.75**2 / square)  # the row's mean, twice


def test_drift_of_layers_head_and_features_by_hand(make_setup):
    """Clients send (2, 0 | 1) and (0, 2 | 1) in a layer, and (3, 3) and (-1, -1) in the head."""
    body, bias = torch.tensor([[[2.0, 0.0]], [[0.0, 2.0]]]), torch.tensor([[1.0], [1.0]])
    head = torch.tensor([[[3.0, 3.0]], [[-1.0, -1.0]]])
    deltas = {"fc1.weight": body, "fc1.bias": bias, "fc2.weight": head}
    view = seen(deltas, make_setup)
    weights = {"fc1.weight": torch.tensor([[1.0, 3.0], [0.0, 4.0]]), "fc1.bias": torch.ones(2)}
    weights["fc2.weight"] = torch.tensor([[2.0, -2.0]])
    server = view.result.server._replace(params=weights)
    found = Drift().measure(replace(view, result=replace(view.result, server=server)))

    def of(number):
        whole = [f"{part}{number}" for part in ("", "head_", "features_")]
        return [found[name] for name in (*whole, f"{number}.fc1", f"{number}.fc2")]

    features, last = 5**0.5, (18**0.5 + 2**0.5) / 2
    both = (23**0.5 + 7**0.5) / 2
    assert of("norm") == pytest.approx([both, last, features, features, last])
    # the means are (1, 1 | 1) and (1, 1)
    assert of("mean_norm") == pytest.approx([5**0.5, 2**0.5, 3**0.5, 3**0.5, 2**0.5])
    pair = (0 + 1 - 6) / (23 * 7) ** 0.5
    assert of("pair_cosine") == pytest.approx([pair, -1, 1 / 5, 1 / 5, -1])
    mean = ((2 + 1 + 6) / (23 * 5) ** 0.5 + (2 + 1 - 2) / (7 * 5) ** 0.5) / 2
    assert of("mean_cosine") == pytest.approx([mean, 0, 3 / 15**0.5, 3 / 15**0.5, 0])
    assert of("variance") == pytest.approx([10, 8, 2, 2, 8])
    # P takes (1, 1) away from each row of fc1, and all there is in the head
    assert of("centred") == pytest.approx([4 / 5, 1, 2 / 3, 2 / 3, 1])
    shares = ((2 + 18) / 23 + (2 + 2) / 7) / 2
    assert of("client_centred") == pytest.approx([shares, 1, 2 / 5, 2 / 5, 1])
    # the rows of the weights have means of 2, 2 and 0, and two numbers each
    assert of("distance") == pytest.approx([4, 0, 4, 4, 0])


def test_what_drift_takes_for_removed_is_what_p_removes():
    """Also where a weight is stored [in, out], is divided into groups, or is a bias."""
    shapes = {
        Role("linear"): (3, 4),
        Role("linear", output_axis=1): (3, 4),
        Role("convolution", groups=2): (6, 2, 3, 3),
        Role("convolution", output_axis=1, groups=2): (6, 2, 3, 3),
        Role("bias"): (5,),
        Role("embedding"): (7, 2),
    }
    for role, shape in shapes.items():
        x = torch.randn(3, *shape, dtype=torch.float64)
        found = products(x, role)
        removed = [y - centralize(y, role=role) for y in x]
        wanted = torch.stack([y.square().sum() for y in removed])
        torch.testing.assert_close(found.removed, wanted)
        torch.testing.assert_close(found.mean_removed, torch.stack(removed).mean(0).square().sum())
        torch.testing.assert_close(found.gram, x.flatten(1) @ x.flatten(1).T)


def test_equal_clients_do_not_drift_and_gc_leaves_nothing_to_centre(make_setup):
    row = torch.randn(1, 4, 6, dtype=torch.float64)
    row = row - row.mean(2, keepdim=True)
    found = Drift().measure(seen({"weight": row.repeat(3, 1, 1)}, make_setup))
    assert found["pair_cosine"] == pytest.approx(1) and found["mean_cosine"] == pytest.approx(1)
    assert found["variance"] == pytest.approx(0, abs=1e-12)
    assert found["centred"] == pytest.approx(0, abs=1e-20)


def test_gcfed_removes_what_drift_calls_centred(tmp_path):
    for algorithm, share in (("fedavg", 1e-3), ("localgc", 0.0)):
        config = tiny(algorithm=algorithm, probes=["drift"], weight_decay=0.0)
        run(config, tmp_path / algorithm)
        found = [row["drift.centred"] for row in rows(tmp_path / algorithm)]
        assert all(x > share for x in found) if share else max(found) < 1e-12


def test_a_run_with_probes_is_the_same_run(tmp_path):
    run(tiny(rounds=3, algorithm="scaffold"), tmp_path / "plain")
    run(tiny(rounds=3, algorithm="scaffold", probes=["drift"]), tmp_path / "probed")
    assert not (tmp_path / "plain" / "probes.jsonl").exists()
    for file in ("rounds.jsonl", "model.safetensors"):
        same = [(tmp_path / name / file).read_bytes() for name in ("plain", "probed")]
        assert same[0] == same[1]
    assert [row["round"] for row in rows(tmp_path / "probed")] == [0, 1, 2]
    assert "drift.pair_cosine" in rows(tmp_path / "probed")[0]


def test_nothing_is_kept_that_no_probe_needs(plugin):
    assert build(tiny()).setup.keep == frozenset()
    assert build(tiny(probes=["drift"])).setup.keep == {"uploads"}
    both = build(tiny(probes=["drift", "confidence"], plugins=[str(plugin)]))
    assert both.setup.keep == {"uploads", "models"}
    assert both.setup.client_task.keep_models
    assert next(simulate(build(tiny()).setup)).uploads is None


@pytest.mark.parametrize("engine", ["sequential", "vectorized", "workers"])
def test_a_probe_of_ones_own_in_every_engine(engine, plugin, tmp_path, gcfed):
    words = flags(rounds=2, engine=engine, probes='["confidence(size=5)", "drift"]')
    answer = gcfed("run", *words, "--plugin", plugin, "--out", tmp_path / "a")
    assert answer.code == 0, answer.err
    found = rows(tmp_path / "a")
    assert [row["confidence.examples"] for row in found] == [5, 5]
    assert all(0 < row["confidence.largest"] <= 1 and row["drift.norm"] > 0 for row in found)
    assert re.search(r"probes: confidence [\d.]+ %, drift [\d.]+ %", answer.err)
    assert "confidence" in gcfed("list", "probes", "--plugin", plugin).out


def test_seeds_together_measure_each_its_own(tmp_path):
    store = RunStore(tmp_path)
    runs = store.run_together([tiny(seed=s, probes=["drift"], engine="vectorized") for s in (0, 1)])
    first, second = (run.probes for run in runs)
    assert first != second and len(first) == len(second) == 2


def test_a_stopped_run_goes_on_measuring(tmp_path):
    config = {"algorithm": "scaffold", "probes": ["drift"], "checkpoint_every": 2}
    run(tiny(rounds=5, **config), tmp_path / "whole")
    run(tiny(rounds=3, **config), tmp_path / "cut")
    resume(tmp_path / "cut", rounds=5)
    assert rows(tmp_path / "cut") == rows(tmp_path / "whole")
    assert verify(tmp_path / "cut").holds


@pytest.mark.parametrize("number", [35, 48, 60])
def test_a_killed_run_measures_every_round_once(number, tmp_path):
    config = tiny(rounds=4, probes=["drift"], checkpoint_every=1)
    run(config, tmp_path / "whole")
    ended = killed_at_write(lambda: run(config, tmp_path / "killed"), number)
    assert ended == KILLED
    resume(tmp_path / "killed")
    for file in ("rounds.jsonl", "probes.jsonl"):
        killed, whole = ((tmp_path / name / file).read_bytes() for name in ("killed", "whole"))
        assert killed == whole


def test_verify_notices_a_measurement_that_was_changed(tmp_path):
    run(tiny(rounds=3, probes=["drift"]), tmp_path / "a")
    assert verify(tmp_path / "a").holds
    found = rows(tmp_path / "a")
    found[1]["drift.norm"] += 1e-9
    text = "".join(json.dumps(row) + "\n" for row in found)
    (tmp_path / "a" / "probes.jsonl").write_text(text)
    assert verify(tmp_path / "a").differs == 1


def test_show_says_what_share_of_the_time_each_probe_took(tmp_path, gcfed):
    run(tiny(rounds=3, probes=["drift", "cka(every=2)"]), tmp_path / "a")
    timings = load_run(tmp_path / "a").timings
    assert [list(t["probes"]) for t in timings] == [["drift", "cka"], ["drift"], ["drift", "cka"]]
    assert all(0 < sum(t["probes"].values()) < t["seconds"] for t in timings)
    for timing, seconds in zip(timings, ((1, 2), (1,), (1, 2)), strict=True):
        timing |= {"seconds": 10, "probes": dict(zip(("drift", "cka"), seconds, strict=False))}
    text = "".join(json.dumps(timing) + "\n" for timing in timings)
    (tmp_path / "a" / "timings.jsonl").write_text(text)
    said = gcfed("show", tmp_path / "a").out
    assert "drift 10 %, cka 13 %" in said
    (tmp_path / "a" / "timings.jsonl").write_text(text.replace('"cka": 2', '"cka": "2"'))
    answer = gcfed("show", tmp_path / "a")
    assert answer.code == 2 and "line 1, probes is damaged: cka is '2'" in answer.err
    run(tiny(), tmp_path / "plain")
    assert "probes" not in gcfed("show", tmp_path / "plain").out


def test_a_frame_has_what_was_measured(tmp_path):
    run(tiny(rounds=2, probes=["drift"]), tmp_path / "a")
    assert ("probes", "drift: 2 rows in probes.jsonl") in facts(load_run(tmp_path / "a"))
    found = library.frame(tmp_path / "a")
    assert found["drift.norm"].tolist() == [row["drift.norm"] for row in rows(tmp_path / "a")]
    assert found["test_accuracy"].tolist() == [x["test_accuracy"] for x in lines(tmp_path / "a")]


def test_fit_measures_too():
    x, y = torch.randn(60, 4), torch.arange(60) % 3
    changes = {"clients": 5, "cohort": 2, "rounds": 2, "epochs": 1, "batch_size": 10}
    history = library.fit(nn.Linear(4, 3), (x, y), algorithm="fedavg", probes=["drift"], **changes)
    assert len(history["drift.norm"]) == 2 and len(history.probes) == 2


def test_a_round_without_clients_has_no_drift(make_setup):
    setup = make_setup(library.parse("fedavg"), keep=frozenset({"uploads"}))
    result = replace(next(simulate(setup)), ids=[], uploads=None)
    row = measure({"drift": Drift()}, Observation(setup, result.server, result)).row
    assert row["drift.norm"] is None and row["round"] == 0
    assert row["drift.norm.fc1"] is None and row["drift.distance"] > 0


@dataclass(frozen=True)
class Greedy(Probe):
    needs: ClassVar = frozenset({"gradients"})

    def measure(self, seen):
        return {}


def test_what_is_no_probe_is_refused():
    PROBES.register("greedy")(Greedy)
    PROBES.register("number")(lambda: 3)
    for texts, said in (
        (["drft"], "did you mean 'drift'"),
        (["drift", "drift"], "the probe drift is named twice"),
        (["greedy"], "probe greedy needs 'gradients'; there are uploads, models, batch"),
        (["number"], "gave a int, where a Probe belongs"),
    ):
        with pytest.raises(InputError, match=said):
            make_probes(texts)
    with pytest.raises(InputError, match="unknown probe"):
        build(tiny(probes=["nothing"]))


def test_a_checkpoint_of_before_there_were_probes_is_read(tmp_path):
    run(tiny(rounds=2), tmp_path / "a")
    manifest = next((tmp_path / "a" / "checkpoints").glob("0*.json"))
    found = json.loads(manifest.read_text())
    del found["probes"]
    manifest.write_text(json.dumps(found))
    resume(tmp_path / "a", rounds=3)
    assert len(load_run(tmp_path / "a").records) == 3
    assert not Path(tmp_path / "a" / "probes.jsonl").exists()


def test_what_is_measured_sets_no_runs_apart(tmp_path):
    run(tiny(algorithm="fedavg"), tmp_path / "plain")
    run(tiny(algorithm="fedprox", probes=["drift"]), tmp_path / "probed")
    found = library.compare(tmp_path, baseline="fedavg")
    assert len(found.blocks) == 1
    assert [r.difference is not None for r in found.results] == [False, True]


@pytest.fixture
def methods(tmp_path):
    """Two methods on one task, and one on another, two seeds each."""
    probes = ["cka(examples=20, every=2)", "drift"]
    for algorithm, partition in (
        ("fedavg", "iid"),
        ("fedavg", "dirichlet"),
        ("gcfed", "dirichlet"),
    ):
        for seed in (0, 1):
            config = tiny(
                algorithm=algorithm, partition=partition, seed=seed, rounds=4, probes=probes
            )
            run(config, tmp_path / "runs" / f"{algorithm}-{partition}-{seed}")
    return tmp_path / "runs"


def test_a_number_of_layers_has_a_panel_for_each(methods):
    figure = library.compare(methods).plot("cka.received")
    assert [axes.get_title() for axes in figure.axes] == ["fc1", "fc2"]
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["fedavg, α = 0.1", "gcfed, α = 0.1", "fedavg, iid"]
    first, second = (rows(methods / f"fedavg-iid-{seed}")[::2] for seed in (0, 1))
    pairs = zip(first, second, strict=True)
    mean = [(a["cka.received.fc1"] + b["cka.received.fc1"]) / 2 for a, b in pairs]
    curve = figure.axes[0].lines[2]
    assert curve.get_xdata().tolist() == [1, 3]
    assert curve.get_ydata().tolist() == pytest.approx(mean)


def test_a_number_of_the_whole_model_and_of_its_layers(methods):
    figure = library.compare(methods).plot("drift.norm")
    assert [axes.get_title() for axes in figure.axes] == ["all layers", "fc1", "fc2"]
    figure = library.compare(methods).plot("drift.head_norm")
    assert len(figure.axes) == 2 and figure.axes[1].get_title() == "iid"  # a panel for each task


def test_compare_draws_what_it_is_asked_for(methods, tmp_path, gcfed):
    picture = tmp_path / "layers.png"
    assert gcfed("compare", methods, "--plot", picture, "--draw", "cka.new").code == 0
    assert picture.stat().st_size > 0
    answer = gcfed("compare", methods, "--plot", tmp_path / "b.png", "--draw", "cka.nw")
    assert answer.code == 2 and "unknown number of a round: 'cka.nw'" in answer.err
    answer = gcfed("compare", methods, "--draw", "cka.new")
    assert answer.code == 2 and "name a file for it by --plot" in answer.err


def test_a_history_draws_its_probes():
    x, y = torch.randn(60, 4), torch.arange(60) % 3
    changes = {"clients": 5, "cohort": 2, "rounds": 2, "epochs": 1, "batch_size": 10}
    history = library.fit(nn.Linear(4, 3), (x, y), algorithm="fedavg", probes=["cka"], **changes)
    figure = history.plot("cka.new")
    assert [axes.get_title() for axes in figure.axes] == ["logits"]


WRONG = """
from dataclasses import dataclass
import random
import numpy as np
import torch
from gcfed.analysis import PROBES, Probe

def probe(body, needs=frozenset()):
    @PROBES.register("mine")
    @dataclass(frozen=True)
    class Mine(Probe):
        '''Mine.'''
        def measure(self, seen):
            return body(seen)
    Mine.needs = needs
"""


def measured(tmp_path, body, **settings):
    """Two rounds with a probe of this body, which stands in line 17 of its file."""
    (tmp_path / "p.py").write_text(f"{WRONG}\n{body}\n")
    run(tiny(rounds=2, probes=["mine"], plugins=[str(tmp_path / "p.py")]), tmp_path / "a")
    return rows(tmp_path / "a")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            'probe(lambda seen: {"n": seen.result.models.params})',
            r'probe mine \(p\.py, line 17\): it looks at result\.models and does not say so: add '
            r'"models" to its needs, as in needs = frozenset\(\{"models"\}\)',
        ),
        (
            'probe(lambda seen: {"n": list(seen.result.uploads)}, {"models"})',
            'line 17.: it looks at result.uploads and does not say so',
        ),
        (
            'probe(lambda seen: {"n": len(seen.result.uploads or ())}, {"models"})',
            'line 17.: it looks at result.uploads and does not say so',
        ),
        ('probe(lambda seen: {"n": len(seen.result.models)})', "looks at result.models and does"),
        ('probe(lambda seen: {"n": seen.batch(3)})', 'probe mine .*line 17.: .*add "batch" to'),
        ('probe(None, "models")', "needs of probe mine is a set of names, as .*not 'models'"),
        ("probe(lambda seen: 0.5)", r"probe mine \(p\.py, line 13\) returns a float, where a dict"),
        ("probe(lambda seen: {'n': 'x'})", "returns 'x' as 'n', where one number belongs"),
        ("probe(lambda seen: {'n': seen.result.losses})", r"returns tensor\(.* as 'n', where one"),
        ("probe(lambda seen: {'n': 10**400})", "returns a number of more than 100 digits as 'n'"),
        ("probe(lambda seen: {'n': torch.ones(3, 40)})", r"1\., 1\., .*\.\.\. as 'n', where one"),
        ("probe(lambda seen: {1: 0.5})", "names a number 1, where a text belongs"),
        ("probe(lambda seen: 1 / 0)", "probe mine .p.py, line 17. raises ZeroDivisionError"),
        (
            "probe(lambda seen: {f'n{seen.result.round}': 1})",
            "gives 'n0' in some rounds and not in others: give the same names in every round",
        ),
        (
            "@PROBES.register('mine')\nclass Mine(Probe): ...",
            r"probe mine: the class Mine \(p\.py, line 1[78]\) has no method measure\(self, seen\)",
        ),
        (
            "PROBES.register('mine')(type('Mine', (Probe,), {}))",
            r"probe mine: the class Mine .* has no method measure\(self, seen\)",
        ),
    ],
)  # fmt: skip
def test_a_probe_that_is_wrong_is_told_by_its_line(tmp_path, body, said):
    with pytest.raises(InputError, match=said):
        measured(tmp_path, body)


@pytest.mark.parametrize(
    ("code", "path"),
    [
        ("[w.mul_(0) for w in seen.result.server.params.values()]", "result.server/params/"),
        ("seen.result.server.params.update(a=torch.ones(1))", "result.server/params/a"),
        ("seen.received.params.popitem()", "received/params/fc2.bias"),
        ("seen.batch(2).zero_()", "test/0"),
        ("seen.result.losses.zero_()", "result.losses"),
        ("[w.numpy().fill(0) for w in seen.received.params.values()]", "received/params/"),
        ("seen.result.server.params['fc2.bias'].data.add_(1)", "result.server/params/fc2.bias"),
        ("seen.batch(2).numpy().sort()", "test/0"),
        ("seen.setup.data.parts.indices.zero_()", "setup.data/2/indices"),
    ],
)
def test_a_probe_that_writes_into_a_round_is_refused(tmp_path, code, path):
    said = rf"probe mine \(p\.py, line 13\) writes into what it is shown \(.*{path}"
    with pytest.raises(InputError, match=said):
        measured(tmp_path, f"probe(lambda seen: ({code}, {{}})[1], {{'batch'}})")


def test_a_probe_may_draw_and_changes_nothing_by_it(tmp_path):
    """It draws the same when the run is verified, whatever was drawn before."""
    draws = "torch.rand(()), 'b': random.random(), 'c': np.random.rand()"
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first, second = measured(tmp_path, f"probe(lambda seen: {{'a': {draws}}})")
    assert torch.equal(before, torch.get_rng_state())
    assert all(first[f"mine.{name}"] != second[f"mine.{name}"] for name in "abc")
    torch.rand(3)
    assert verify(tmp_path / "a").holds
    run(tiny(rounds=2), tmp_path / "plain")
    assert lines(tmp_path / "plain") == lines(tmp_path / "a")


def test_the_generators_of_a_probe_are_seeded_without_asking_a_device(monkeypatch, make_setup):
    """To read a key from a GPU would wait for the round that is under way there."""

    @PROBES.register("mine")
    @dataclass(frozen=True)
    class Mine(Probe):
        """Mine."""

        def measure(self, seen):
            return {"drawn": torch.rand(())}

    setup = make_setup(library.parse("fedavg"), rounds=1)
    (result,) = simulate(setup)
    seen = Observation(setup, library.start(setup).server, result)
    expected = measure(make_probes(["mine"]), seen)
    meta = torch.device("meta")  # nothing can be read there
    monkeypatch.setattr(type(setup), "device", property(lambda self: meta))
    assert measure(make_probes(["mine"]), seen).row == expected.row
