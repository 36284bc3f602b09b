"""The ray engine: any number of workers gives the bits of one, also when some of them die."""

import os
import platform
import re
import signal
import sys
import threading
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
from gcfed.data import Lazy, dataset_from
from gcfed.engines.block_trainer import BlockTrainer, RayBrief
from gcfed.engines.parcels import pack, pack_examples, unpack
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


class Noisy:
    """The images of a federation with noise, which ``open`` is called for at each reading."""

    def __init__(self, data, open=float):
        self.x, self.y, self.open = data.x.float(), data.y, open

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        self.open()
        return self.x[i] + torch.rand(()), int(self.y[i])


def lazily(data, open=float):
    x = dataset_from(Lazy(Noisy(data, open), data.y, processes=0), (data.x, data.y)).train.x
    return replace(data, x=x.to(data.x.dtype))


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


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_workers_read_random_examples_with_the_bits_of_sequential(make_setup, data):
    noisy, found = lazily(data), []
    for engine in ("sequential", "ray(workers=2, block=2)"):
        found.append(rounds(make_setup, engine, data=noisy))
    same(*found)


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_examples_that_a_worker_cannot_read_are_named_here(make_setup, data):
    home = os.getpid()

    def at_home():
        if os.getpid() != home:
            raise FileNotFoundError("no photos on this machine")

    said = f"in a Ray worker on {platform.node()}: train example 0 cannot be read: FileNotFoundEr"
    with pytest.raises(InputError, match=said):
        rounds(make_setup, "ray(workers=1)", data=lazily(data, at_home))


def test_a_data_set_that_cannot_be_pickled_is_refused(make_setup, data):
    lock = threading.Lock()
    with pytest.raises(InputError, match=r"cannot be pickled: TypeError.*lock.*take the engine"):
        rounds(make_setup, "ray(workers=1)", data=lazily(data, lock.locked))


def block_trainer(job, engine):
    brief = RayBrief([job.task], engine, "cpu", TorchSettings.current())
    return BlockTrainer(sys.path, by_value(brief), pack_examples(job.batches.data.examples))


@pytest.mark.parametrize("held", [lambda data: data, lazily], ids=["in memory", "lazy"])
def test_what_a_worker_is_sent_is_enough_to_train(held, make_setup, data, close, monkeypatch):
    """Here, without a worker: a block in the middle of a cohort, by another engine."""
    monkeypatch.setattr("gcfed.engines.block_trainer.keep_freed_memory", lambda: None)
    setup = make_setup(parse("scaffold + gcfed"), data=held(data))
    job = prepare(setup, *start(setup), 0, [3, 7, 8, 9])
    trainer = block_trainer(job, "vectorized")
    assert trainer.ready() == os.getpid()
    block = ClientBlock(0, 1, job.batches.plans[1:3])
    sent = (pack(_received(job)), pack(_own(job, block)), block.plans)
    (expected,) = Sequential()([job])
    close(unpack(trainer.train(0, *sent, 2)), tree.take(expected, slice(1, 3)))
    assert isinstance(trainer.train(1, *sent, 2), RuntimeError)


def test_what_goes_wrong_at_the_start_of_a_worker_is_its_answer(make_setup, monkeypatch):
    monkeypatch.setattr("gcfed.engines.block_trainer.keep_freed_memory", lambda: None)
    setup = make_setup(Algorithm())
    answer = block_trainer(prepare(setup, *start(setup), 0, [3]), "rae").ready()
    assert isinstance(answer, InputError)
    assert str(answer).startswith(f"in a Ray worker on {platform.node()}: unknown engine: 'rae'")


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
