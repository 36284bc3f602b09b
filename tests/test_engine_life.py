"""The life of an engine: opened for a run, closed at its end, and nothing is left behind."""

import multiprocessing

import pytest
import torch
from leftovers import children, nothing_left, shared_memory
from running import tiny
from torch import nn

import gcfed
from gcfed import (
    ENGINES,
    Algorithm,
    Engine,
    InputError,
    Model,
    Sequential,
    Workers,
    fit,
    run_round,
    simulate,
    simulate_together,
    start,
)
from gcfed.algorithms import GCFed
from gcfed.engines import choose, needs_cuda
from gcfed.engines.shared_memory import allocated, lay_into, shape

pytest_plugins = ["running"]


class Failing(Algorithm):
    """Fails in the server's second update, when workers are at work."""

    def update(self, delta, ctx):
        if ctx.round == 1:
            raise ZeroDivisionError("in a round")
        return super().update(delta, ctx)


@pytest.fixture
def busy(make_setup):
    """Where a run with workers is, after its first round."""

    def begin(algorithm=None, **changes):
        rounds = simulate(
            make_setup(algorithm or GCFed(), engine="workers(processes=2)", **changes)
        )
        next(rounds)
        assert len(multiprocessing.active_children()) == 2 and len(children()) >= 2
        assert shared_memory()
        return rounds

    return begin


def test_a_run_to_its_end_leaves_nothing(busy):
    with nothing_left():
        assert len(list(busy())) == 2


def test_a_run_that_is_given_up_leaves_nothing(busy):
    with nothing_left():
        rounds = busy()
        rounds.close()
    with nothing_left():
        rounds = busy()
        del rounds


def test_a_round_that_fails_leaves_nothing(busy):
    with nothing_left(), pytest.raises(InputError, match=r"Failing .* ZeroDivisionError"):
        list(busy(Failing()))


def test_several_runs_together_leave_nothing(make_setup):
    setup = make_setup(GCFed(), engine="workers(processes=2)", rounds=2)
    with nothing_left():
        for _ in simulate_together([setup, setup]):
            assert len(multiprocessing.active_children()) == 2


def test_a_round_by_itself_leaves_nothing(make_setup):
    setup = make_setup(GCFed(), engine="workers(processes=2)")
    with nothing_left():
        run_round(setup, *start(setup), 0, [1, 2])
        assert not multiprocessing.active_children()


def test_a_round_leaves_the_engine_it_is_given_open(make_setup):
    setup = make_setup(GCFed())
    with nothing_left(), Workers(processes=1) as engine:
        run_round(setup, *start(setup), 0, [1, 2], engine=engine)
        assert len(multiprocessing.active_children()) == 1


@pytest.mark.usefixtures("float32")
def test_fit_leaves_nothing_whatever_its_caller_does():
    x, y = torch.randn(40, 8), torch.arange(40) % 2
    settings = {"clients": 4, "cohort": 2, "rounds": 2, "engine": "workers(processes=2)"}
    settings["batch_size"] = 10

    def fail(record):
        assert len(multiprocessing.active_children()) == 2
        raise ZeroDivisionError

    with nothing_left():
        history = fit(nn.Linear(8, 2), (x, y), (x, y), **settings)
    assert history.experiment.config.engine == "workers(processes=2)"
    with nothing_left(), pytest.raises(ZeroDivisionError) as failure:
        fit(nn.Linear(8, 2), (x, y), (x, y), on_round=fail, **settings)
    assert failure.tb is not None  # which holds on to what the frames of `fit` held


@pytest.mark.usefixtures("float32")
def test_run_leaves_nothing(tmp_path):
    def fail(records):
        assert len(multiprocessing.active_children()) == 2
        raise ZeroDivisionError

    config = tiny(engine="workers(processes=2)", rounds=2)
    with nothing_left():
        gcfed.run(config, tmp_path / "a")
        assert gcfed.load_run(tmp_path / "a").config.engine == "workers(processes=2)"
        assert gcfed.verify(tmp_path / "a").holds
    with nothing_left(), pytest.raises(ZeroDivisionError):
        gcfed.run(config, tmp_path / "b", fail)


def test_the_same_engine_goes_on_after_it_was_closed(make_setup, close):
    engine, setup = Workers(processes=1), make_setup(GCFed())
    with nothing_left():
        first = run_round(setup, *start(setup), 0, [1, 2], engine=engine)
        engine.close()
        engine.close()
        again = run_round(setup, *start(setup), 0, [1, 2], engine=engine)
        engine.close()
    close(first.server, again.server, 0)


# engines by name, with arguments


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("workers", "workers"),
        ("workers()", "workers"),
        ("workers(processes=None)", "workers"),
        ("workers( processes = 3 )", "workers(processes=3)"),
        ("vectorized", "vectorized"),
    ],
)
def test_an_engine_is_recorded_as_it_was_asked_for(text, written, make_setup):
    assert make_setup(GCFed(), engine=text).chosen.name == written


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("workers(processes=0)", "processes=...) is a positive count; not 0"),
        ("workers(cores=2)", "unknown hyper-parameter of workers: 'cores'"),
        ("workers(processes='two')", "not 'two'"),
        ("threads", "unknown engine: 'threads'"),
        ("sequential(fast=True)", "unknown hyper-parameter of sequential: 'fast'"),
    ],
)
def test_a_wrong_engine_is_refused_before_a_run(text, message, make_setup, tmp_path):
    with pytest.raises(InputError) as wrong:
        make_setup(GCFed(), engine=text)
    assert message in str(wrong.value)
    with pytest.raises(InputError) as wrong:
        gcfed.run(tiny(engine=text), tmp_path / "a")
    assert message in str(wrong.value) and not (tmp_path / "a").exists()


def test_which_engines_need_cuda():
    ours = [name for name in ENGINES if name != "ray"]  # which may not be installed
    assert [name for name in ours if needs_cuda(name)] == ["fused", "streams"]
    assert not needs_cuda("auto") and not needs_cuda("workers(processes=2)")


def test_engines_of_ones_own(make_setup, close):
    """A subclass, by name or as an object, and any function of jobs."""
    closed = []

    class Mine(Engine):
        name = "mine"

        def __call__(self, jobs):
            return Sequential()(jobs)

        def close(self):
            closed.append(self)

    def function(jobs):
        return Sequential()(jobs)

    *_, expected = simulate(make_setup(GCFed(), engine="sequential"))
    mine = Mine()
    for engine, name in ((mine, "mine"), (function, "own")):
        setup = make_setup(GCFed(), engine=engine)
        assert (setup.chosen.name, setup.chosen.reason) == (name, "as set")
        *_, found = simulate(setup)
        close(found.server, expected.server, 0)
    assert closed == [mine]


def test_runs_that_go_together_have_one_engine(make_setup):
    def together(*engines):
        return simulate_together([make_setup(GCFed(), engine=engine) for engine in engines])

    one, other = Sequential(), Sequential()
    for engines in (("sequential", "vectorized"), (one, other), (one, "sequential")):
        with pytest.raises(InputError, match="with the same engine"):
            next(together(*engines))


# shared memory


def test_tensors_in_shared_memory_are_seen_by_every_process():
    like = tuple(
        shape(torch.empty(3, 2, dtype=dtype), *count)
        for dtype, count in ((torch.float64, ()), (torch.uint8, (2000,)), (torch.bool, (1,)))
    )
    with allocated((*like, shape(torch.empty(0, 4)))) as file:
        first, many, flag, empty = lay_into(file, (*like, torch.empty(0, 4)))
        again = lay_into(file, like)
    child = multiprocessing.get_context("fork").Process(target=many[1999].fill_, args=(7,))
    child.start()
    child.join()
    first.fill_(0.5)
    flag.fill_(True)
    assert [x.sum().item() for x in again] == [3.0, 42, 6]
    assert many.shape == (2000, 3, 2) and empty.shape == (0, 4)
    assert not again[1][:1999].any()
    assert len(shared_memory()) > 0
    del first, many, flag, again, child
    assert not shared_memory()


@pytest.mark.parametrize(
    ("layers", "batch_size", "precision", "name", "reason"),
    [
        ([nn.Conv2d(1, 2, 3)], 50, "float32", "streams", "side by side"),
        ([nn.Conv2d(1, 2, 3)], 50, "auto", "fused", "operators for all clients"),
        ([nn.Conv2d(1, 2, 3, dtype=torch.float64)], 50, "auto", "streams", "side by side"),
        ([nn.Conv2d(1, 2, 3)], 50, "bf16", "fused", "operators for all clients"),
        ([nn.Conv2d(1, 2, 3), nn.Conv2d(2, 2, 7)], 50, "bf16", "streams", "side by side"),
        ([nn.Conv2d(1, 2, 3)], 10, "bf16", "fused", "operators for all clients"),
        ([nn.Conv2d(1, 2, 3)], 10, "tf32", "fused", "operators for all clients"),
        ([nn.Conv2d(1, 2, 3)], 10, "float32", "vectorized", "together"),
        ([nn.Linear(2, 2)], 50, "bf16", "vectorized", "together"),
        ([nn.Linear(2, 2), nn.BatchNorm1d(2)], 50, "auto", "sequential", "1 (BatchNorm1d)"),
    ],
)
def test_what_suits_an_accelerator(layers, batch_size, precision, name, reason):
    """Asked of a model that has no memory at all, as anywhere but on a CPU."""
    model = Model(nn.Sequential(*layers)).to(torch.device("meta"))
    chosen = choose("auto", model, batch_size, precision)
    assert chosen.name == name and reason in chosen.reason
