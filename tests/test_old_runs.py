"""Run directories that were written before identities left out defaults."""

import json
import shutil
from pathlib import Path

import pytest

import gcfed
from gcfed import MODELS, Config, RunStore, load_run
from gcfed.results.groups import group
from gcfed.sweeps.sweep import Sweep

pytest_plugins = ["running"]
pytestmark = [
    pytest.mark.usefixtures("float32"),
    pytest.mark.filterwarnings("ignore:.*last bits may differ"),  # of another torch, or device
]

OLD = Path(__file__).parent / "old_runs"
NAMES = sorted(path.name for path in OLD.iterdir() if (path / "config.toml").is_file())
ASKED = {
    "dataset": "synthetic(train=60, test=20, shape=(1, 4, 4))",
    "model": "mlp(hidden=(4,))",
    "clients": 6,
    "cohort": 2,
    "rounds": 2,
    "epochs": 1,
    "batch_size": 5,
    "engine": "sequential",
    "device": "cpu",
}


@pytest.fixture
def store(tmp_path):
    return RunStore(shutil.copytree(OLD, tmp_path / "runs"))


@pytest.fixture
def no_training(monkeypatch):
    def forbidden(*_, **__):
        raise AssertionError("a run was done again")

    monkeypatch.setattr("gcfed.runs.train.simulate_together", forbidden)


def asked(algorithm, seed=0, **changes):
    return Config(**{**ASKED, "algorithm": algorithm, "seed": seed, **changes})


PROX = asked(
    "fedprox(mu=0.5)",
    partition="shards(per_client=3)",
    sampler="examples",
    availability="daily(period=4)",
    weight_decay=0.001,
)
COSINE = asked("fedavg", validation=0.2, lr_schedule="cosine", rounds=3)


def rounds_of(path):
    return (path / "rounds.jsonl").read_text().splitlines()


@pytest.mark.parametrize("name", NAMES)
def test_an_old_run_is_found_by_its_own_config(store, no_training, name):
    path = store.folder / name
    assert store.find(load_run(path).config).path == path
    assert store.run(load_run(path).config).path == path


@pytest.mark.parametrize(
    ("config", "begins"),
    [
        (asked("gcfed"), "gcfed-"),
        (asked("scaffold"), "scaffold-"),
        (PROX, "fedprox-mu-0-5-"),
        (COSINE, "fedavg-"),
        (asked("fedlc + gcfed", seed=1), "fedlc-gcfed-"),
        (asked("fedntd", seed=4), "fedntd-"),
    ],
)
def test_an_old_run_is_found_by_what_a_person_writes(store, no_training, config, begins):
    found = store.run(config)
    assert found.path.name.startswith(begins) and found.path.name in NAMES
    assert found.config.seed == config.seed


OTHERS = {
    "algorithm": "gcfed(lam=0.5)",
    "lr": 0.02,
    "alpha": 0.2,
    "seed": 9,
    "batch_size": 6,
    "model": "mlp(hidden=(5,))",
    "dataset": "synthetic(train=60, test=20, shape=(1, 4, 4), seed=1)",
    "lr_schedule": "cosine",
}


@pytest.mark.parametrize("key", OTHERS)
def test_another_run_is_not_found(store, key):
    assert store.find(asked("gcfed")) is not None
    assert store.find(Config(**{**ASKED, "algorithm": "gcfed", key: OTHERS[key]})) is None


def test_a_cosine_schedule_of_other_length_is_another_run(store):
    assert store.find(COSINE) is not None
    assert store.find(COSINE.model_copy(update={"rounds": 4})) is None


@pytest.mark.parametrize(
    "config", [asked("gcfed"), asked("scaffold"), PROX], ids=lambda c: c.algorithm
)
def test_an_old_run_goes_on_from_its_checkpoint(store, tmp_path, config):
    """With what its clients kept, too: it comes to where one comes that never stopped."""
    folders, before, told = set(store.folder.iterdir()), store.find(config), []
    lines, more = rounds_of(before.path), config.model_copy(update={"rounds": 6})
    after = store.run(more, lambda found: told.append(found[0]["round"]))
    assert after.path == before.path and set(store.folder.iterdir()) == folders
    assert told == [2, 3, 4, 5]
    assert rounds_of(after.path)[:2] == lines
    straight = RunStore(tmp_path / "new").run(more)
    for mine, other in zip(after.records, straight.records, strict=True):
        assert mine["clients"] == other["clients"]
        for key in ("train_loss", "update_norm", "test_loss"):  # their last bits are the machine's
            assert mine[key] == pytest.approx(other[key], rel=1e-4)


@pytest.mark.parametrize(
    "config", [asked("gcfed"), asked("scaffold"), PROX], ids=lambda c: c.algorithm
)
def test_resume_goes_on_with_an_old_run(store, config):
    path = store.find(config).path
    assert gcfed.resume(path, rounds=4)["rounds"] == len(rounds_of(path)) == 4
    assert load_run(path).provenance["resumed"][0]["after_rounds"] == 2


def test_old_runs_that_were_trained_together_go_on_together(store):
    told = []
    configs = [asked("fedlc + gcfed", seed, rounds=3) for seed in (0, 1)]
    found = store.run_together(configs, lambda lines: told.append(sorted(lines)))
    assert told == [[0, 1]]  # one more round, of both
    assert [run.path.name in NAMES for run in found] == [True, True]
    assert [len(rounds_of(run.path)) for run in found] == [3, 3]


def old_grid(**changes):
    return {**json.loads((OLD / "sweeps" / "old" / "sweep.json").read_text())["grid"], **changes}


def test_an_old_sweep_is_found_done(store, monkeypatch):
    sweep = Sweep(old_grid(), store.folder, "cpu", name="old")
    assert [plan.status for plan in sweep.plans] == ["done", "done"]
    monkeypatch.setattr(
        "gcfed.sweeps.sweep.run_jobs", lambda jobs, *_: jobs and pytest.fail("jobs")
    )
    sweep.run()
    assert [state.status for state in sweep.cells] == ["done", "done"]
    recorded = json.loads((OLD / "sweeps" / "old" / "sweep.json").read_text())["cells"]
    assert [[run.path.name for run in state.runs] for state in sweep.cells] == [
        cell["runs"] for cell in recorded
    ]


def test_an_old_sweep_asked_for_more_rounds_goes_on(store):
    sweep = Sweep(old_grid(rounds=3), store.folder, "cpu", name="old")
    assert [plan.left for plan in sweep.plans] == [[1, 1], [1, 1]]
    sweep.run()
    assert [state.status for state in sweep.cells] == ["done", "done"]
    assert {run.path.name for run in sweep.runs} <= set(NAMES)
    assert [len(rounds_of(run.path)) for run in sweep.runs] == [3] * 4


def test_old_and_new_runs_are_one_group(store, monkeypatch):
    """Though the config of a new one has an argument that there was not."""

    def with_more(shape, num_classes, *, hidden: tuple[int, ...] = (64,), colour: str = "blue"):
        return mlp(shape, num_classes, hidden=hidden)

    mlp = MODELS["mlp"]
    with_more.__module__ = mlp.__module__
    monkeypatch.setitem(MODELS._entries, "mlp", with_more)
    old, new = store.find(asked("gcfed")), store.run(asked("gcfed", seed=7))
    assert "colour" in new.config.model and "colour" not in old.config.model
    (both,), notes = group([old, new])
    assert both.seeds == (0, 7) and notes == []
