"""CUDA begun early: on which device, and that nothing goes wrong where there is none."""

import ctypes

import pytest
from running import gcfed as gcfed

from gcfed import cuda_start
from gcfed.cuda_start import start_cuda


class Driver:
    """Notes what is asked of it."""

    def __init__(self, answer=0):
        self.answer, self.asked = answer, []

    def cuInit(self, flags):  # noqa: N802
        self.asked.append(("init", flags))
        return self.answer

    def cuDevicePrimaryCtxRetain(self, context, number):  # noqa: N802
        self.asked.append(("context", number))
        return 0


@pytest.fixture
def driver(monkeypatch):
    found = Driver()
    monkeypatch.setattr(cuda_start, "version", lambda _: "2.13.0")
    monkeypatch.setattr(ctypes, "CDLL", lambda name: found)
    return found


@pytest.mark.parametrize(
    ("device", "number"), [("auto", 0), ("cuda", 0), ("cuda:0", 0), ("cuda:3", 3)]
)
def test_the_context_is_that_of_the_device(device, number, driver):
    start_cuda(device).join()
    assert driver.asked == [("init", 0), ("context", number)]


@pytest.mark.parametrize("device", ["cpu", "mps", "meta", "cuda:", "cuda:x", "auto:1", ""])
def test_other_devices_are_left_alone(device, driver):
    assert start_cuda(device) is None and driver.asked == []


def test_a_driver_that_refuses_is_asked_nothing_more(driver):
    driver.answer = 100  # no device
    start_cuda("cuda").join()
    assert driver.asked == [("init", 0)]


def test_without_a_driver_nothing_happens(driver, monkeypatch):
    def missing(name):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    start_cuda("auto").join()


@pytest.mark.parametrize("torch", ["2.13.0+cpu", None])
def test_a_torch_without_cuda_starts_none(torch, driver, monkeypatch):
    def version(name):
        if torch is None:
            raise cuda_start.PackageNotFoundError(name)
        return torch

    monkeypatch.setattr(cuda_start, "version", version)
    assert start_cuda("auto") is None and driver.asked == []


@pytest.mark.parametrize(
    ("options", "device"),
    [
        ([], "auto"),
        (["--device", "cpu"], "cpu"),
        (["--set", "lr=0.1", "--device", "cuda:1"], "cuda:1"),
        (["--set", "device=cpu"], None),
        (["--set", "plugins=['mine.py']"], None),
        (["--device", "cuda", "--plugin", "mine.py"], None),
        (["config.toml"], None),
        (["config.toml", "--device", "cuda"], None),
    ],
)
def test_a_run_starts_it_where_nothing_else_can_say_what_cuda_is_to_use(
    gcfed, options, device, monkeypatch, tmp_path
):
    """A plugin may set CUDA_VISIBLE_DEVICES, and a file of settings may name plugins."""
    (tmp_path / "config.toml").write_text('device = "cpu"\n')
    began = []
    monkeypatch.setattr("gcfed.cli.run.start_cuda", began.append)
    gcfed("run", *options, "--algorithm", "nobody")
    assert began == ([] if device is None else [device])
