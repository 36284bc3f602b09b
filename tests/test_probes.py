"""Probes: what is measured of a round, by name, beside its line."""

import json
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
from gcfed.analysis.probe import make_probes, measure
from gcfed.config.build import build
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


def test_equal_clients_do_not_drift_and_gc_leaves_nothing_to_centre(make_setup):
    row = torch.randn(1, 4, 6, dtype=torch.float64)
    row = row - row.mean(2, keepdim=True)
    found = Drift().measure(seen({"weight": row.repeat(3, 1, 1)}, make_setup))
    assert found["pair_cosine"] == pytest.approx(1) and found["mean_cosine"] == pytest.approx(1)
    assert found["variance"] == pytest.approx(0, abs=1e-20)
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
    row = measure({"drift": Drift()}, Observation(setup, result.server, result))
    assert row["drift.norm"] is None and row["round"] == 0


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
