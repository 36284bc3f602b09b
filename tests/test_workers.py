"""The workers engine: processes that agree with the specification, and end when they should."""

import copy
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pytest
import torch
from leftovers import open_files, shared_memory
from torch import nn

from gcfed import (
    AdamW,
    Algorithm,
    FederatedData,
    Sequential,
    Workers,
    parse,
    run_round,
    simulate,
    simulate_together,
    start,
)
from gcfed.algorithms import ALGORITHMS, GCFed
from gcfed.config.plugins import load_plugin
from gcfed.core import tree
from gcfed.core.batches import Batches, BatchPlan, DataHandle
from gcfed.core.client import RECEIVED
from gcfed.core.types import Examples
from gcfed.engines.fresh_worker import _trainer, packed
from gcfed.engines.lineup import copy as copy_to
from gcfed.engines.shared_memory import allocated, lay_into
from gcfed.engines.workers import _brief
from gcfed.processes import WorkerPool
from gcfed.simulation.round import prepare


@pytest.fixture
def workers():
    engine = Workers(processes=2)
    yield engine
    engine.close()


def test_every_algorithm_agrees_with_sequential(registered, workers, run, close):
    one, all_ = (run(registered, engine=engine) for engine in ("sequential", workers))
    close(one.server, all_.server)
    close(one.uploads, all_.uploads)
    close(one.losses, all_.losses)


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_every_algorithm_agrees_in_float32(name, workers, net, data, run, close, all_registered):
    module = copy.deepcopy(net).float()
    small = FederatedData(data.x.float(), data.y, data.parts, data.num_classes)
    one, all_ = (
        run(all_registered[name], engine=engine, module=module, data=small)
        for engine in ("sequential", workers)
    )
    close(one.server.params, all_.server.params, 1e-3 if name == "feddecorr" else 1e-5)


def test_several_seeds_at_once(workers, make_setup, close):
    setups = [make_setup(parse("scaffold + gcfed"), engine=workers, seed=s) for s in (0, 1)]
    setups[1] = copy.copy(setups[1])
    object.__setattr__(setups[1], "model", setups[0].model)
    *_, together = simulate_together(setups)
    for setup, result in zip(setups, together.values(), strict=True):
        *_, alone = simulate(setup)
        close(alone.server, result.server, 1e-12)


def test_the_processes_are_those_of_the_round_before(workers, make_setup):
    results = iter(simulate(make_setup(GCFed(), engine=workers)))
    next(results)
    first = [p.pid for p in workers._program.pool.processes]
    next(results)
    assert [p.pid for p in workers._program.pool.processes] == first and os.getpid() not in first


def test_fewer_clients_are_trained_by_the_same_processes(workers, make_setup, close):
    ours, reference = (
        make_setup(parse("scaffold + gcfed"), engine=engine, cohort_size=4)
        for engine in (workers, "sequential")
    )
    pids = []
    for ids in ([2, 3, 7, 8], [9], [4, 3, 2]):
        found = run_round(ours, *start(ours), 0, ids, engine=workers)
        expected = run_round(reference, *start(reference), 0, ids)
        close((found.server, found.uploads), (expected.server, expected.uploads))
        pids.append([p.pid for p in workers._program.pool.processes])
    assert pids[0] == pids[1] == pids[2]


def test_what_a_process_is_sent_is_enough_to_train(make_setup, close):
    """Here, without a process: a client is trained from what is packed and what is shared."""
    setup = make_setup(parse("scaffold + gcfed"))
    job = prepare(setup, *start(setup), 0, [3, 7, 8])
    examples = job.batches.data.examples
    brief, gradients = _brief([job])
    assert brief.traced and gradients is not None
    shapes = brief.shapes(examples)
    with allocated(shapes) as file:
        ours = lay_into(file, shapes)
        trainer = _trainer(file, packed(brief, shapes, [DataHandle(examples)]))
    copy_to(ours.examples, (examples,))
    for field, to in ours.cohorts[0]._asdict().items():
        n = 1 if field in RECEIVED else 3
        tree.map(lambda a, b, n=n: a[:n].copy_(b[:n]), to, getattr(job.cohort, field))
    for k, plan in enumerate(job.batches.plans):
        trainer.train(0, k, plan)
    (expected,) = Sequential()([job])
    close(tree.take(ours.trained[0], slice(3)), expected)


@pytest.mark.parametrize("kind", ["bytes", "named", "turned"])
def test_the_batches_of_a_client_are_those_it_has_in_a_cohort(kind, data):
    """Padded alike, of inputs that lie in memory in any way."""
    x = {
        "bytes": (data.x * 50).to(torch.uint8),
        "named": {"a": data.x, "b": data.y[:, None]},
        "turned": data.x.transpose(2, 3),
    }[kind]
    handle = DataHandle(Examples(x, data.y))
    plans = [BatchPlan.of(list(part.split(7))) for part in data.parts]
    whole = list(Batches(handle, plans).stacked(9, 6))
    for k, plan in enumerate(plans):
        found = list(Batches(handle, plans).padded(k, 9))
        assert len(found) == len(plan)
        for batch, all_ in zip(found, whole, strict=False):
            torch.testing.assert_close(batch, tree.take(all_, k), atol=0, rtol=0)


def test_batchnorm_trains_without_a_trace(workers, run, close):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 5))
    one, all_ = (run(GCFed(), module=module, engine=e) for e in ("sequential", workers))
    close(one.server, all_.server)


@dataclass(frozen=True)
class Untraceable(Algorithm):
    def gradient(self, grads, params, ctx):
        return grads if grads["fc1.bias"].sum().item() > -1e9 else params


def test_what_cannot_be_traced_runs_as_it_is_written(workers, run, close):
    with pytest.warns(UserWarning, match="run each step as it is written.*tracing it failed"):
        slow = run(Untraceable(), engine=workers)
    close(slow.server, run(Algorithm(), engine="sequential").server)


class Experts(nn.Module):
    """Each example goes through one of two layers, by the sign of its first number."""

    def __init__(self):
        super().__init__()
        self.flatten, self.a, self.b = nn.Flatten(), nn.Linear(6, 5), nn.Linear(6, 5)

    def forward(self, x):
        x = self.flatten(x)[:, :6]
        is_first, y = x[:, 0] > 0.5, x.new_zeros(len(x), 5)
        y[is_first], y[~is_first] = self.a(x[is_first]), self.b(x[~is_first])
        return y


class Chosen(Experts):
    """The same by the numbers of examples; those numbers themselves are traced."""

    def forward(self, x):
        x = self.flatten(x)[:, :6][:, torch.arange(6)]
        chosen = (x[:, 0] > 0.5).nonzero()[:, 0]
        return self.b(x).index_add(0, chosen, self.a(x[chosen]))


@pytest.mark.parametrize("kind", [Experts, Chosen])
def test_shapes_that_depend_on_the_data_are_not_traced(kind, workers, run, close):
    torch.manual_seed(0)
    module = kind()
    with pytest.warns(UserWarning, match="tracing it failed.*shape of a tensor depends on the"):
        result = run(parse("gcfed"), engine=workers, module=module)
    close(result.server, run(parse("gcfed"), engine="sequential", module=module).server)


def test_adamw_steps_in_place_as_it_does_out_of_place(workers, run, close):
    optimizer = AdamW(0.01, weight_decay=0.1)
    one, all_ = (run(GCFed(), optimizer=optimizer, engine=e) for e in ("sequential", workers))
    close(one.server, all_.server)


@dataclass(frozen=True)
class CountsThreads(Algorithm):
    """Notes how many threads the server has."""

    found: list[int]

    def update(self, delta, ctx):
        self.found.append(torch.get_num_threads())
        return delta, ctx.state


def test_a_server_beside_workers_leaves_them_the_cores(workers, make_setup):
    found, before = [], torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for _ in simulate(make_setup(CountsThreads(found), engine=workers, rounds=2)):
            assert torch.get_num_threads() == 2  # whoever judges the model has all cores
        assert found[-2:] == [1, 1]  # hooks were tried once before, by this process alone
        list(simulate(make_setup(CountsThreads(found), engine=Sequential(), rounds=1)))
        assert found[-1] == 2
    finally:
        torch.set_num_threads(before)


def test_same_seed_same_bits(workers, run):
    a, b = (run(GCFed(), engine=workers).server.params for _ in range(2))
    assert all(torch.equal(a[n], b[n]) for n in a)


def test_a_killed_process_is_an_error_that_says_so(workers, make_setup):
    results = iter(simulate(make_setup(GCFed(), engine=workers)))
    next(results)
    os.kill(workers._program.pool.processes[0].pid, signal.SIGKILL)
    with pytest.raises(RuntimeError, match="a worker process ended"):
        next(results)
    workers.close()


# processes started afresh, where a fork would not be safe


@contextmanager
def a_thread():
    """A thread that is alive, as in a notebook."""
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    yield
    done.set()
    thread.join()


PLUGIN = """
from dataclasses import dataclass
from torch import nn
from gcfed import GCFed

class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(16, 5)

    def forward(self, x):
        return self.fc(x.flatten(1))

@dataclass(frozen=True)
class Halved(GCFed):
    def gradient(self, grads, params, ctx):
        return super().gradient({n: g / 2 for n, g in grads.items()}, params, ctx)
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*does not suit this model")
def test_beside_a_thread_nothing_is_forked_and_the_bits_are_the_same(make_setup, tmp_path):
    """Several runs, in float64, of a plugin's module and algorithm, found nowhere by name."""
    torch.manual_seed(4)
    (tmp_path / "mine.py").write_text(PLUGIN)
    mine, engine = load_plugin(tmp_path / "mine.py"), "workers(processes=2)"
    first = make_setup(mine.Halved(), module=mine.Plain(), engine=engine, rounds=2)
    setups = [first, replace(first, schedule=replace(first.schedule, seed=1))]
    forked = list(simulate_together(setups))
    with a_thread():
        files, fresh = open_files(), []
        for outcomes in simulate_together(setups):
            assert not multiprocessing.active_children()  # which are forked ones
            fresh.append(outcomes)
        assert open_files() == files and not shared_memory()
    for one, other in zip(forked, fresh, strict=True):
        for k in (0, 1):
            torch.testing.assert_close(other[k].uploads, one[k].uploads, atol=0, rtol=0)
            torch.testing.assert_close(other[k].server, one[k].server, atol=0, rtol=0)


def test_a_process_that_does_not_start_leaves_none_behind():
    started = []

    def start(pipe, others):
        if started:
            raise OSError("no more processes")
        started.append(multiprocessing.get_context("fork").Process(target=others[0].poll))
        started[0].start()
        return started[0]

    before = open_files()
    with pytest.raises(OSError, match="no more processes"):
        WorkerPool(2, start)
    assert not multiprocessing.active_children() and open_files() == before


@pytest.mark.slow
def test_an_error_of_a_fresh_process_is_raised_here(make_setup):
    @dataclass(frozen=True)
    class Elsewhere(Algorithm):
        """Fails in any process but that which made it."""

        home: int

        def begin(self, anchor, ctx):
            assert os.getpid() == self.home, "far from home"
            return anchor

    setup = make_setup(Elsewhere(os.getpid()), engine="workers(processes=1)")
    with a_thread(), pytest.raises(RuntimeError, match="far from home"):
        next(simulate(setup))
    assert not shared_memory()


SCRIPT = """
import multiprocessing, os, sys, threading
environment = dict(os.environ)
import torch
from torch import nn
import gcfed

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.drop = nn.Linear(8, 3), nn.Dropout(0.3)

    def forward(self, x):
        return self.drop(self.fc(x))

class Nested(torch.autograd.Function):
    "Whose backward pass does another one: from a depth on, torch takes threads for that."

    @staticmethod
    def forward(ctx, x, depth):
        ctx.depth = depth
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        if ctx.depth:
            with torch.enable_grad():
                inner = torch.ones(1, requires_grad=True)
                Nested.apply(inner, ctx.depth - 1).sum().backward()
        return g, None

def hashes():
    torch.manual_seed(0)
    x, y = torch.randn(60, 8), torch.arange(60) % 3
    kinds = set()
    def watch(record):
        kinds.add("forked" if multiprocessing.active_children() else "fresh")
    def loss(z, y):
        return nn.functional.cross_entropy(z, y, reduction="none")
    history = gcfed.fit(
        Net(), (x, y), (x, y), loss=loss,
        clients=4, cohort=2, rounds=2, engine="workers(processes=1)", on_round=watch,
        progress=False,
    )
    print(*kinds)
    return history["weights_sha256"]

first = hashes()
if sys.argv[1] == "thread":
    threading.Thread(target=threading.Event().wait, daemon=True).start()
else:
    Nested.apply(torch.ones(1, requires_grad=True), 100).sum().backward()
print("the same" if hashes() == first else "others")
print("left alone" if dict(os.environ) == environment else "changed")
"""


@pytest.mark.slow
@pytest.mark.parametrize("why", ["thread", "autograd"])
def test_a_script_that_cannot_fork(why, tmp_path):
    """What ``__main__`` defines travels, nobody runs the script again, its environment stays."""
    (tmp_path / "script.py").write_text(SCRIPT)
    answer = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:gcfed", "script.py", why],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert answer.stderr == ""
    assert answer.stdout.splitlines() == ["forked", "fresh", "the same", "left alone"]


def test_how_memory_is_freed_changes_in_workers_alone(make_setup, tmp_path, monkeypatch):
    """`mallopt` would hold for the whole process."""

    def note():
        (tmp_path / str(os.getpid())).touch()

    monkeypatch.setattr("gcfed.processes.keep_freed_memory", note)
    # a fresh process would not know of the line above; other tests may have left a thread
    monkeypatch.setattr("gcfed.engines.workers.can_fork", lambda: True)
    rounds = simulate(make_setup(GCFed(), engine="workers(processes=2)"))
    next(rounds)
    workers = {str(p.pid) for p in multiprocessing.active_children()}
    assert {path.name for path in tmp_path.iterdir()} == workers and len(workers) == 2
