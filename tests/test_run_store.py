"""The run store: which runs are one, found when asked for again."""

import json
import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from killing import KILLED, ended, forked, killed_at_write
from running import TINY, flags, lines, tiny
from safetensors.torch import save_file
from torch import nn

from gcfed import MODELS, Dataset, Examples, InputError, RunStore, load_run, run
from gcfed.config import plugins
from gcfed.config.build import build
from gcfed.config.fingerprint import SAMPLE, fingerprint
from gcfed.config.identity import LAST_BITS, WAYS, digest, identity
from gcfed.config.settings import Config
from gcfed.results.seal import SEAL

pytest_plugins = ["running"]
pytestmark = pytest.mark.usefixtures("float32", "registries")


def which(**changes):
    return digest(identity(build(tiny(**changes))))


OTHERS = {
    "algorithm": "fedprox(mu=0.2)",
    "dataset": "synthetic(train=210, test=50)",
    "validation": 0.1,
    "model": "mlp(hidden=(9,))",
    "partition": "iid",
    "clients": 9,
    "cohort": 4,
    "epochs": 2,
    "batch_size": 11,
    "fill": "none",
    "lr": 0.02,
    "momentum": 0.5,
    "weight_decay": 0.1,
    "lr_schedule": "cosine",
    "server_lr": 0.5,
    "weighting": "examples",
    "buffers": "local",
    "on_nonfinite": "drop",
    "seed": 1,
    "partition_seed": 1,
    "init_seed": 1,
    "loss": "cross_entropy(label_smoothing=0.1)",
    "metrics": ("loss",),
    "evaluate_every": 2,
    "sampler": "examples",
    "availability": "daily",
    "faults": "random(dropout=0.5)",
    "probes": ("drift",),
}
SAME = [
    {"rounds": 7},
    {"engine": "vectorized"},
    {"engine": "auto"},
    {"precision": "float32"},
    {"device": "cpu"},
    {"memory": "disk"},
    {"chunk": 2},
    {"checkpoint_every": 3, "checkpoint_minutes": 1.0},
    {"algorithm": "fedavg "},
    {"momentum": 0.9},
    {"partition_seed": 0, "init_seed": 0},
    {"partition": "dirichlet"},
    {"data_dir": "/nowhere"},
    {"track": ()},
]


def test_what_makes_a_run_another_one():
    base = which()
    found = {key: which(**{key: value}) for key, value in OTHERS.items()}
    assert len({base, *found.values()}) == 1 + len(OTHERS)
    for changes in SAME:
        assert which(**changes) == base, changes
    tried = {*OTHERS, *(key for changes in SAME for key in changes)}
    rest = {"init", "plugins", "steps", "optimizer", "lr_decay"}
    assert tried | rest == set(Config.model_fields)
    assert which(epochs=None, steps=3) != which(epochs=None, steps=4) != base
    assert which(optimizer="adamw") != base
    assert which(lr_schedule="exponential", lr_decay=0.9) != which(
        lr_schedule="exponential", lr_decay=0.8
    )
    assert LAST_BITS.isdisjoint(WAYS)


def test_a_cosine_schedule_depends_on_the_rounds():
    assert which(lr_schedule="cosine") != which(lr_schedule="cosine", rounds=7)


def test_given_weights_count_by_what_they_are(tmp_path):
    shapes = {"fc1.weight": (8, 64), "fc1.bias": (8,), "fc2.weight": (10, 8), "fc2.bias": (10,)}
    weights = {name: torch.ones(shape) for name, shape in shapes.items()}
    first, second = (str(tmp_path / f"{n}.safetensors") for n in "ab")
    save_file(weights, first)
    shutil.copy(first, second)
    one = which(init=first)
    assert one == which(init=second) == which(init=first, init_seed=5) != which()
    save_file({**weights, "fc2.bias": torch.zeros(10)}, second)
    assert which(init=second) != one


def test_plugins_count_by_their_source(tmp_path, monkeypatch):
    def made(name, text):
        monkeypatch.setattr(plugins, "_loaded", {})
        (tmp_path / name).write_text(text)
        return which(plugins=(str(tmp_path / name),))

    one = made("a.py", "X = 1\n")
    assert one == made("b.py", "X = 1\n") != which()
    assert made("a.py", "X = 2\n") != one


def test_code_that_a_program_registers_counts(tmp_path, monkeypatch):
    """As that of an installed package does, which no setting names."""
    (tmp_path / "mine.py").write_text("X = 1\n")
    module = plugins.load_plugin(tmp_path / "mine.py")

    def mine(shape, num_classes):
        return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))

    mine.__module__ = module.__name__
    MODELS.register("mine")(mine)
    one = which(model="mine")
    (tmp_path / "mine.py").write_text("X = 2\n")
    assert which(model="mine") != one


def test_data_count_by_what_they_are(tmp_path, monkeypatch):
    x = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    path = tmp_path / "mine.npz"

    def made(x):
        np.savez(path, x_train=x, y_train=np.arange(60) % 3, x_test=x[:6], y_test=np.arange(6) % 3)
        return which(dataset=f"npz(path='{path}')", clients=3)

    one = made(x)
    assert made(x) == one
    x[59, 2] += 1
    assert made(x) != one


def test_a_fingerprint_sees_all_of_small_data_and_some_of_large():
    y = torch.arange(10) % 2

    def made(x, keys=None, y=y):
        return Dataset(train=Examples(x, y), test=Examples(x, y), num_classes=2, keys=keys or {})

    def moved(i, by=1.0):
        x = torch.zeros(10, 4)
        x[i, 3] += by
        return fingerprint(made(x))

    assert len({moved(i) for i in range(10)}) == 10
    assert moved(3, 0.0) == moved(4, 0.0)
    names = [np.array(list("abcdefghij")), np.array(list("abcdefghiz"))]
    names += [name.astype(object) for name in names]
    assert len({fingerprint(made(torch.zeros(10, 4), {"who": n})) for n in names}) == 4
    again = np.array(["".join("ab") for _ in range(10)], object)
    twice = {fingerprint(made(torch.zeros(10, 4), {"who": again.copy()})) for _ in range(2)}
    assert len(twice) == 1
    large = torch.zeros(SAMPLE // 2**20 + 8, 2**20, dtype=torch.uint8)
    labels = torch.zeros(len(large), dtype=torch.int64)
    start = time.perf_counter()
    one = fingerprint(made(large, y=labels))
    assert time.perf_counter() - start < 5
    large[0, 0] = 1
    assert fingerprint(made(large, y=labels)) != one


@pytest.fixture
def store(tmp_path):
    return RunStore(tmp_path / "runs")


def forbid_training(monkeypatch):
    def forbidden(*_, **__):
        raise AssertionError("a run was done again")

    monkeypatch.setattr("gcfed.runs.train.simulate_together", forbidden)


def test_a_run_is_found_when_it_is_asked_for_again(store, monkeypatch):
    assert store.find(tiny()) is None
    first = store.run(tiny())
    forbid_training(monkeypatch)
    for config in (tiny(), tiny(engine="vectorized"), tiny(rounds=1)):
        again = store.run(config)
        assert again.path == first.path == store.find(config).path
        assert again.summary["rounds"] == config.rounds
    assert [run.path for run in store.runs()] == [first.path]
    name = first.path.name
    assert name.startswith("fedavg-synthetic-train-200-test-50-mlp-hidden-8-seed-0-")
    assert first.provenance["identity_sha256"].startswith(name[-10:])


def rewritten(path, **changes):
    """What a run says of itself, changed by hand."""
    made = json.loads((path / "provenance.json").read_text())
    (path / "provenance.json").write_text(json.dumps({**made, **changes}))


def test_a_recorded_hash_is_not_trusted(store, monkeypatch):
    """The identity beside it is."""
    first = store.run(tiny())
    rewritten(first.path, identity_sha256="0" * 64)
    forbid_training(monkeypatch)
    assert store.run(tiny()).path == first.path
    rewritten(first.path, identity={**first.provenance["identity"], "lr": 0.5})
    assert store.find(tiny()) is None


@pytest.mark.parametrize("damage", [{"identity": None}, {"identity": [1]}, {"identity": {}}, None])
def test_a_run_whose_identity_is_damaged_is_no_run_and_breaks_nothing(store, damage):
    bad, good = store.run(tiny()).path, store.run(tiny(algorithm="gcfed")).path
    if damage is None:
        (bad / "provenance.json").write_text("[]")
    else:
        rewritten(bad, **damage)
    assert store.find(tiny()) is None
    assert store.find(tiny(algorithm="gcfed")).path == good
    with pytest.raises(InputError, match=r"is damaged: its provenance\.json .* move it out"):
        store.run(tiny())


def test_a_folder_is_read_once_however_many_runs_are_looked_up(store, monkeypatch):
    reads = []
    made = store.run(tiny()).provenance
    for i in range(20):
        folder = store.folder / f"old-seed-0-{i:010}"
        folder.mkdir()
        other = {**made["identity"], "cohort": i + 30}
        (folder / "provenance.json").write_text(json.dumps({"identity": other}))
    read_text = Path.read_text

    def counted(path, *args, **options):
        reads.append(path)
        return read_text(path, *args, **options)

    monkeypatch.setattr(Path, "read_text", counted)
    for i in range(20):
        assert store.find_sha256(f"{i:064}", 0) is None
    assert len(reads) == len(set(reads)) == 20  # its own was read before
    reads.clear()
    assert store.find_sha256(made["identity_sha256"], 0) is not None
    assert store.find_sha256(made["identity_sha256"], 1) is None
    changed = {**made["identity"], "cohort": 77}
    (folder / "provenance.json").write_text(json.dumps({"identity": changed}))
    (folder / "summary.json").write_text("{}")
    (folder / "config.toml").write_text("")
    assert reads == []
    assert store.find_sha256(digest(changed), 0).path == folder
    assert reads == [folder / "provenance.json"]


def test_more_rounds_go_on(store, tmp_path):
    run(tiny(algorithm="scaffold", rounds=5), tmp_path / "straight")
    first = store.run(tiny(algorithm="scaffold", rounds=3))
    told = []
    config = tiny(algorithm="scaffold", rounds=5, engine="vectorized")
    again = store.run(config, lambda found: told.append(found[0]["round"]))
    assert again.path == first.path
    assert told == [3, 4]
    assert again.config.engine == "sequential"  # as it began
    assert (again.path / "rounds.jsonl").read_bytes() == (
        tmp_path / "straight" / "rounds.jsonl"
    ).read_bytes()
    assert again.config.rounds == again.summary["rounds"] == 5


def test_fewer_rounds_are_those_of_the_longer_run(store, tmp_path):
    """What is compared after as many rounds must have had as many."""
    long, short = store.run(tiny(rounds=4)), store.run(tiny(rounds=2))
    run(tiny(rounds=2), tmp_path / "short")
    alone = load_run(tmp_path / "short")
    assert (short.path, short.records) == (long.path, alone.records)
    assert {**short.summary, SEAL: alone.summary[SEAL]} == alone.summary
    assert short.config.rounds == short.num_rounds == 2
    assert long.until(4) is long and len(short.timings) == 2
    with pytest.raises(InputError, match="the weights after 4 rounds, not 2"):
        short.model  # noqa: B018


def test_an_engine_that_needs_a_gpu_leaves_nothing_behind(gcfed, tmp_path):
    answer = gcfed("run", *flags(engine="streams"))
    assert answer.code == 2 and "needs a CUDA device" in answer.err
    assert not (tmp_path / "runs").exists()


def test_a_model_that_cannot_read_the_data_leaves_nothing_behind(gcfed, tmp_path):
    @MODELS.register("narrow")
    def narrow(shape, num_classes):
        return nn.Sequential(nn.Flatten(), nn.Linear(3, num_classes))

    @MODELS.register("few")
    def few(shape, num_classes):
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 2))

    for model, words in (("narrow", "cannot read an example of shape"), ("few", "gives 2 logits")):
        answer = gcfed("run", *flags(model=model))
        assert answer.code == 2 and words in answer.err and "Traceback" not in answer.err
    assert not (tmp_path / "runs").exists()


def test_a_cosine_schedule_of_more_rounds_is_another_run(store):
    paths = {store.run(tiny(lr_schedule="cosine", rounds=n)).path for n in (2, 3)}
    assert len(paths) == 2


def test_seeds_go_on_with_those_they_began_with(store, tmp_path):
    """Asked for one of three that were trained together, and for a new one beside it."""

    def seeds(*numbers, rounds):
        return [
            tiny(seed=s, rounds=rounds, algorithm="fedvarp", engine="vectorized") for s in numbers
        ]

    straight = RunStore(tmp_path / "straight").run_together(seeds(0, 1, 2, rounds=4))
    three = store.run_together(seeds(0, 1, 2, rounds=2))
    told = []
    one, new = store.run_together(
        seeds(1, 7, rounds=4), lambda found: told.append({i: v["round"] for i, v in found.items()})
    )
    assert one.path == three[1].path
    assert told == [{0: 2}, {0: 3}, {1: 0}, {1: 1}, {1: 2}, {1: 3}]
    for mine, other in zip(three, straight, strict=True):
        assert (mine.path / "rounds.jsonl").read_bytes() == (
            other.path / "rounds.jsonl"
        ).read_bytes()
    assert new.provenance["seeds_together"] == [7]
    assert one.provenance["seeds_together"] == [0, 1, 2]


def test_a_killed_run_goes_on_when_it_is_asked_for_again(store, tmp_path):
    config = tiny(algorithm="scaffold", rounds=4, checkpoint_every=1)
    run(config, tmp_path / "straight")
    for number in (3, 5, 8, 12, 20, 35, 50):
        assert killed_at_write(lambda: store.run(config), number) == KILLED
    assert store.run(config).summary["status"] == "finished"
    (path,) = store.folder.iterdir()
    assert (path / "rounds.jsonl").read_bytes() == (
        tmp_path / "straight" / "rounds.jsonl"
    ).read_bytes()


@pytest.mark.parametrize("content", [None, "{"])
@pytest.mark.filterwarnings("ignore:.*the last checkpoint makes it again")
def test_a_run_whose_summary_is_lost_is_not_trained_again(store, content):
    told = []
    path = store.run(tiny(), told.append).path
    kept = (path / "summary.json").read_bytes()
    (path / "summary.json").unlink()
    if content is not None:
        (path / "summary.json").write_text(content)
    assert store.run(tiny(), told.append).path == path
    assert (path / "summary.json").read_bytes() == kept and len(told) == 2


def test_a_run_that_diverged_is_found_as_that(store, monkeypatch):
    config = tiny(lr=1e30)
    assert store.run(config).summary["status"] == "failed"
    forbid_training(monkeypatch)
    assert store.run(config).summary["status"] == "failed"


def test_a_run_that_is_being_written_is_not_touched(store):
    config, said = tiny(rounds=2), []

    def other():
        from gcfed import lock

        lock._held.clear()
        try:
            store.run(config)
        except InputError as error:
            (store.folder / "said").write_text(str(error))

    def observe(found):
        if found[0]["round"] == 0:
            assert ended(forked(other)) == 0
            said.append((store.folder / "said").read_text())

    store.run(config, observe)
    assert f"is being written by process {os.getpid()} on " in said[0]


def test_without_out_runs_go_to_the_store(gcfed, tmp_path):
    first = gcfed("run", *flags(rounds=2))
    assert first.code == 0
    (path,) = (tmp_path / "runs").iterdir()
    assert str(path.relative_to(tmp_path)) in first.out
    again = gcfed("run", *flags(rounds=2))
    assert again.out == first.out
    assert "round 1 of" not in again.err
    assert f"found: {path.relative_to(tmp_path)}" in again.err
    assert "found" not in first.err and "trained with" not in again.err
    other = gcfed("run", *flags(rounds=2, engine="vectorized"))
    kept = load_run(path).config.engine
    assert kept != "vectorized" and f"(trained with engine={kept})" in other.err
    assert "went on after 2 rounds: " in gcfed("run", *flags(rounds=3)).err
    more = gcfed("run", *flags(rounds=3), "--json")
    assert json.loads(more.out)["rounds"] == len(lines(path)) == 3
    assert gcfed("run", *flags(rounds=3), "--seeds", "0,1").code == 0
    assert len(list((tmp_path / "runs").iterdir())) == 2
    assert gcfed("run", *flags(), "--store", "elsewhere").code == 0
    assert len(list((tmp_path / "elsewhere").iterdir())) == 1
    shown = gcfed("show", "runs").out.splitlines()
    assert len(shown) == 4
    diverged = gcfed("run", *flags(lr=1e30))
    assert diverged.code == gcfed("run", *flags(lr=1e30)).code == 3
    assert TINY["rounds"] == 2


@pytest.mark.filterwarnings("always:.*is left out")
def test_a_damaged_run_does_not_hide_the_others(store, gcfed):
    """It is named, and the others are shown; asked for itself, it is an error."""
    good, bad = store.run(tiny()), store.run(tiny(seed=1))
    (bad.path / "summary.json").write_text("{")
    for command in ("show", "compare"):
        answer = gcfed(command, store.folder)
        assert answer.code == 0 and "fedavg" in answer.out
        assert f"{bad.path.name} is left out" in answer.err
    assert gcfed("show", bad.path).code == 2
    assert [run.path for run in store.runs()] == [good.path]
