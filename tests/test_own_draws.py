"""Modules that draw by functions which no key can answer: generators are seeded from it instead."""

import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from gcfed import Algorithm, Model, Workers, simulate
from gcfed.core import keys
from gcfed.core.draw_trial import ModelDraws, draws_of
from gcfed.core.seeding import generators_seeded
from gcfed.engines import choose
from gcfed.errors import InputError
from gcfed.simulation.evaluation import predict
from gcfed.simulation.snapshot import start

TOLD = "draws random numbers by functions whose numbers cannot come from a key.*slower"


class Noise(nn.Module):
    """Scales what it is given, in training."""

    def __init__(self, draw):
        super().__init__()
        self.draw = draw

    def forward(self, x):
        return x * (1 + self.draw()) if self.training else x


WAYS = {
    "torch": lambda: torch.ones(9).multinomial(1),
    "random": lambda: random.random(),
    "numpy": lambda: np.random.rand(),
}


def noisy(draw):
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.Sequential(Noise(draw)))


@pytest.mark.parametrize("draw", WAYS.values(), ids=list(WAYS))
def test_a_run_can_be_repeated_whatever_else_draws(draw, run, close):
    module, short, results = noisy(draw), {"rounds": 1, "steps": 2}, []
    for _ in range(2):
        with pytest.warns(UserWarning, match=rf"^2\.0 \(Noise\) {TOLD}"), keys.untouched():
            results.append(run(Algorithm(), module=module, engine="sequential", **short))
        draw()
    close(results[0].server, results[1].server, 0)
    still = run(Algorithm(), module=noisy(float), engine="sequential", **short)
    assert (results[0].losses - still.losses).abs().max() > 1e-3


class AlwaysNoise(Noise):
    def forward(self, x):
        return x * (1 + self.draw())


@pytest.mark.parametrize("draw", WAYS.values(), ids=list(WAYS))
def test_a_model_is_judged_twice_the_same_though_it_draws(draw, make_setup):
    module = nn.Sequential(nn.Flatten(), nn.Linear(16, 5), AlwaysNoise(draw))
    setup = make_setup(Algorithm(), module=module, engine="sequential")
    assert setup.own_draws == ("2 (AlwaysNoise)",)
    x, scores = setup.data.x, []
    for _ in range(2):
        with keys.untouched():
            scores.append(predict(setup, start(setup)[0], x).logits)
        draw()
    assert torch.equal(*scores)


def test_a_generator_of_its_own_is_warned_of(make_setup):
    own = np.random.default_rng(0)
    for always in (Noise, AlwaysNoise):
        module = nn.Sequential(nn.Flatten(), nn.Linear(16, 5), always(own.random))
        setup = make_setup(Algorithm(), module=module, engine="sequential", rounds=1)
        with pytest.warns(UserWarning, match="cannot be repeated nor resumed"):
            next(simulate(setup))


def test_what_a_failed_trial_found_is_not_remembered():
    model = Model(nn.Linear(2, 2))

    def fails(train, key):
        raise ValueError

    assert draws_of(model, fails) == ModelDraws()
    found = draws_of(model, lambda train, key: torch.rand(2))
    assert found.in_evaluation and found.repeats


def test_processes_draw_what_the_loop_draws(run, close):
    """Of a ragged cohort: a process trains each batch without padding."""
    with Workers(processes=2) as workers, pytest.warns(UserWarning, match=TOLD):
        loop, parts = (
            run(Algorithm(), module=noisy(WAYS["torch"]), engine=engine, rounds=1, epochs=1)
            for engine in ("sequential", workers)
        )
    close(loop.server, parts.server)


def test_an_engine_that_maps_over_clients_refuses(make_setup):
    match = r"the vectorized engine cannot train 2\.0 \(Noise\): .*sequential or workers"
    with pytest.raises(InputError, match=match):
        make_setup(Algorithm(), module=noisy(random.random), engine="vectorized")


def test_auto_takes_an_engine_that_can(make_setup):
    setup = make_setup(Algorithm(), module=noisy(random.random), engine="auto")
    assert setup.chosen.name in ("sequential", "workers")
    weight = SimpleNamespace(device=torch.device("cuda"), dtype=torch.float32)
    on_a_gpu = SimpleNamespace(
        params={"w": weight}, cross_batch=[], convolutions=[nn.Conv2d(1, 1, 1)]
    )
    chosen = choose("auto", on_a_gpu, 50, own_draws=("2.0 (Noise)",))
    assert chosen.name == "sequential"
    assert chosen.reason == "2.0 (Noise) draws numbers of its own"
    assert choose("auto", on_a_gpu, 50).name != "sequential"


def test_most_models_have_none(make_setup):
    assert make_setup(Algorithm()).own_draws == ()
    dropping = nn.Sequential(nn.Flatten(), nn.AlphaDropout(0.5), nn.Linear(16, 5))
    assert make_setup(Algorithm(), module=dropping).own_draws == ()


def test_a_model_that_cannot_run_is_left_to_its_first_step(make_setup):
    wrong = nn.Sequential(nn.Flatten(), nn.Linear(3, 5))
    assert make_setup(Algorithm(), module=wrong).own_draws == ()


def test_generators_are_left_as_they_were():
    def drawn():
        return random.random(), np.random.rand(), torch.rand(()).item()

    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    with generators_seeded(keys.key(1)):
        first = drawn()
    with generators_seeded(keys.key(1)):
        second = drawn()
    with generators_seeded(keys.key(2)):
        other = drawn()
    assert first == second and not set(first) & set(other)
    assert random.getstate() == before[0]
    assert np.array_equal(np.random.get_state()[1], before[1][1])
    assert torch.equal(torch.get_rng_state(), before[2])
