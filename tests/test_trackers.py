"""Trackers follow runs and never stop them."""

import importlib.util
import json
import sys
import types
import warnings

import pytest
from running import lines, tiny

from gcfed import InputError
from gcfed.runs import trackers
from gcfed.runs.trackers import (
    TRACKERS,
    TrackerWarning,
    Tracking,
    numbers,
    require,
    tracked,
)
from gcfed.runs.train import run_together

pytest_plugins = ["running"]
pytestmark = pytest.mark.usefixtures("float32")


@pytest.fixture
def fakes(monkeypatch):
    """Trackers that write down how they are called, or raise where they are told to."""
    calls, failing = [], {}
    monkeypatch.setattr(TRACKERS, "_entries", dict(TRACKERS._entries))

    def register(name):
        @TRACKERS.register(name)
        class Fake:
            def __init__(self, path):
                self.path = path

            def call(self, method, argument):
                calls.append((name, self.path.name, method, argument))
                if failing.get(name) == method:
                    raise ConnectionError("gone away")

            def start(self, config, known):
                self.call("start", known)
                self.config = config
                return f"{name}-{config.seed}"

            def log(self, line):
                self.call("log", line["round"])

            def finish(self, summary):
                self.call("finish", summary["status"])

    register("one")
    register("two")
    return types.SimpleNamespace(calls=calls, failing=failing)


def tracking_of(tmp_path, chosen=("one", "two"), seeds=(0,), **changes):
    return Tracking(chosen, {tmp_path / f"seed-{s}": tiny(seed=s, **changes) for s in seeds})


def go(tmp_path, chosen=("one", "two"), seeds=(0,), **changes):
    """Tiny runs that are followed."""
    configs = {tmp_path / f"seed-{s}": tiny(seed=s, **changes) for s in seeds}
    with Tracking(chosen, configs) as tracking:
        summaries = run_together(list(configs.values()), list(configs), tracking.beside(None))
        tracking.finish(summaries)
    return summaries


def of(fakes, name, run="seed-0"):
    return [call[2:] for call in fakes.calls if call[:2] == (name, run)]


def test_every_round_of_every_run(fakes, tmp_path):
    go(tmp_path, seeds=(0, 1))
    expected = [("start", None), ("log", 0), ("log", 1), ("finish", "finished")]
    for name in ("one", "two"):
        for run in ("seed-0", "seed-1"):
            assert of(fakes, name, run) == expected
    assert tracked(tmp_path / "seed-1") == {"one": "one-1", "two": "two-1"}


def test_a_resumed_run_is_known(fakes, tmp_path):
    go(tmp_path, ["one"])
    with tracking_of(tmp_path, list(tracked(tmp_path / "seed-0"))) as tracking:
        tracking({0: lines(tmp_path / "seed-0")[1]})
        tracking.finish([{"status": "finished"}])
    assert of(fakes, "one")[4:] == [("start", "one-0"), ("log", 1), ("finish", "finished")]


@pytest.mark.parametrize("method", ["start", "log", "finish"])
def test_one_that_fails_is_left_out_and_the_run_goes_on(fakes, tmp_path, method):
    fakes.failing["one"] = method
    with pytest.warns(TrackerWarning, match="one is left out.*gone away") as caught:
        (summary,) = go(tmp_path)
    assert len(caught) == 1
    assert (summary["status"], summary["rounds"]) == ("finished", 2)
    assert len(lines(tmp_path / "seed-0")) == 2
    assert of(fakes, "one")[-1][0] == method  # and nothing after it
    assert of(fakes, "two") == [("start", None), ("log", 0), ("log", 1), ("finish", "finished")]
    assert set(tracked(tmp_path / "seed-0")) == ({"two"} if method == "start" else {"one", "two"})


def test_its_warning_never_becomes_an_error(fakes, tmp_path):
    fakes.failing["one"] = "log"
    shown = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.showwarning = lambda message, *_: shown.append(str(message))
        (summary,) = go(tmp_path)
    assert summary["status"] == "finished"
    assert len(shown) == 1


def test_one_failure_of_several_runs_is_said_once(fakes, tmp_path):
    fakes.failing["one"] = "log"
    with pytest.warns(TrackerWarning) as caught:
        go(tmp_path, seeds=(0, 1, 2))
    assert len(caught) == 1


def test_numbers_are_those_of_a_run_without_trackers(fakes, tmp_path):
    go(tmp_path / "a")
    go(tmp_path / "b", [])
    first, second = (tmp_path / n / "seed-0" / "rounds.jsonl" for n in "ab")
    assert first.read_bytes() == second.read_bytes()
    assert not (tmp_path / "b" / "seed-0" / "trackers.json").exists()


def test_runs_that_diverge_at_once_are_told(fakes, tmp_path):
    (summary,) = go(tmp_path, ["one"], lr=1e30, rounds=5)
    assert summary["status"] == "failed"
    assert of(fakes, "one")[0] == ("start", None)
    assert of(fakes, "one")[-1] == ("finish", "failed")


def test_an_error_of_the_run_ends_them(fakes, tmp_path):
    path = tmp_path / "seed-0"
    with pytest.raises(ZeroDivisionError), tracking_of(tmp_path, ["one"]) as tracking:
        run_together([tiny()], [path], tracking.beside(lambda found: 1 / 0))
    assert of(fakes, "one") == [("start", None), ("log", 0), ("finish", "failed")]


def test_names_are_checked_at_once():
    with pytest.raises(InputError, match="unknown tracker: 'wandbb'; did you mean 'wandb'"):
        require(["wandbb"])


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
def test_a_package_that_is_missing(name, tmp_path, monkeypatch):
    def missing(module):
        raise ModuleNotFoundError(module)

    monkeypatch.setattr(trackers, "import_module", missing)
    with pytest.raises(InputError, match=rf"{name} needs .*pip install 'gcfed\[trackers\]'"):
        require([name])
    with pytest.warns(TrackerWarning, match=f"{name} is left out.*pip install"):  # of a resumed run
        (summary,) = go(tmp_path, [name])
    assert summary["status"] == "finished"


def test_a_folder_of_results_is_no_package(tmp_path, monkeypatch):
    if "wandb" in sys.modules or importlib.util.find_spec("wandb"):
        pytest.skip("the package is there")
    (tmp_path / "wandb").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match="wandb needs its package"):
        require(["wandb"])
    sys.modules.pop("wandb")


def test_a_tracker_that_is_missing_once_is_still_known_later(fakes, tmp_path):
    go(tmp_path)
    fakes.failing["one"] = "start"
    with tracking_of(tmp_path) as tracking, pytest.warns(TrackerWarning, match="one is left out"):
        tracking({0: lines(tmp_path / "seed-0")[1]})
    assert tracked(tmp_path / "seed-0") == {"one": "one-0", "two": "two-0"}


def test_numbers_of_a_line():
    line = {"round": 3, "test_loss": None, "lr": 0.5, "clients": [4, 5], "tested": "global"}
    assert numbers(line) == {"lr": 0.5, "num_clients": 2}


@pytest.mark.parametrize("text", ["", "[1]", "{"])
def test_a_file_of_names_that_is_torn(tmp_path, text):
    (tmp_path / "trackers.json").write_text(text)
    assert tracked(tmp_path) == {}


# the packages themselves, where they are installed


def test_tensorboard_for_real(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (summary,) = go(tmp_path, ["tensorboard"])
    events = EventAccumulator(str(tmp_path / "seed-0" / "tensorboard"))
    events.Reload()
    found = {event.step: event.value for event in events.Scalars("test_loss")}
    expected = {line["round"] + 1: line["test_loss"] for line in lines(tmp_path / "seed-0")}
    assert found == pytest.approx(expected)
    (final,) = events.Scalars("summary/test_accuracy")
    assert final.value == pytest.approx(summary["test_accuracy"])


def test_mlflow_for_real(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    go(tmp_path, ["mlflow"], seeds=(0, 1))
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}")
    run = client.get_run(tracked(tmp_path / "seed-1")["mlflow"])
    assert (run.info.status, run.data.params["seed"]) == ("FINISHED", "1")
    history = client.get_metric_history(run.info.run_id, "test_loss")
    assert {m.step: m.value for m in history} == {
        line["round"] + 1: line["test_loss"] for line in lines(tmp_path / "seed-1")
    }
    with Tracking(["mlflow"], {tmp_path / "seed-1": tiny(seed=1)}) as tracking:  # resumed
        tracking({0: {"round": 2, "test_loss": 0.5}})
        assert client.get_run(run.info.run_id).info.status == "RUNNING"
        tracking.finish([{"status": "stopped"}])
    assert client.get_run(run.info.run_id).info.status == "KILLED"
    assert client.get_run(run.info.run_id).data.metrics["test_loss"] == 0.5


def test_wandb_for_real_without_a_network(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    go(tmp_path, ["wandb"], seeds=(0, 1))
    for seed in (0, 1):
        known = tracked(tmp_path / f"seed-{seed}")["wandb"]
        (file,) = tmp_path.glob(f"wandb/offline-run-*-{known}/run-{known}.wandb")
        assert b"test_accuracy" in file.read_bytes()
        assert json.dumps("fedavg").encode() in file.read_bytes()
