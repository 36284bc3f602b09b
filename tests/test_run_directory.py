"""What a run leaves behind, and that it is what happened."""

import json
import math
import random as python_random
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from running import TINY, Normed, lines, tiny
from safetensors.torch import load_file, load_model, save_file
from torch import nn

import gcfed as package
from gcfed import DATASETS, MODELS, Dataset, Examples, InputError, load_run, predict, run, verify
from gcfed.config import build as build_module, fingerprint as fingerprint_module
from gcfed.config.build import build
from gcfed.config.fingerprint import fingerprint
from gcfed.data.augmentation import ImageTransform
from gcfed.runs.train import run_together
from gcfed.simulation.lines import weights_sha256
from gcfed.simulation.snapshot import start

pytest_plugins = ["running"]
pytestmark = pytest.mark.usefixtures("float32", "registries")

MLP = 4 * (64 * 8 + 8 + 8 * 10 + 10)
"""The bytes of mlp(hidden=(8,)) on 8 x 8 images of 10 classes."""


def test_the_fields_of_a_line(tmp_path):
    run(tiny(), tmp_path / "a")
    first, second = lines(tmp_path / "a")
    assert list(first) == [
        *("round", "test_accuracy", "test_loss", "tested", "train_loss", "clients", "dropped"),
        *("absent", "late", "corrupted"),
        *("update_norm", "bytes_up", "bytes_down", "weights_sha256"),
    ]
    assert (first["round"], second["round"]) == (0, 1)
    assert 0 <= first["test_accuracy"] <= 1
    assert first["tested"] == "global"
    assert len(first["clients"]) == len(set(first["clients"])) == 3
    assert first["dropped"] == []


def test_a_round_without_an_evaluation_has_nulls(tmp_path):
    run(tiny(rounds=4, evaluate_every=3, validation=0.2), tmp_path / "a")
    scores = ("test_accuracy", "test_loss", "validation_accuracy", "validation_loss", "tested")
    found = [[line[name] is None for name in scores] for line in lines(tmp_path / "a")]
    assert found == [[True] * 5, [True] * 5, [False] * 5, [False] * 5]  # the last is always there
    run(tiny(rounds=4, validation=0.2), tmp_path / "b")
    for sparse, full in zip(lines(tmp_path / "a"), lines(tmp_path / "b"), strict=True):
        assert {k: v for k, v in full.items() if sparse[k] is not None} == {
            k: v for k, v in sparse.items() if v is not None
        }
        assert list(sparse) == list(full)


def test_equal_runs_write_equal_bytes_whatever_else_draws(tmp_path):
    run(tiny(algorithm="fedvarp + gcfed"), tmp_path / "a")

    def disturb(found):
        torch.manual_seed(torch.initial_seed() + 1)
        torch.randn(3), np.random.rand(3), python_random.random()

    disturb(None)
    before = torch.get_rng_state()
    run(tiny(algorithm="fedvarp + gcfed"), tmp_path / "b")
    assert torch.equal(torch.get_rng_state(), before)  # nor does a run draw from there
    run(tiny(algorithm="fedvarp + gcfed"), tmp_path / "c", disturb)
    first, *others = ((tmp_path / n / "rounds.jsonl").read_bytes() for n in "abc")
    assert others == [first, first]
    weights, *others = ((tmp_path / n / "model.safetensors").read_bytes() for n in "abc")
    assert others == [weights, weights]
    run(tiny(algorithm="fedvarp + gcfed", seed=1), tmp_path / "d")
    assert (tmp_path / "d" / "rounds.jsonl").read_bytes() != first


def test_torchs_default_dtype_is_no_matter(tmp_path):
    run(tiny(), tmp_path / "a")
    torch.set_default_dtype(torch.float64)
    run(tiny(), tmp_path / "b")
    assert torch.get_default_dtype() == torch.float64
    first, again = ((tmp_path / n / "rounds.jsonl").read_bytes() for n in "ab")
    assert first == again
    assert load_run(tmp_path / "b").model.fc1.weight.dtype == torch.float32


def test_data_of_double_precision_train_a_model_of_the_same(tmp_path):
    @DATASETS.register("double")
    def double(root):
        x = torch.randn(40, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        examples = Examples(x, torch.arange(40) % 2)
        return Dataset(train=examples, test=examples, num_classes=2)

    run(tiny(dataset="double", clients=4), tmp_path / "a")
    module = load_run(tmp_path / "a").model
    assert module.fc1.weight.dtype == torch.float64
    assert weights_sha256(module.state_dict()) == lines(tmp_path / "a")[-1]["weights_sha256"]


def drawn(**changes):
    """What the seeds of a config draw."""
    experiment = build(tiny(**changes))
    setup = experiment.setup
    return {
        "partition": [setup.data.parts[k].tolist() for k in range(10)],
        "weights": weights_sha256(start(setup).server.params),
        "cohorts": [setup.population.sample(t) for t in range(5)],
        "batches": orders(setup),
    }


def orders(setup):
    """In which orders clients would go through parts of equal size."""
    parts = list(torch.arange(200).split(20))
    even = replace(setup, data=replace(setup.data, parts=parts))
    return [[batch.tolist() for batch in even.population.plan(1, k)] for k in range(3)]


@pytest.mark.parametrize(
    ("changes", "changed"),
    [
        ({"seed": 1}, {"partition", "weights", "cohorts", "batches"}),
        ({"partition_seed": 1}, {"partition"}),
        ({"init_seed": 1}, {"weights"}),
        ({"partition_seed": 0, "init_seed": 0}, set()),
        ({"seed": 1, "partition_seed": 0}, {"weights", "cohorts", "batches"}),
        ({"seed": 1, "init_seed": 0}, {"partition", "cohorts", "batches"}),
        ({"algorithm": "scaffold + gcfed"}, set()),
        ({"algorithm": "fedadam", "lr": 0.5, "rounds": 7}, set()),
    ],
)
def test_each_seed_draws_its_own_thing(changes, changed):
    base, other = drawn(), drawn(**changes)
    assert {name for name in base if base[name] != other[name]} == changed


def test_train_loss_is_without_penalties(tmp_path):
    """Two steps: both methods see the same losses, and FedProx a large penalty at the second."""
    settings = {"epochs": None, "steps": 2, "lr": 1e-6, "rounds": 1}
    run(tiny(**settings), tmp_path / "a")
    run(tiny(**settings, algorithm="fedprox(mu=1e11)"), tmp_path / "b")
    (plain,), (penalised,) = lines(tmp_path / "a"), lines(tmp_path / "b")
    assert penalised["train_loss"] == plain["train_loss"]
    assert penalised["update_norm"] > 10 * plain["update_norm"]


def test_train_loss_is_the_mean_over_clients_of_the_mean_over_steps(tmp_path):
    config = tiny(rounds=1, epochs=None, steps=1, batch_size=1000, fill="none")
    run(config, tmp_path / "a")
    (line,) = lines(tmp_path / "a")
    setup = build(config).setup
    model, losses = setup.model.module(start(setup).server.params, {}), []
    for k in line["clients"]:
        part = setup.data.parts[k]
        with torch.no_grad():
            losses.append(
                nn.functional.cross_entropy(model(setup.data.x[part]), setup.data.y[part])
            )
    assert line["train_loss"] == pytest.approx(torch.stack(losses).mean().item(), rel=1e-5)


def test_update_norm_and_the_start_from_given_weights(tmp_path):
    torch.manual_seed(0)
    shapes = {"fc1.weight": (8, 64), "fc1.bias": (8,), "fc2.weight": (10, 8), "fc2.bias": (10,)}
    begin = {name: 0.1 * torch.randn(shape) for name, shape in shapes.items()}
    save_file(begin, tmp_path / "begin.safetensors")
    init = str(tmp_path / "begin.safetensors")
    run(tiny(rounds=1, init=init, algorithm="fedadam(lr=0.01)", server_lr=0.5), tmp_path / "a")
    end = load_file(tmp_path / "a" / "model.safetensors")
    square = sum((end[n].double() - begin[n].double()).square().sum().item() for n in begin)
    (line,) = lines(tmp_path / "a")
    assert line["update_norm"] == pytest.approx(square**0.5, rel=1e-6)
    assert line["weights_sha256"] == weights_sha256(end)
    made = json.loads((tmp_path / "a" / "provenance.json").read_text())
    assert made["initial_weights_sha256"] == weights_sha256(begin)


NORMED, STATISTICS = 4 * (2 * 64 + 64 * 10 + 10), 4 * 2 * 64 + 8


@pytest.mark.parametrize(
    ("changes", "up", "down"),
    [
        ({}, MLP, MLP),
        ({"algorithm": "gcfed"}, MLP, MLP),
        ({"algorithm": "scaffold"}, 2 * MLP, 2 * MLP),
        ({"algorithm": "scaffold + gcfed"}, 2 * MLP, 2 * MLP),
        ({"model": "normed"}, NORMED + STATISTICS, NORMED + STATISTICS),
        ({"model": "normed", "buffers": "local"}, NORMED, NORMED),
        ({"model": "normed", "algorithm": "scaffold"}, 2 * NORMED + STATISTICS, None),
    ],
)
def test_bytes_by_hand(tmp_path, changes, up, down):
    MODELS.register("normed")(Normed)
    summary = run(tiny(**changes, rounds=2), tmp_path / "a")
    for line in lines(tmp_path / "a"):
        assert (line["bytes_up"], line["bytes_down"]) == (3 * up, 3 * (down or up))
    assert summary["bytes_up"] == 2 * 3 * up


def test_buffers_kept_local_are_tested_client_by_client(tmp_path):
    MODELS.register("normed")(Normed)
    config = tiny(model="normed", buffers="local", rounds=3)
    seen = []
    experiment = build(config)
    for result in package.simulate(experiment.setup):
        seen.append((experiment.record(result), result))
    line, result = seen[-1]
    assert line["tested"] == "cohort"
    scores, test = [], experiment.dataset.test
    for k in result.ids:
        mine = result.clients.buffers.find(k)
        module = experiment.setup.model.module(result.server.params, mine)
        with torch.no_grad():
            scores.append((module(test.x).argmax(1) == test.y).double().mean().item())
    assert line["test_accuracy"] == pytest.approx(np.mean(scores))
    assert len(set(scores)) > 1
    run(tiny(model="normed", rounds=3), tmp_path / "b")
    assert lines(tmp_path / "b")[-1]["tested"] == "global"


def test_lines_are_there_while_the_run_goes_on(tmp_path):
    seen, path = [], tmp_path / "a"

    def look():
        seen.append((len(lines(path)), json.loads((path / "summary.json").read_text())["status"]))

    def observe(found):
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()

    run(tiny(rounds=3), path, observe)
    assert seen == [(1, "running"), (2, "running"), (3, "running")]


def test_what_is_observed(tmp_path):
    seen = []
    configs = [tiny(seed=s) for s in (4, 5)]
    run_together(configs, [tmp_path / "a", tmp_path / "b"], seen.append)
    for i, name in enumerate("ab"):
        assert [found[i] for found in seen] == lines(tmp_path / name)


def test_a_run_of_seeds_is_each_of_them_alone(tmp_path):
    configs = [tiny(seed=s, algorithm="fedvarp", validation=0.1) for s in (0, 1)]
    run_together(configs, [tmp_path / "a", tmp_path / "b"])
    run(configs[1], tmp_path / "c")
    assert lines(tmp_path / "b") == lines(tmp_path / "c")


def test_summary_and_provenance(tmp_path):
    config = tiny(rounds=12, validation=0.2)
    summary = run(config, tmp_path / "a")
    found = lines(tmp_path / "a")
    assert json.loads((tmp_path / "a" / "summary.json").read_text()) == summary
    assert summary["status"] == "finished"
    assert summary["rounds"] == 12
    last = [line["test_accuracy"] for line in found[-10:]]
    assert summary["test_accuracy"] == pytest.approx(np.mean(last))
    assert summary["test_accuracy_last"] == last[-1]
    last = [line["validation_accuracy"] for line in found[-10:]]
    assert summary["validation_accuracy"] == pytest.approx(np.mean(last))
    best = max(found, key=lambda line: line["validation_accuracy"])  # not on the test set
    assert summary["best_round"] == best["round"]
    assert summary["test_accuracy_best"] == best["test_accuracy"]
    assert summary["test_loss"] == found[-1]["test_loss"]
    assert summary["weights_sha256"] == found[-1]["weights_sha256"]
    made = load_run(tmp_path / "a").provenance
    assert made["torch"] == torch.__version__
    assert made["device"] == "cpu"
    assert (made["engine"], made["engine_reason"]) == ("sequential", "as set")
    assert made["gcfed"]
    assert "commit" in made
    assert made["partition"]["clients"] == 10
    timings = load_run(tmp_path / "a").timings
    assert [t["round"] for t in timings] == list(range(12))
    assert all(t["seconds"] > 0 for t in timings)


def test_auto_says_what_it_chose_and_the_config_keeps_it(tmp_path):
    run(tiny(engine="auto", device="auto"), tmp_path / "a")
    loaded = load_run(tmp_path / "a")
    assert loaded.provenance["engine"] == loaded.config.engine != "auto"
    assert loaded.provenance["engine_reason"] != "as set"
    assert loaded.config.device == "cuda" if torch.cuda.is_available() else "cpu"


def test_the_weights_load_with_one_call_and_predict_in_one_line(tmp_path):
    config = tiny(
        dataset="fashion10k",
        model="mlp(hidden=(4,))",
        epochs=None,
        steps=2,
        rounds=1,
        lr=0.1,
    )
    experiment = build(config)
    *_, result = package.simulate(experiment.setup)
    run(config, tmp_path / "a")
    images = experiment.dataset.test.x
    wanted = predict(experiment.setup, result.server, images).logits
    before = torch.get_rng_state()
    assert torch.equal(load_run(tmp_path / "a").predict(images), wanted.argmax(1))
    assert torch.equal(torch.get_rng_state(), before)
    torch.testing.assert_close(load_run(str(tmp_path / "a")).logits(images.numpy()), wanted)
    torch.testing.assert_close(load_run(tmp_path / "a").logits(images / 255), wanted)
    with pytest.warns(UserWarning, match="these images are floats up to 255, .* divide by 255"):
        load_run(tmp_path / "a").predict(images.float())
    module = MODELS["mlp"]((1, 28, 28), 10, hidden=(4,))
    load_model(module, tmp_path / "a" / "model.safetensors")
    shown = experiment.dataset.transform(images, None)
    torch.testing.assert_close(module(shown).detach(), wanted)
    assert wanted.argmax(1).unique().numel() > 1


def test_tied_weights_are_saved_once_and_load(tmp_path):
    @MODELS.register("tied")
    def tied(shape, num_classes):
        """Two layers that share a weight."""
        net = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 10))
        net[2].weight = net[1].weight
        return net

    run(tiny(model="tied"), tmp_path / "a")
    module, path = tied((1, 8, 8), 10), tmp_path / "a" / "model.safetensors"
    load_model(module, path)
    again = load_run(tmp_path / "a").model
    x = torch.randn(5, 1, 8, 8)
    torch.testing.assert_close(again(x), module(x))
    run(tiny(model="tied", init=str(path), rounds=1), tmp_path / "b")
    made = load_run(tmp_path / "b").provenance
    assert made["initial_weights_sha256"] == lines(tmp_path / "a")[-1]["weights_sha256"]


class Halve:
    """A transform that is code."""

    def __call__(self, x, key):
        return x / 2


class Remembering(nn.Module):
    """Keeps what it learns of its inputs out of its state; its first layer is of half precision."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.first = nn.Linear(inputs, 4).to(torch.bfloat16)
        self.last = nn.Linear(4, outputs)
        self.register_buffer("mean", torch.zeros(inputs), persistent=False)
        self.register_buffer("scale", torch.ones(1), persistent=False)

    def forward(self, x):
        x = x.flatten(1)
        if self.training:
            self.mean = 0.5 * self.mean + 0.5 * x.mean(0) + 1
        hidden = self.first((self.scale * (x - self.mean)).to(torch.bfloat16))
        return self.last(torch.tanh(hidden).to(self.last.weight.dtype))


def test_all_that_training_changed_is_loaded_again(tmp_path):
    MODELS.register("remembering")(lambda shape, classes: Remembering(math.prod(shape), classes))
    run(tiny(model="remembering", engine="sequential"), tmp_path / "a")
    loaded = load_run(tmp_path / "a")
    weights = load_file(tmp_path / "a" / "model.safetensors")
    assert "mean" in weights and "scale" not in weights  # which is as it was
    assert {n: w.dtype for n, w in loaded.model.state_dict().items()} == {
        n: w.dtype for n, w in weights.items()
    }
    test = DATASETS.parse(TINY["dataset"])(None).test
    hits = loaded.predict(test.x) == test.y
    assert hits.double().mean().item() == lines(tmp_path / "a")[-1]["test_accuracy"]
    assert verify(tmp_path / "a").holds


def test_whole_numbers_are_predicted_as_numbers(tmp_path):
    @DATASETS.register("whole")
    def whole(root):
        x = torch.arange(200.0).reshape(100, 2) / 200
        examples = Examples(x, torch.arange(100) % 2)
        return Dataset(train=examples, test=examples, num_classes=2)

    @MODELS.register("one_output")
    def one_output(shape, num_outputs):
        return nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))

    run(tiny(dataset="whole", model="one_output", loss="mse", partition="iid"), tmp_path / "a")
    found, x = load_run(tmp_path / "a"), torch.ones(3, 2)
    assert torch.equal(found.predict(x), found.logits(x))


@pytest.mark.parametrize("transform", [Halve(), ImageTransform((0.5,), (2.0,)), None])
def test_a_loaded_run_reads_examples_as_they_were_read(tmp_path, transform):
    @DATASETS.register("halved")
    def halved(root):
        torch.manual_seed(0)
        x, y = torch.randn(80, 1, 8, 8), torch.arange(80) % 4
        examples = Examples(x, y)
        return Dataset(train=examples, test=examples, num_classes=4, transform=transform)

    config = tiny(dataset="halved", rounds=1)
    experiment = build(config)
    *_, result = package.simulate(experiment.setup)
    run(config, tmp_path / "a")
    x = experiment.dataset.test.x
    wanted = predict(experiment.setup, result.server, x).logits
    torch.testing.assert_close(load_run(tmp_path / "a").logits(x), wanted)


def test_a_client_that_is_not_finite_is_dropped_and_named(tmp_path):
    @DATASETS.register("poisoned")
    def poisoned(root):
        """Client 2 holds numbers that overflow."""
        torch.manual_seed(0)
        x, y = torch.randn(40, 4), torch.arange(40) % 2
        x[20:30] = 1e30
        keys = {"client": np.arange(40) // 10}
        examples = Examples(x, y)
        return Dataset(train=examples, test=Examples(x[:9], y[:9]), num_classes=2, keys=keys)

    settings = {"dataset": "poisoned", "partition": "by(key='client')", "clients": 4, "lr": 1e9}
    settings |= {"cohort": 4, "model": "mlp(hidden=())", "batch_size": 5, "rounds": 2}
    run(tiny(**settings, on_nonfinite="drop"), tmp_path / "a")
    for line in lines(tmp_path / "a"):
        assert line["dropped"] == [2]
        assert line["clients"] == [0, 1, 2, 3]
        assert line["train_loss"] is not None
        assert line["update_norm"] > 0
    summary = run(tiny(**settings), tmp_path / "b")
    assert (summary["status"], summary["round"]) == ("failed", 0)
    assert "[2]" in summary["reason"]
    alone = {**settings, "partition": "lonely", "clients": 1, "cohort": 1}
    package.PARTITIONS.register("lonely")(
        lambda pool, n, rng: package.Partition.of([torch.arange(20, 30)])
    )
    run(tiny(**alone, on_nonfinite="drop"), tmp_path / "c")
    for line in lines(tmp_path / "c"):  # nobody is left
        assert line["train_loss"] is None
        assert line["update_norm"] == 0


def test_what_breaks_a_run_is_written_down(tmp_path):
    @MODELS.register("drawing")
    def drawing(shape, num_classes):
        """Draws from torch's generator in training, but not yet when it is tried."""
        calls = []

        class Drawing(nn.Sequential):
            def forward(self, x):
                calls.append(self.training)
                drawn = torch.ones(2).multinomial(1) if sum(calls) > 12 else 0
                return super().forward(x) + drawn

        return Drawing(nn.Flatten(), nn.Linear(64, num_classes))

    with pytest.raises(InputError, match="global generator"):
        run(tiny(model="drawing"), tmp_path / "a")
    summary = load_run(tmp_path / "a").summary
    assert summary["status"] == "failed"
    assert "global generator" in summary["reason"]


def test_what_is_no_run(tmp_path):
    with pytest.raises(InputError, match=r"is not a run: it holds no config\.toml"):
        load_run(tmp_path)
    run(tiny(), tmp_path / "a")
    loaded = load_run(tmp_path / "a")
    (tmp_path / "a" / "model.safetensors").unlink()
    with pytest.raises(InputError, match="holds no weights yet"):
        loaded.predict(torch.zeros(1, 1, 8, 8))
    with (tmp_path / "a" / "rounds.jsonl").open("a") as file:
        file.write('{"round": 2, "test_acc')  # torn
    assert len(loaded.records) == 2
    (tmp_path / "a" / "summary.json").write_text("{")
    with pytest.raises(InputError, match=r"summary\.json cannot be read"):
        load_run(tmp_path / "a").summary  # noqa: B018


def test_nothing_is_made_when_one_of_several_is_taken(tmp_path):
    (tmp_path / "b").mkdir()
    with pytest.raises(InputError, match="b exists already"):
        run_together([tiny(), tiny(seed=1)], [tmp_path / "a", tmp_path / "b"])
    assert list(tmp_path.iterdir()) == [tmp_path / "b"]
    assert list((tmp_path / "b").iterdir()) == []


def test_files_are_whole_or_not_there(tmp_path):
    from gcfed.files import write_atomically, write_json, write_text

    path = tmp_path / "a.json"
    write_text(path, "old")

    def half(temporary: Path):
        temporary.write_text("ne")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, half)
    with pytest.raises(ValueError, match="JSON"):
        write_json(path, float("nan"))
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    write_json(path, {"a": 1})
    assert json.loads(path.read_text()) == {"a": 1}
    (tmp_path / "plain").touch()
    assert path.stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_data_that_runs_share_are_hashed_once_for_all(tmp_path, monkeypatch):
    asked = []

    def counted(dataset):
        asked.append(dataset)
        return fingerprint(dataset)

    monkeypatch.setattr(fingerprint_module, "fingerprint", counted)
    seeds = [tiny(seed=seed, rounds=1) for seed in range(3)]
    run_together(seeds, [tmp_path / str(seed) for seed in range(3)])
    assert len(asked) == 1
    shas = [load_run(tmp_path / str(seed)).identity["data_sha256"] for seed in range(3)]
    assert shas == [fingerprint(asked[0])] * 3


def test_data_are_hashed_beside_the_trial_of_the_model(tmp_path, monkeypatch):
    """The hash waits here for the trial to have begun; a store asks for it twice."""
    tried, by = threading.Event(), []
    try_model = build_module.try_model

    def begun(*arguments):
        tried.set()
        return try_model(*arguments)

    def waiting(dataset):
        assert tried.wait(60)
        by.append(threading.current_thread())
        return fingerprint(dataset)

    monkeypatch.setattr(build_module, "try_model", begun)
    monkeypatch.setattr(fingerprint_module, "fingerprint", waiting)
    made = package.RunStore(tmp_path).run(tiny(rounds=1))
    assert made.identity["data_sha256"] == fingerprint(build(tiny()).dataset)
    assert len(by) == 1 and by[0] is not threading.main_thread() and not by[0].is_alive()


def test_a_hash_that_fails_says_so_where_it_is_asked_for(monkeypatch):
    def broken(dataset):
        raise InputError("no such bytes")

    monkeypatch.setattr(fingerprint_module, "fingerprint", broken)
    made = build(tiny(), hashed=True)
    with pytest.raises(InputError, match="no such bytes"):
        made.data.sha256()
