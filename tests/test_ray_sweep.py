"""A sweep on Ray: cells are its tasks, go on when a worker dies, and stop when asked to."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from running import TINY

pytest.importorskip("ray")

import gcfed as package
from gcfed import InputError, RunStore, Sweep

pytest_plugins = ["running"]
pytestmark = [
    pytest.mark.usefixtures("float32", "registries"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # Ray's own
]

SLOW = """
import time
from pathlib import Path
from gcfed.population.samplers import SAMPLERS, uniform

@SAMPLERS.register("slow")
def slow(*arguments):
    '''Uniform, and slow while a file is there.'''
    time.sleep(0.4 if Path("slow").exists() else 0)
    return uniform(*arguments)
"""


def grid(**changes):
    values = {key: value for key, value in TINY.items() if key not in ("algorithm", "engine")}
    return {**values, "grid": {"algorithm": ["scaffold", "gcfed"]}, **changes}


def bits(runs):
    return {run.path.name: (run.path / "rounds.jsonl").read_bytes() for run in runs}


def until(check, seconds=300):
    end = time.monotonic() + seconds
    while not (found := check()):
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.02)
    return found


def num_lines(store):
    return sum(path.read_bytes().count(b"\n") for path in store.glob("*/rounds.jsonl"))


@pytest.mark.slow
def test_cells_go_on_when_a_worker_is_killed_and_stop_at_ctrl_c(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(SLOW)
    (tmp_path / "slow").touch()
    settings = grid(sampler="slow", plugins=["mine.py"], rounds=60, checkpoint_every=5)
    (tmp_path / "grid.json").write_text(json.dumps(settings))
    store = tmp_path / "runs"
    script = (
        "import json, sys; from gcfed import sweep; made = sweep(json.load(open('grid.json')), "
        "ray='local', name='grid', observe=lambda state: None); sys.exit(130 * made.is_stopped)"
    )

    def trainers():
        locks = [path.read_text() for path in store.glob("*/.lock")]
        return {json.loads(text)["pid"] for text in locks if text}

    with subprocess.Popen(
        [sys.executable, "-c", script], stderr=subprocess.PIPE, start_new_session=True, text=True
    ) as process:
        until(lambda: num_lines(store) >= 4)
        killed = trainers()
        os.kill(min(killed), signal.SIGKILL)
        until(lambda: trainers() - killed)
        begun = num_lines(store)
        until(lambda: num_lines(store) >= begun + 4)
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=300)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    record = json.loads((store / "sweeps/grid/sweep.json").read_text())
    assert {cell["status"] for cell in record["cells"]} <= {"stopped", "waiting"}
    assert not trainers()

    (tmp_path / "slow").unlink()
    made = package.sweep(settings, ray="local", name="grid")
    assert [state.status for state in made.cells] == ["done", "done"]
    assert record["allotment"] == {"cores": 1, "threads": 1}
    for state in made.cells:
        assert state.runs[0].provenance["engine"] == "sequential"
        changes = {"device": "cpu", "engine": "sequential"}
        straight = RunStore("straight").run_together(
            [config.model_copy(update=changes) for config in state.cell.configs]
        )
        assert bits(state.runs) == bits(straight)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"devices": "cuda:1"}, "the device is cpu or cuda; not cuda:1"),
        ({"devices": "cpu,cpu"}, "the device is cpu or cuda; not cpu,cpu"),
        ({"devices": "cpu", "per_device": 2}, "cells share GPUs, not cores"),
    ],
)
def test_what_ray_cannot_place_is_refused(options, message, tmp_path):
    with pytest.raises(InputError, match=message):
        Sweep(grid(), tmp_path, ray="local", name="grid", **options)


def test_an_address_where_nobody_is(gcfed, tmp_path):
    (tmp_path / "grid.toml").write_text("rounds = 1\nmodel = 'mlp'\n[grid]\nlr = [0.1]\n")
    answer = gcfed("sweep", "grid.toml", "--ray", "127.0.0.1:1")
    assert answer.code == 2
    assert "there is no Ray at '127.0.0.1:1': " in answer.err
