"""Cells that share a device: processes beside each other, none of which changes another's bits."""

import json

import pytest
import torch
from running import tiny
from test_sweep import bits, toml, without

from gcfed import RunStore, Sweep, capacity, load_run, run
from gcfed.errors import InputError
from gcfed.simulation import underway
from gcfed.sweeps import child
from gcfed.sweeps.devices import find_devices

pytest_plugins = ["running", "test_sweep"]
pytestmark = pytest.mark.usefixtures("float32", "registries")


def test_memory_that_is_missing_may_be_a_neighbours(tmp_path, monkeypatch):
    """So the cohort is not halved, which would change bits; alone it is."""
    real = underway.prepare

    def short(setup, server, clients, t, ids, *rest):
        if len(ids) > 2:
            raise torch.OutOfMemoryError
        return real(setup, server, clients, t, ids, *rest)

    monkeypatch.setattr(underway, "prepare", short)
    with pytest.warns(UserWarning, match="2 clients at once instead of 3"):
        assert run(tiny(), tmp_path / "alone")["status"] == "finished"
    monkeypatch.setattr(capacity, "_is_shared", False)  # and so it is again after this test
    capacity.share_device()
    with pytest.raises(InputError, match="beside other cells on this device"):
        run(tiny(), tmp_path / "shared")
    assert load_run(tmp_path / "shared").summary["status"] == "failed"


@pytest.mark.parametrize(
    ("device", "sharing", "shared"), [("cuda", 3, True), ("cuda", 1, False), ("cpu", 3, False)]
)
def test_a_process_knows_whether_others_share_its_gpu(device, sharing, shared, monkeypatch):
    monkeypatch.setattr(capacity, "_is_shared", False)
    monkeypatch.setattr(child.os, "setsid", lambda: None)
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    lived = []
    monkeypatch.setattr(child.Child, "live", lambda self: lived.append(self))
    child.serve(None, device, [], 1, sharing, ".")
    assert capacity.is_device_shared() == shared and len(lived) == 1


def test_each_device_is_there_as_often_as_cells_share_it():
    assert find_devices("cpu", "auto", 3) == ["cpu"] * 3
    with pytest.raises(InputError, match="a positive count; not 0"):
        find_devices("cpu", "auto", 0)


@pytest.mark.slow
def test_cells_of_a_sweep_beside_each_other(folder):
    """One of four cells kills its process: the others are done, with the bits they have alone."""
    algorithms = ["scaffold", "doomed", "fedavg", "gcfed"]
    values = without("algorithm", rounds=4, seeds=[0, 1])
    (folder / "grid.toml").write_text(toml(values, grid={"algorithm": algorithms}))
    (folder / "broken").touch()
    made = Sweep("grid.toml", per_device=4)
    made.run()
    assert [state.status for state in made.cells] == ["done", "failed", "done", "done"]
    assert json.loads(made.path.read_text())["devices"] == ["cpu"] * 4
    for state in made.of("done"):
        straight = RunStore("straight").run_together(state.cell.configs)
        assert bits(state.runs) == bits(straight)
    (folder / "broken").unlink()
    again = Sweep("grid.toml", per_device=4)
    again.run()
    assert [state.status for state in again.cells] == ["done"] * 4
