"""Rounds that are concluded before it is known whether what came is finite."""

from dataclasses import dataclass, replace

import pytest
import torch

from gcfed import Algorithm, parse, simulate, start
from gcfed.core import keys, tree
from gcfed.core.server import Arrived, NonFiniteUpdateError, are_finite, finite_rows
from gcfed.core.transfer import on_device
from gcfed.errors import DivergedError, InputError
from gcfed.simulation import underway
from gcfed.simulation.ahead import begin_trusting
from gcfed.simulation.round import Sent, conclude, prepare, receive
from gcfed.simulation.server_half import ServerHalf

WITHOUT_MEMORY = ("fedavg", "gcfed", "fedyogi", "fedlc + fedavgm", "fedacg", "clip_update(norm=1)")
WITH_MEMORY = ("scaffold", "moon", "feddyn", "fedvarp", "fedvarp + gcfed")


def trained(setup, t=0):
    """A round up to what its clients learnt."""
    at, drawn = start(setup), setup.population.draw(t)
    ids = list(drawn.plans)
    job = prepare(setup, *at, t, ids, list(drawn.plans.values()))
    (work,) = setup.chosen.make()([job])
    return at, t, Sent.by(job), work, drawn


def half(setup):
    return ServerHalf(setup.server_task)


@pytest.mark.parametrize("text", WITHOUT_MEMORY)
def test_a_trusting_round_is_a_careful_one(text, make_setup, close):
    setup = make_setup(parse(text), engine="sequential")
    at, t, sent, work, drawn = trained(setup)
    found = begin_trusting(setup, half(setup), *at, t, sent, work, drawn).finish()
    part, clients = receive(setup, *at, t, list(drawn.plans), sent, work)
    expected = conclude(setup, at.server, clients, t, [part], drawn.absent)
    close(
        (found.server, found.uploads, found.losses),
        (expected.server, expected.uploads, expected.losses),
        0,
    )
    assert found.update_norm == expected.update_norm
    assert (found.ids, found.dropped, found.bytes_up) == (expected.ids, [], expected.bytes_up)


@pytest.mark.parametrize("text", WITH_MEMORY)
def test_what_the_host_keeps_of_clients_is_not_concluded_ahead(text, make_setup):
    setup = make_setup(parse(text), engine="sequential")
    at, *round = trained(setup)
    assert begin_trusting(setup, half(setup), *at, *round) is None


def first_with(setup, client):
    """The first round that draws a client."""
    return next(t for t in range(100) if client in setup.population.sample(t))


@pytest.mark.parametrize("text", WITHOUT_MEMORY)
def test_what_is_not_finite_is_found_out(text, broken, make_setup):
    setup = make_setup(parse(text), data=broken, engine="sequential")
    at, *round = trained(setup, first_with(setup, 4))
    assert begin_trusting(setup, half(setup), *at, *round).finish() is None


@dataclass(frozen=True)
class Strict(Algorithm):
    """Counts on the promise that what it is given is finite."""

    def update(self, delta, ctx):
        if not all(x.isfinite().all() for x in delta.values()):
            raise ValueError("this was not to be")
        return delta, ctx.state


def test_runs_end_and_go_on_as_without_trust(broken, make_setup, monkeypatch, close):
    """Hooks that refuse what is not finite are never the ones to tell."""
    for algorithm in (parse("gcfed"), Strict()):
        setup = make_setup(
            algorithm, data=broken, engine="sequential", rounds=8, on_nonfinite="drop"
        )
        strict = replace(setup, schedule=replace(setup.schedule, on_nonfinite="fail"))
        found = list(simulate(setup))
        with pytest.raises(NonFiniteUpdateError) as failure:
            list(simulate(strict))
        with monkeypatch.context() as patch:
            patch.setattr(underway, "begin_trusting", lambda *round, **_: None)
            expected = list(simulate(setup))
            with pytest.raises(NonFiniteUpdateError) as error:
                list(simulate(strict))
        assert [r.dropped for r in found] == [r.dropped for r in expected]
        assert any(r.dropped for r in found)
        close([r.server for r in found][-1], [r.server for r in expected][-1], 0)
        assert str(failure.value) == str(error.value)


@dataclass(frozen=True)
class Writing(Algorithm):
    """Writes into what it is given."""

    def init_server(self, params):
        return {"m": tree.zeros(params)}

    def update(self, delta, ctx):
        m = ctx.state["m"]
        for name in m:
            m[name].mul_(0.9).add_(delta[name])
        ctx.key.add_(1)
        return tree.map(torch.clone, m), {"m": m}


def test_hooks_that_write_into_what_they_are_given_are_told(broken, make_setup):
    setup = make_setup(Writing(), data=broken, engine="sequential", rounds=8, on_nonfinite="drop")
    with pytest.raises(InputError, match=r"hooks return new tensors \(x \+ y"):
        list(simulate(setup))


@dataclass(frozen=True)
class WritingAndRefusing(Writing):
    """Refuses what is not finite when it has written it down."""

    def update(self, delta, ctx):
        step, state = super().update(delta, ctx)
        return Strict().update(step, ctx)[0], state


def test_hooks_that_write_and_refuse_are_told(broken, make_setup):
    """Else the round would be done again from what they wrote."""
    algorithm = WritingAndRefusing()
    setup = make_setup(algorithm, data=broken, engine="sequential", rounds=8, on_nonfinite="drop")
    with pytest.raises(InputError, match=r"hooks return new tensors \(x \+ y"):
        list(simulate(setup))


def test_a_key_that_was_written_into_is_nobody_elses(make_setup):
    setup = make_setup(Writing(), engine="sequential")
    task, at = setup.server_task, start(setup)
    task._context(at.server, 0, 3).key.add_(1)
    assert torch.equal(task._context(at.server, 0, 3).key, keys.key(setup.schedule.seed, 0, 10))


@dataclass(frozen=True)
class Endless(Algorithm):
    """Steps further than numbers go."""

    def update(self, delta, ctx):
        return tree.map(lambda x: x / 0, delta), ctx.state


def test_a_step_that_is_not_finite_ends_a_run(make_setup):
    with pytest.raises(DivergedError, match="step of the global weights is not finite"):
        list(simulate(make_setup(Endless(), engine="sequential")))


def arrived(*deltas, counts=()):
    delta = {str(k): x for k, x in enumerate(deltas)}
    n = len(deltas[0])
    message = {"counts": dict(enumerate(counts))}
    return Arrived(list(range(n)), torch.ones(n), torch.zeros(n, 2), delta, message, {})


def test_rows_that_are_finite():
    fine = torch.ones(3, 2, 2)
    assert are_finite(arrived(fine)) and finite_rows(arrived(fine)) == [0, 1, 2]
    torn = fine.clone()
    torn[1, 0, 1] = torch.inf
    assert not are_finite(arrived(fine, torn)) and finite_rows(arrived(fine, torn)) == [0, 2]
    large = torch.full((3, 4), 3e38)  # each is finite, and their sum is not
    assert finite_rows(arrived(fine, large)) == [0, 1, 2]
    assert finite_rows(arrived(torch.tensor([1.0, torch.nan]))) == [0]
    assert are_finite(arrived(torch.ones(2, dtype=torch.int64)))
    assert finite_rows(arrived(fine, counts=[torch.tensor([1, 2, 3])])) == [0, 1, 2]
    assert are_finite(arrived(torch.zeros(2, 0)))


def test_a_mean_that_lies_in_the_memory_of_an_engine_is_copied():
    uploads = {"a": torch.arange(6.0).view(3, 2), "b": torch.ones(3, 1)}
    mean = tree.in_own_memory({"a": uploads["a"][0], "b": uploads["b"].mean(0)}, uploads)
    uploads["a"].zero_()
    assert mean["a"].tolist() == [0, 1] and mean["b"].tolist() == [1]
    median = tree.in_own_memory({"a": uploads["a"].sort(0).values[1]}, uploads)
    assert median["a"].untyped_storage().nbytes() == 16  # and not all that was sorted


def test_small_tensors_travel():
    x, cpu = torch.arange(3), torch.device("cpu")
    assert on_device(x, cpu) is x
    assert on_device(x, torch.device("meta")).is_meta
