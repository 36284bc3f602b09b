"""The same apps in Flower's own simulation, which runs nodes as actors of Ray."""

from dataclasses import replace

import pytest
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation

from gcfed import Config
from gcfed.deploy.apps import client_app, server_app
from gcfed.runs.train import run

pytest_plugins = ["running"]
pytestmark = [
    pytest.mark.flower,
    pytest.mark.usefixtures("float32"),
    pytest.mark.filterwarnings("ignore"),  # Ray's own are many
]

SETTINGS = {
    **{"dataset": "fashion10k", "model": "mlp(hidden=[16])", "clients": 8, "cohort": 3},
    **{"rounds": 4, "steps": 2, "batch_size": 20},
}


def configured(settings, folder):
    """Both apps with settings; a simulation that is started from Python has no other way in."""
    client, server = client_app(), server_app()

    def answer(message, context):
        node = {**context.node_config, "folder": str(folder / "nodes")}
        return client(message, replace(context, run_config=settings, node_config=node))

    def serve(grid, context):
        server(grid, replace(context, run_config={**settings, "deploy.out": str(folder / "run")}))

    apps = ServerApp(), ClientApp()
    apps[0].main()(serve)
    apps[1].query()(answer)
    apps[1].train()(answer)
    return apps


@pytest.mark.parametrize("algorithm", ["gcfed", "scaffold", "fedlc + gcfed"])
def test_the_same_bits_in_flowers_simulation(tmp_path, monkeypatch, algorithm):
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "0")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    settings = {**SETTINGS, "algorithm": algorithm}
    resources = {"init_args": {"num_cpus": 2}, "client_resources": {"num_cpus": 1}}
    run_simulation(*configured(settings, tmp_path), num_supernodes=8, backend_config=resources)
    run(Config(**settings, engine="sequential"), tmp_path / "simulated")
    for file in ("rounds.jsonl", "model.safetensors"):
        ours = (tmp_path / "simulated" / file).read_bytes()
        assert (tmp_path / "run" / file).read_bytes() == ours
