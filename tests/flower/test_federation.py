"""Real deployments: a SuperLink and SuperNodes as processes that talk over loopback."""

import os
import signal
import subprocess
import sys
import time
from functools import partial

import pytest

from gcfed import Config
from gcfed.deploy.local import LocalFederation, local_federation
from gcfed.deploy.shares import server_experiment
from gcfed.deploy.starter import write_app
from gcfed.engines import Sequential
from gcfed.results.run import Run
from gcfed.runs.train import run
from gcfed.simulation.lines import weights_sha256
from gcfed.simulation.round import run_round
from gcfed.simulation.snapshot import start

pytest_plugins = ["running"]
pytestmark = [pytest.mark.flower, pytest.mark.usefixtures("float32")]

ALGORITHMS = ["gcfed", "scaffold", "fedlc + gcfed"]
SETTINGS = {
    **{"dataset": "fashion10k", "model": "mlp(hidden=[16])", "clients": 8, "cohort": 3},
    **{"rounds": 4, "steps": 2, "batch_size": 20},
}
PATIENCE = 3600  # seconds; far more than anything here takes


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    with local_federation(tmp_path_factory.mktemp("federation"), 8) as made:
        yield made


def wait_until(is_so, process):
    end = time.monotonic() + PATIENCE
    while not is_so():
        assert process.poll() is None and time.monotonic() < end, "the run ended"
        time.sleep(0.1)


def simulated(path, **settings):
    run(Config(**{**SETTINGS, **settings}, engine="sequential"), path)
    return path


def test_the_same_bits_as_a_simulation(federation, tmp_path):
    """The three runs share the nodes, as runs of several people may."""
    paths = {name: tmp_path / f"run-{i}" for i, name in enumerate(ALGORITHMS)}
    runs = []
    for i, (name, path) in enumerate(paths.items()):
        app = tmp_path / f"app-{i}"
        write_app(app, {**SETTINGS, "algorithm": name}, path)
        runs.append(federation.start_run(app, {}, f"run-{i}"))
    for process in runs:
        process.wait(PATIENCE)
    for i, (name, path) in enumerate(paths.items()):
        assert path.exists(), federation.log(f"run-{i}").read_text()
        expected = simulated(tmp_path / f"simulated-{i}", algorithm=name)
        assert Run(path).status == "finished"
        for file in ("rounds.jsonl", "model.safetensors"):
            assert (path / file).read_bytes() == (expected / file).read_bytes()


def kill_servers(federation):
    """Kill the processes of servers that this federation started."""
    servers = federation.servers()
    assert servers
    for number in servers:
        os.kill(number, signal.SIGKILL)


def test_a_killed_node_is_left_out_and_comes_back_and_a_killed_server_goes_on(federation, tmp_path):
    settings = {**SETTINGS, "algorithm": "scaffold", "rounds": 5}
    app, path = tmp_path / "app", tmp_path / "run"
    write_app(app, settings, path)
    setup = server_experiment(Config(**settings)).setup
    cohorts = [setup.population.sample(t) for t in range(5)]
    victim = next(i for i in cohorts[1] if any(i in cohort for cohort in cohorts[3:]))
    log = federation.log(f"supernode-{victim}")

    def num_lines():
        lines = path / "rounds.jsonl"
        return lines.read_bytes().count(b"\n") if lines.exists() else 0

    def num_asked():
        return log.read_text().count("Receiving: train message")

    changes = {"deploy.timeout": 25.0, "deploy.tries": 9}
    process = federation.start_run(app, changes)
    wait_until(lambda: num_lines() == 1, process)
    asked = num_asked()
    wait_until(lambda: num_asked() > asked, process)
    federation.kill(f"supernode-{victim}")
    federation.start_node(victim)

    wait_until(lambda: num_lines() == 3, process)
    kill_servers(federation)
    federation.kill("run")
    wait_until(lambda: Run(path).status == "killed", federation.processes["superlink"])
    federation.start_run(app, changes).wait(PATIENCE)

    done = Run(path)
    assert done.status == "finished" and len(done.records) == 5
    assert victim in done.records[1]["absent"]
    assert any(victim in line["clients"] for line in done.records[3:])
    assert done.provenance["resumed"][0]["after_rounds"] in (2, 3)  # the line is written first
    server, clients = start(setup)
    for line in done.records:
        result = run_round(
            setup, server, clients, line["round"], line["clients"], engine=Sequential()
        )
        server, clients = result.server, result.clients
        assert line["weights_sha256"] == weights_sha256(server.params)


def test_ctrl_c_stops_everything_that_was_started(tmp_path):
    app, path = tmp_path / "app", tmp_path / "run"
    settings = {**SETTINGS, "clients": 2, "cohort": 1, "rounds": 1000}
    write_app(app, settings, path)
    command = [sys.executable, "-m", "gcfed", "deploy", "local", str(app), "--out", str(path)]
    # what a shell starts in the background ignores Ctrl-C, and so would what it starts
    heeding = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=heeding)
    wait_until(lambda: (path / "rounds.jsonl").exists() and Run(path).num_rounds, process)
    started = LocalFederation(tmp_path / "run-federation")
    assert len(started.members()) > 3
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == 130 and f"with --out {path} goes on" in said
    assert started.members() == []
    assert Run(path).status == "stopped"
