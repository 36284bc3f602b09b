"""Python's search for garbage, put off while a run starts."""

import gc
import subprocess
import sys

import pytest

from gcfed.garbage import unsearched
from gcfed.processes import WorkerPool, fork

OUTCOME = """
import gc, sys
from gcfed.cli import main
import gcfed.config.build as build
import gcfed.simulation.loop as loop
seen = []
def noting(function):
    return lambda *a, **k: (seen.append(gc.isenabled()), function(*a, **k))[1]
build.try_model, loop._Rounds.do = noting(build.try_model), noting(loop._Rounds.do)
options = ["--model", "mlp(hidden=(8,))", "--dataset", "synthetic", "--engine", "sequential"]
sys.argv = ["gcfed", "run", *options, "--rounds", "2", "--out", sys.argv[1]]
try:
    main()
finally:
    print("seen", seen)
"""


@pytest.fixture(autouse=True)
def searched():
    """As it was, whatever a test does."""
    assert gc.isenabled()
    yield
    gc.enable()


def test_it_is_put_off_inside_and_no_longer():
    with unsearched():
        assert not gc.isenabled()
        with unsearched():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ValueError, match="x"), unsearched():
        raise ValueError("x")
    assert gc.isenabled()


def test_a_forked_process_searches():
    with unsearched():
        pool = WorkerPool(1, lambda pipe, others: fork(gc.isenabled, pipe, others))
        assert pool.ask().answer() is True
        pool.close()


@pytest.mark.slow
def test_a_run_starts_without_it_and_goes_on_with_it(tmp_path):
    command = [sys.executable, "-W", "ignore", "-c", OUTCOME, str(tmp_path / "made")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "seen [False, False, True]" in done.stdout
