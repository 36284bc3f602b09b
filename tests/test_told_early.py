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
from gcfed.core.types import Upload
from gcfed.engines.lineup import copy
from gcfed.engines.recorder import Recording
from gcfed.errors import InputError
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


@pytest.fixture(autouse=True)
def in_one_place(monkeypatch):
    """What a recording gives lies in one place, as on a GPU, where the stand-in makes it anew."""
    real, places = Recording.__call__, {}

    def replayed(self, *arguments):
        made = real(self, *arguments)
        place = places.setdefault(self, made)
        copy(place, made)
        return place

    monkeypatch.setattr(Recording, "__call__", replayed)


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
        server_half.ServerHalf,
        "__call__",
        lambda self, *a, **k: halves.add(self) or real(self, *a, **k),
    )
    for result in simulate(setup):
        found.append(result)
        if result.round == 2:
            (half,) = halves
            assert half._recorded is not None
            engine.places = None
    assert half._recorded is None and half._recorder is None
    same(found, at_once(setup, monkeypatch))


def test_clients_of_different_numbers_of_steps_are_not_recorded(make_setup, monkeypatch, replays):
    """An engine puts them in order by a copy, which lies where there happens to be room."""
    setup = make_setup(parse("fedavg"), engine=leaving_in_place(), rounds=4)
    assert len({len(plan) for plan in setup.population.draw(0).plans.values()}) > 1
    found = list(simulate(setup))
    assert not replays
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


def test_a_hook_that_writes_is_neither_recorded_nor_overtaken(
    make_setup, told, replays, monkeypatch
):
    setup = make_setup(Writing(), engine=leaving_in_place(), rounds=3, steps=2)
    found = list(simulate(setup))
    assert not replays
    assert told == [(what, t) for t in range(3) for what in ("told", "finished")]
    same(found, at_once(setup, monkeypatch))  # nor is it called more often


@dataclass(frozen=True)
class WritingLater(Algorithm):
    """Writes into what clients sent, all rounds but the first."""

    def init_server(self, params):
        return {"n": {"n": torch.zeros(())}}

    def aggregate(self, uploads, weights, ctx):
        if ctx.state["n"]["n"] > 0:
            uploads.delta["fc2.bias"].mul_(2)
        return super().aggregate(uploads, weights, ctx)

    def update(self, delta, ctx):
        return delta, {"n": {"n": ctx.state["n"]["n"] + 1}}


def test_a_hook_that_writes_while_it_is_recorded_is_told(make_setup):
    """What clients sent was then written into more than once."""
    setup, found = make_setup(WritingLater(), engine=leaving_in_place(), steps=2), []
    with pytest.raises(InputError, match="hooks return new tensors"):
        for result in simulate(setup):
            found.append(result.round)
    assert found == [0]


@dataclass(frozen=True)
class Counting(Algorithm):
    """Counts rounds on another device."""

    def init_server(self, params):
        return {"n": {"n": torch.zeros((), device="meta")}}

    def update(self, delta, ctx):
        return delta, {"n": {"n": ctx.state["n"]["n"] + 1}}


def test_what_another_device_computes_is_not_recorded(make_setup, replays):
    """A GPU's recording would hold a number of the host's as it was."""
    list(simulate(make_setup(Counting(), engine=leaving_in_place(), rounds=4, steps=2)))
    assert not replays


def test_what_lies_elsewhere_each_round_is_not_recorded(make_setup, monkeypatch):
    """As with clients of different numbers of steps, who are put in order by a copy."""

    class Elsewhere(type(on_cpu(Vectorized))):
        places = ()

        def __call__(self, jobs):
            trained = tree.map(torch.clone, tuple(super().__call__(jobs)))
            self.places = (*self.places, trained)  # so that no memory is used again
            return list(trained)

    recorded, real = [], server_half.ServerHalf._record
    monkeypatch.setattr(
        server_half.ServerHalf, "_record", lambda *given: recorded.append(1) or real(*given)
    )
    list(simulate(make_setup(parse("gcfed"), engine=Elsewhere(), rounds=4, steps=2)))
    assert not recorded


@dataclass(frozen=True)
class Passing(Algorithm):
    """Has clients send what they were given, which lies where an engine puts the next ones."""

    def upload(self, delta, ctx):
        return Upload(delta, {"n": {"n": ctx.num_examples}}, ctx.memory)


@pytest.mark.parametrize("algorithm", [parse("gcfed"), Passing()])
@pytest.mark.parametrize("policy", ["drop", "fail"])
def test_an_update_that_is_not_finite_ends_as_one_by_one(
    policy, algorithm, broken, make_setup, monkeypatch
):
    """An engine has by then trained the next round in the same place."""
    engine = leaving_in_place()
    setup = make_setup(
        algorithm, data=broken, engine=engine, rounds=8, on_nonfinite=policy, steps=3
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


def of_seeds(setup, *seeds):
    return [replace(setup, schedule=replace(setup.schedule, seed=seed)) for seed in seeds]


def test_a_run_that_ends_leaves_those_beside_it_as_they_are(broken, make_setup, close):
    """One of two diverges while the next round of both is under way."""
    torn = make_setup(parse("gcfed"), data=broken, engine="sequential", rounds=6)
    alone = [_rounds_of(simulate(seed)) for seed in of_seeds(torn, 0, 3)]
    assert len({len(found) for found in alone}) > 1  # they end in different rounds
    together = [[], []]
    for outcomes in simulate_together(of_seeds(replace(torn, engine=on_cpu(Vectorized)), 0, 3)):
        for i, result in outcomes.items():
            if not isinstance(result, Exception):
                together[i].append(result.server)
    close(together, alone)


def test_a_round_is_done_again_by_the_program_there_is(broken, make_setup):
    """Also where the runs beside it are through: with fewer clients, last bits may be others."""
    engine = on_cpu(Vectorized)
    setup = make_setup(
        parse("gcfed"), data=broken, engine=engine, rounds=8, on_nonfinite="drop", steps=2
    )
    dropped = [
        [r.dropped for r in found.values()] for found in simulate_together(of_seeds(setup, 0, 3))
    ]
    assert [[], [4]] in dropped
    assert len(engine.programs) == 1


def _rounds_of(run):
    found = []
    try:
        for result in run:
            found.append(result.server)
    except NonFiniteUpdateError:
        pass
    return found
