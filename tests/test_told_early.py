"""Rounds that an engine is told before the one before is over, and a server that is recorded.

As on a GPU, whose part a stand-in plays: it runs what CUDA would record.
"""

from dataclasses import dataclass, replace

import pytest
import torch
from test_recorded import on_cpu

from gcfed import Algorithm, Vectorized, parse, simulate, simulate_together
from gcfed.core import tree
from gcfed.core.server import NonFiniteUpdateError
from gcfed.engines.lineup import copy
from gcfed.simulation import loop, server_half, underway
from gcfed.simulation.server_half import UNKNOWN

pytest_plugins = ["test_recorded"]


def leaving_in_place():
    """An engine that leaves what clients send in one place, as a recording on a GPU does."""

    class InPlace(type(on_cpu(Vectorized))):
        places = None

        def __call__(self, jobs):
            trained = super().__call__(jobs)
            if self.places is None:
                self.places = tree.map(torch.clone, tuple(trained))
            copy(self.places, tuple(trained))
            return list(self.places)

    return InPlace()


@pytest.fixture
def told(monkeypatch):
    """The rounds in the order in which an engine is told and in which they are finished."""
    seen = []
    real, finish = underway.Underway.__init__, underway.Underway.finish

    def begun(self, *given):
        seen.append(("told", given[4]))
        real(self, *given)

    def finished(self):
        seen.append(("finished", self.t))
        return finish(self)

    monkeypatch.setattr(underway.Underway, "__init__", begun)
    monkeypatch.setattr(underway.Underway, "finish", finished)
    return seen


@pytest.fixture
def replays(monkeypatch):
    """How often the server's half was replayed."""
    calls = []
    real = server_half.RecordedStep.__call__

    def counted(self, *given):
        calls.append(1)
        return real(self, *given)

    monkeypatch.setattr(server_half.RecordedStep, "__call__", counted)
    return calls


def same(found, expected):
    for a, b in zip(found, expected, strict=True):
        assert a.round == b.round and a.ids == b.ids and a.dropped == b.dropped
        assert a.update_norm == b.update_norm
        for (path, x), (_, y) in zip(
            tree.leaves((a.server, a.losses, a.uploads)),
            tree.leaves((b.server, b.losses, b.uploads)),
            strict=True,
        ):
            assert torch.equal(x.nan_to_num(7e7), y.nan_to_num(7e7)), path


def at_once(setup, monkeypatch):
    """The rounds by the same engine, told one by one, the server's half as it is written."""
    with monkeypatch.context() as patch:
        patch.setattr(loop._Rounds, "_begin_early", lambda self, now: None)
        patch.setattr(server_half.ServerHalf, "_record", lambda self, *given: None)
        return list(simulate(replace(setup, engine=on_cpu(Vectorized))))


def test_the_next_round_is_told_before_one_is_finished(make_setup, told):
    list(simulate(make_setup(parse("gcfed"), engine=on_cpu(Vectorized), rounds=4)))
    assert told == [
        ("told", 0), ("told", 1), ("finished", 0), ("told", 2), ("finished", 1),
        ("told", 3), ("finished", 2), ("finished", 3),
    ]  # fmt: skip


def test_an_engine_that_does_all_at_once_is_told_one_by_one(make_setup, told):
    list(simulate(make_setup(parse("gcfed"), engine="sequential", rounds=2)))
    assert told == [("told", 0), ("finished", 0), ("told", 1), ("finished", 1)]


@pytest.mark.parametrize(
    "text",
    ["fedavg", "gcfed", "fedadam", "fedyogi + gcfed", "fedacg", "clip_update(norm=1) + noise"],
)
def test_the_same_bits_as_one_by_one(text, make_setup, monkeypatch, replays):
    """With equal clients, whose results an engine leaves in one place, by a recorded server."""
    setup = make_setup(parse(text), engine=leaving_in_place(), rounds=5, epochs=None, steps=3)
    found = list(simulate(setup))
    assert len(replays) == 4  # all but the first
    same(found, at_once(setup, monkeypatch))


def test_what_comes_from_another_place_is_not_read_from_the_old_one(make_setup, monkeypatch):
    """The engine moves after three rounds; from then on nothing is replayed, and nothing kept."""
    engine = leaving_in_place()
    setup = make_setup(parse("fedadam"), engine=engine, rounds=6, epochs=None, steps=2)
    found, halves, real = [], set(), server_half.ServerHalf.__call__
    monkeypatch.setattr(
        server_half.ServerHalf, "__call__", lambda self, *a: halves.add(self) or real(self, *a)
    )
    for result in simulate(setup):
        found.append(result)
        if result.round == 2:
            (half,) = halves
            assert half._recorded is not None
            engine.places = None
    assert half._recorded is None and half._recorder is None
    same(found, at_once(setup, monkeypatch))


def test_what_is_yielded_stays_as_it_was(make_setup):
    """A later round is made in the same place."""
    setup = make_setup(parse("fedadam"), engine=leaving_in_place(), rounds=5, epochs=None, steps=2)
    copies = [(r, tree.map(torch.clone, (r.server, r.losses))) for r in simulate(setup)]
    for result, copied in copies:
        for (_, x), (_, y) in zip(
            tree.leaves((result.server, result.losses)), tree.leaves(copied), strict=True
        ):
            assert torch.equal(x, y)


@dataclass(frozen=True)
class Halving(Algorithm):
    """Steps half as far in every odd round."""

    def update(self, delta, ctx):
        return tree.map(lambda x: x / 2 if ctx.round % 2 else x, delta), ctx.state


def test_a_hook_that_asks_for_the_round_is_not_recorded(make_setup, monkeypatch, replays):
    setup = make_setup(Halving(), engine=leaving_in_place(), rounds=4, epochs=None, steps=2)
    found = list(simulate(setup))
    assert not replays
    same(found, at_once(setup, monkeypatch))


@pytest.mark.parametrize(
    "ask",
    [
        lambda t: t == 0, lambda t: t != 0, lambda t: t < 1, lambda t: bool(t), lambda t: 1 + t,
        lambda t: t % 2, lambda t: 2**t, lambda t: f"{t}", lambda t: range(t), lambda t: float(t),
        lambda t: {t: 1}, lambda t: -t, lambda t: t.bit_length(), lambda t: torch.tensor(t),
        lambda t: torch.ones(2) * t, lambda t: [1, 2][t], lambda t: round(t), lambda t: 1 << t,
    ],
)  # fmt: skip
def test_no_question_to_an_unknown_round_is_answered(ask):
    with pytest.raises((TypeError, AttributeError, RuntimeError)):
        ask(UNKNOWN)


@dataclass(frozen=True)
class Writing(Algorithm):
    """Writes into what clients sent."""

    def aggregate(self, uploads, weights, ctx):
        for x in uploads.delta.values():
            x.mul_(2)
        return super().aggregate(uploads, weights, ctx)


def test_a_hook_that_writes_is_neither_recorded_nor_overtaken(make_setup, told, replays):
    list(simulate(make_setup(Writing(), engine=leaving_in_place(), rounds=2)))
    assert not replays
    assert told == [("told", 0), ("finished", 0), ("told", 1), ("finished", 1)]


@pytest.mark.parametrize("policy", ["drop", "fail"])
def test_an_update_that_is_not_finite_ends_as_one_by_one(policy, broken, make_setup, monkeypatch):
    setup = make_setup(
        parse("gcfed"), data=broken, engine=on_cpu(Vectorized), rounds=8, on_nonfinite=policy
    )

    def rounds(run):
        found = []
        try:
            for result in run:
                found.append(result)
        except NonFiniteUpdateError as error:
            return found, str(error)
        return found, None

    found, error = rounds(simulate(setup))
    with monkeypatch.context() as patch:
        patch.setattr(loop._Rounds, "_begin_early", lambda self, now: None)
        expected, same_error = rounds(simulate(replace(setup, engine=on_cpu(Vectorized))))
    assert error == same_error and (error is None) == (policy == "drop")
    assert policy == "fail" or any(r.dropped for r in found)
    same(found, expected)


@dataclass(frozen=True)
class Failing(Algorithm):
    """Raises in the third round."""

    def init_server(self, params):
        return {"n": {"n": torch.zeros(())}}

    def broadcast(self, params, state):
        if state["n"]["n"] == 2:
            raise ValueError("enough")
        return params, {}

    def update(self, delta, ctx):
        return delta, {"n": {"n": ctx.state["n"]["n"] + 1}}


def test_rounds_before_one_that_fails_are_given(make_setup):
    setup, found = make_setup(Failing(), engine=on_cpu(Vectorized), rounds=5), []
    with pytest.raises(Exception, match="enough"):
        for result in simulate(setup):
            found.append(result.round)
    assert found == [0, 1]


def test_a_run_that_ends_leaves_those_beside_it_as_they_are(broken, make_setup, monkeypatch):
    """One of two diverges while the next round of both is under way."""
    torn = make_setup(parse("gcfed"), data=broken, engine="sequential", rounds=6)
    seeds = [replace(torn, schedule=replace(torn.schedule, seed=s)) for s in (0, 3)]
    alone = [_rounds_of(simulate(seed)) for seed in seeds]
    assert len({len(found) for found in alone}) > 1  # they end in different rounds
    engine = on_cpu(Vectorized)
    together = [[], []]
    for outcomes in simulate_together([replace(seed, engine=engine) for seed in seeds]):
        for i, result in outcomes.items():
            if not isinstance(result, Exception):
                together[i].append(result.ids)
    assert together == alone


def _rounds_of(run):
    found = []
    try:
        for result in run:
            found.append(result.ids)
    except NonFiniteUpdateError:
        pass
    return found
