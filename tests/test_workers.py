"""The workers engine: processes that agree with the specification, and end when they should."""

import copy
import os
import signal
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from gcfed import (
    AdamW,
    Algorithm,
    FederatedData,
    parse,
    run_round,
    sequential,
    simulate,
    simulate_together,
    start,
)
from gcfed.algorithms import ALGORITHMS, GCFed
from gcfed.engines.workers import Workers


@pytest.fixture
def workers():
    engine = Workers(processes=2)
    yield engine
    engine.close()


def test_every_algorithm_agrees_with_sequential(registered, workers, run, close):
    one, all_ = (run(registered, engine=engine) for engine in (sequential, workers))
    close(one.server, all_.server)
    close(one.uploads, all_.uploads)
    close(one.losses, all_.losses)


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_every_algorithm_agrees_in_float32(name, workers, net, data, run, close):
    module = copy.deepcopy(net).float()
    small = FederatedData(data.x.float(), data.y, data.parts, data.num_classes)
    one, all_ = (
        run(ALGORITHMS[name](), engine=engine, module=module, data=small)
        for engine in (sequential, workers)
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
    first = [p.pid for p in workers._pool._processes]
    next(results)
    assert [p.pid for p in workers._pool._processes] == first and os.getpid() not in first


def test_fewer_clients_are_trained_by_the_same_processes(workers, make_setup, close):
    ours, reference = (
        make_setup(parse("scaffold + gcfed"), engine=engine, cohort_size=4)
        for engine in (workers, sequential)
    )
    pids = []
    for ids in ([2, 3, 7, 8], [9], [4, 3, 2]):
        found, expected = (run_round(s, *start(s), 0, ids) for s in (ours, reference))
        close((found.server, found.uploads), (expected.server, expected.uploads))
        pids.append([p.pid for p in workers._pool._processes])
    assert pids[0] == pids[1] == pids[2]


def test_a_step_is_traced(workers, make_setup):
    next(iter(simulate(make_setup(GCFed(), engine=workers))))
    assert workers._program.gradients is not None


def test_batchnorm_trains_without_a_trace(workers, run, close):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 5))
    one, all_ = (run(GCFed(), module=module, engine=e) for e in (sequential, workers))
    close(one.server, all_.server)


@dataclass(frozen=True)
class Untraceable(Algorithm):
    def gradient(self, grads, params, ctx):
        return grads if grads["fc1.bias"].sum().item() > -1e9 else params


def test_what_cannot_be_traced_runs_as_it_is_written(workers, run, close):
    with pytest.warns(UserWarning, match="run each step as it is written.*tracing it failed"):
        slow = run(Untraceable(), engine=workers)
    close(slow.server, run(Algorithm(), engine=sequential).server)


def test_adamw_steps_in_place_as_it_does_out_of_place(workers, run, close):
    optimizer = AdamW(0.01, weight_decay=0.1)
    one, all_ = (run(GCFed(), optimizer=optimizer, engine=e) for e in (sequential, workers))
    close(one.server, all_.server)


def test_same_seed_same_bits(workers, run):
    a, b = (run(GCFed(), engine=workers).server.params for _ in range(2))
    assert all(torch.equal(a[n], b[n]) for n in a)


def test_hidden_randomness_is_refused(workers, run):
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(16, 5)

        def forward(self, x):
            return self.fc(nn.functional.dropout(x.flatten(1), 0.5, self.training))

    with pytest.raises(ValueError, match="global generator"):
        run(Algorithm(), module=Noisy(), engine=workers)


def test_a_killed_process_is_an_error_that_says_so(workers, make_setup):
    results = iter(simulate(make_setup(GCFed(), engine=workers)))
    next(results)
    os.kill(workers._pool._processes[0].pid, signal.SIGKILL)
    with pytest.raises(RuntimeError, match="a worker process ended"):
        next(results)
    workers.close()


def test_closing_ends_the_processes(make_setup):
    engine = Workers(processes=2)
    next(iter(simulate(make_setup(GCFed(), engine=engine))))
    processes = engine._pool._processes
    engine.close()
    assert all(not p.is_alive() for p in processes)
