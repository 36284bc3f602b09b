"""The ray engine: any number of workers gives the bits of one, also when some of them die."""

import os
import re
import signal
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from leftovers import children

ray = pytest.importorskip("ray")

from gcfed import (
    Algorithm,
    InputError,
    RayWorkers,
    Sequential,
    parse,
    simulate,
    simulate_together,
    start,
)
from gcfed.core import tree
from gcfed.core.precision import TorchSettings
from gcfed.engines.block_trainer import BlockTrainer, RayBrief
from gcfed.engines.parcels import pack, unpack
from gcfed.engines.ray_engine import ClientBlock, _device, _own, _received
from gcfed.engines.ray_session import RaySession
from gcfed.pickling import by_value
from gcfed.simulation.round import prepare

pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"  # Ray's own
)


@pytest.fixture(scope="module")
def cluster():
    """One Ray for several tests, which engines find and leave as it is."""
    with RaySession(num_cpus=3):
        yield


def has_ended(process):
    """Ray may not have asked how it did."""
    try:
        return Path("/proc", process, "stat").read_text().split()[2] == "Z"
    except OSError:
        return True


def same(one, other):
    torch.testing.assert_close(one, other, atol=0, rtol=0)


def rounds(make_setup, engine, **changes):
    setup = make_setup(parse("scaffold + gcfed"), engine=engine, cohort_size=5, **changes)
    return [(r.server, r.uploads, r.losses) for r in simulate(setup)]


@pytest.fixture(scope="module")
def expected(make_setup):
    return rounds(make_setup, "sequential")


@pytest.mark.slow
def test_a_run_that_starts_ray_gives_the_bits_of_sequential_and_leaves_nothing(
    make_setup, expected
):
    before = set(children())
    same(rounds(make_setup, "ray(workers=1, block=2)"), expected)
    assert not ray.is_initialized()
    end = time.monotonic() + 60
    while not all(map(has_ended, set(children()) - before)):  # they go when they notice
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_three_workers_give_the_bits_of_one_when_one_of_them_is_killed(make_setup, expected):
    """Two runs at once; a worker is killed between two rounds."""
    engine = RayWorkers(workers=3, block=2)
    first = make_setup(parse("scaffold + gcfed"), engine=engine, cohort_size=5)
    other = replace(first, schedule=replace(first.schedule, seed=1))
    found = []
    for outcomes in simulate_together([first, other]):
        result = outcomes[0]
        found.append((result.server, result.uploads, result.losses))
        if result.round == 0:
            os.kill(ray.get(engine._program.crew.workers[0].ready.remote()), signal.SIGKILL)
    same(found, expected)
    *_, alone = simulate(replace(other, engine="sequential"))
    same(outcomes[1].server, alone.server)
    assert ray.is_initialized()


@dataclass(frozen=True)
class Elsewhere(Algorithm):
    """FedAvg that fails in any process but that which made it; the first time it kills it."""

    home: int
    died: str

    def begin(self, anchor, ctx):
        if os.getpid() != self.home:
            if Path(self.died).exists():
                raise KeyError("far from home")
            Path(self.died).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return anchor


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_a_block_over_which_a_worker_dies_is_done_again_and_errors_are_raised_here(
    make_setup, tmp_path, monkeypatch
):
    died = tmp_path / "died"
    setup = make_setup(Elsewhere(os.getpid(), str(died)), engine="ray(workers=1)", rounds=1)
    with pytest.raises(InputError, match=r"begin of Elsewhere .* raises KeyError: 'far from home'"):
        list(simulate(setup))
    assert died.exists()
    died.unlink()
    monkeypatch.setattr("gcfed.engines.ray_crew.DEATHS", 0)
    with pytest.raises(RuntimeError, match="workers end again and again"):
        list(simulate(setup))
    assert died.exists()


def test_what_a_worker_is_sent_is_enough_to_train(make_setup, close, monkeypatch):
    """Here, without a worker: a block in the middle of a cohort, by another engine."""
    monkeypatch.setattr("gcfed.engines.block_trainer.keep_freed_memory", lambda: None)
    setup = make_setup(parse("scaffold + gcfed"))
    job = prepare(setup, *start(setup), 0, [3, 7, 8, 9])
    brief = RayBrief([job.task], "vectorized", "cpu", TorchSettings.current())
    trainer = BlockTrainer(sys.path, by_value(brief), pack(job.batches.data.examples))
    block = ClientBlock(0, 1, job.batches.plans[1:3])
    sent = (pack(_received(job)), pack(_own(job, block)), block.plans)
    (expected,) = Sequential()([job])
    close(unpack(trainer.train(0, *sent, 2)), tree.take(expected, slice(1, 3)))
    assert isinstance(trainer.train(1, *sent, 2), RuntimeError)


def test_workers_see_one_gpu_each():
    first, second = (torch.device("cuda", i) for i in (0, 1))
    job = SimpleNamespace(cohort=SimpleNamespace(key=SimpleNamespace(device=first)))
    assert _device(job) == "cuda"
    job.cohort.key.device = second
    with pytest.raises(InputError, match="needs device = 'cuda'"):
        _device(job)


def test_parcels_hold_tensors_of_any_kind():
    value = {
        "a": {"half": torch.ones(2, 3, dtype=torch.bfloat16), "empty": torch.zeros(0, 4)},
        "b": (torch.tensor(3), torch.tensor([True, False]), torch.arange(6).view(2, 3).T),
    }
    same(unpack(pack(value)), value)


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ("ray(workers=0)", "workers=...) is a positive count; not 0"),
        ("ray(block=0)", "block=...) is a positive count; not 0"),
        ("ray(engine='ray')", "not ray itself"),
        ("ray(engine='rae')", "unknown engine: 'rae'; did you mean 'ray'?"),
        ("ray(engine='streams')", "needs a CUDA device"),
    ],
)
def test_what_makes_no_sense_is_refused(engine, message, make_setup):
    with pytest.raises(InputError, match=re.escape(message)):
        make_setup(Algorithm(), engine=engine)
