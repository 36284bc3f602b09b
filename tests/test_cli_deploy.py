"""``gcfed deploy`` where Flower is not needed: the app that it writes, and what it refuses."""

import tomllib
from importlib.util import find_spec

import pytest

from gcfed.cli.deploy import _last_error
from gcfed.config.settings import make
from gcfed.deploy.starter import read_settings

pytest_plugins = ["running"]
pytestmark = pytest.mark.usefixtures("float32", "registries")


def wrong(answer):
    """What a command says that was asked for something impossible."""
    assert answer.code == 2 and answer.out == ""
    assert answer.err.startswith("error: ") and "Traceback" not in answer.err
    return " ".join(answer.err.split())


def test_where_a_server_was_killed_the_way_on_is_told(tmp_path):
    log = tmp_path / "run.log"
    log.write_text("the server starts\n")
    assert _last_error(log, tmp_path / "my run").endswith(
        f"the same command with --out '{tmp_path}/my run' goes on"
    )
    log.write_text("gcfed.errors.InputError: no data\n")
    assert _last_error(log, tmp_path) == "no data"


def test_init_writes_an_app_with_the_settings(gcfed, tmp_path):
    answer = gcfed(
        "deploy", "init", "Ward 7", "--set", "algorithm=fedlc + gcfed", "--set", "steps=3"
    )
    assert answer.code == 0 and "gcfed deploy local 'Ward 7'" in answer.err
    written = tomllib.loads((tmp_path / "Ward 7" / "pyproject.toml").read_text())
    assert written["project"]["name"] == "ward-7"
    parts = written["tool"]["flwr"]["app"]
    assert parts["components"] == {"clientapp": "app:client", "serverapp": "app:server"}
    assert parts["config"]["deploy"]["out"] == str(tmp_path / "runs" / "Ward 7")
    config = make(read_settings(tmp_path / "Ward 7"))
    assert (config.algorithm, config.steps, config.epochs) == ("fedlc + gcfed", 3, None)
    compile((tmp_path / "Ward 7" / "app.py").read_text(), "app.py", "exec")


def test_init_takes_a_file_of_settings_whose_lists_flower_can_hold(gcfed, tmp_path):
    (tmp_path / "my.toml").write_text('metrics = ["accuracy", "loss"]\nclients = 9\n')
    gcfed("deploy", "init", "app", "--config", "my.toml", "--out", "here")
    assert read_settings(tmp_path / "app") == {"metrics": "accuracy, loss", "clients": 9}
    assert make(read_settings(tmp_path / "app")).metrics == ("accuracy", "loss")


def test_what_makes_no_sense_is_refused(gcfed, tmp_path):
    (tmp_path / "taken").mkdir()
    assert "taken exists already" in wrong(gcfed("deploy", "init", "taken"))
    assert "unknown key: 'alhpa'" in wrong(gcfed("deploy", "init", "a", "--set", "alhpa=1"))
    for_simulations = wrong(gcfed("deploy", "init", "a", "--set", "buffers=local"))
    assert "buffers = 'local' is for simulations" in for_simulations
    twice = ("--set", "steps=1", "--set", "steps=2")
    assert "--set steps=1 and --set steps=2" in wrong(gcfed("deploy", "init", "a", *twice))
    assert "there is no config file" in wrong(gcfed("deploy", "local", "nowhere"))
    (tmp_path / "taken" / "pyproject.toml").write_text("[tool.other]\n")
    assert "has no [tool.flwr.app.config]" in wrong(gcfed("deploy", "local", "taken"))
    assert "--nodes is at least 1" in wrong(gcfed("deploy", "local", "--nodes", "0"))
    assert "cohort=2 is more than clients=1" in wrong(gcfed("deploy", "local", "--nodes", "1"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["taken"]


@pytest.mark.skipif(find_spec("flwr") is not None, reason="Flower is installed")
def test_where_flower_is_not_installed_that_is_said(gcfed, tmp_path):
    assert "pip install 'gcfed[flower]'" in wrong(gcfed("deploy", "local", "--nodes", "4"))
    assert list(tmp_path.iterdir()) == []
