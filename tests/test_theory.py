"""Lemma 1 and Theorem 1 of the GC-Fed paper: by hand, by a plain loop, and by the library."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from gcfed import SGD, Algorithm, FederatedData, Model, Schedule, Setup, simulate, start
from gcfed.algorithms import GCFed, GlobalGC, LocalGC
from gcfed.analysis.cases import (
    METHODS,
    Case,
    draw_batches,
    draw_cases,
    take_rounds,
    take_step,
    together,
)
from gcfed.analysis.problems import Problem, draw_problems, squared_error, with_centred_optimum
from gcfed.analysis.theory import (
    advantage_of,
    discrepancy_of,
    estimate,
    gaps,
    limit_of,
    terms_of,
)
from gcfed.core.batches import BatchPlan, plan
from gcfed.simulation.round import run_round

pytest_plugins = ["running"]

PAGE = Path(__file__).parents[1] / "docs" / "theory.md"


def t(*values):
    return torch.tensor(values, dtype=torch.float64)


@pytest.fixture(scope="module")
def cases():
    return draw_cases()


@pytest.fixture(scope="module")
def steps(cases):
    """Steps of both methods, a dict for each case."""
    return [
        {
            name: take_step(case, method, draw_batches(case.problem, 300, 0))
            for name, method in METHODS.items()
        }
        for case in cases
    ]


def by_hand():
    """One output, two inputs, the optimum (1/2, -1/2), L = 5, so the learning rate is 0.1.

    Client A holds x = (1, 0) and (3, 0), client B (0, 1) twice; both are at (1, -1).  In the first
    draw A takes its first example, and in the second its second.
    """
    x = t([[1, 0], [3, 0]], [[0, 1], [0, 1]])
    problem = Problem("by hand", x, x @ t([0.5, -0.5]).T, squared_error, 1.0)
    index = torch.tensor([[[0], [0]], [[1], [0]]])
    case = together("by hand", problem, t([1.0, -1.0]))
    return case, {name: take_step(case, method, index) for name, method in METHODS.items()}


def test_the_lemma_by_hand(close):
    """Gradients (0.25, -0.25) and (2.25, -0.25), of which the mean is (1.25, -0.25)."""
    case, step = by_hand()
    close(case.problem.optimum, t([0.5, -0.5]))
    assert case.problem.smoothness == pytest.approx(5)
    close(step["fedavg"].gradient, t([[0.25, -0.25]], [[2.25, -0.25]]))
    close(step["fedavg"].mean_gradient, t([1.25, -0.25]))
    close(step["projected"].gradient, t([[0.25, -0.25]], [[1.25, -1.25]]))
    terms = terms_of(step["fedavg"], case.problem.optimum)
    assert terms.gap_before == pytest.approx(0.5)
    assert terms.b1 == pytest.approx(-0.2 * (0.5 * 1.25 + 0.5 * 0.25))
    assert terms.b2 == pytest.approx(0.01 * (1.25**2 + 0.25**2))
    assert terms.a1 == pytest.approx(0.375**2 + 0.475**2)
    close(terms.a2, t(0.01, 0.01))
    close(terms.a3, t(-0.075, 0.075))  # 2 * 0.1 * 0.375 * (-1 or 1)
    close(terms.gap_after, t(0.475**2 + 0.475**2, 0.275**2 + 0.475**2))
    assert terms.error < 1e-15 and terms.error_as_printed == pytest.approx(0.15)


def test_the_theorem_by_hand(close):
    """What the proof says is the mean of what is measured; what the theorem prints is not."""
    case, step = by_hand()
    gained = advantage_of(step["fedavg"], step["projected"], case.problem.optimum)
    close(gained.measured, t(0.0, 0.02))
    close(gained.stochastic, t(0.0, 0.02))
    close(gained.off_centre, t(0.0, 0.0))
    close(gained.proved, t(0.01, 0.01))  # 0.005 of the mean, 0.005 of the variance
    close(gained.printed, t(0.005, 0.025))
    assert gained.measured.mean() == pytest.approx(gained.proved.mean())
    assert gained.printed.mean() == pytest.approx(1.5 * gained.measured.mean().item())


def test_the_identities_hold_in_every_draw_of_every_case(cases, steps):
    for case, step in zip(cases, steps, strict=True):
        for taken in step.values():
            terms = terms_of(taken, case.problem.optimum)
            assert terms.error < 1e-12
            assert terms.error_as_printed > 0.1
        gained = advantage_of(step["fedavg"], step["projected"], case.problem.optimum)
        assert gained.error < 1e-12


def test_the_proved_advantage_is_the_expected_one_where_all_is_centred(cases, steps):
    for case, step in zip(cases, steps, strict=True):
        gained = advantage_of(step["fedavg"], step["projected"], case.problem.optimum)
        proved = estimate(gained.measured - gained.proved)
        printed = estimate(gained.measured - gained.printed)
        if case.is_centred:
            assert (gained.measured > 0).all()
            assert abs(proved.mean) < 4 * proved.error
            assert printed.mean < -10 * printed.error  # the variance is counted twice
        else:
            assert proved.mean < -10 * proved.error
            assert (gained.measured < 0).double().mean() > 0.9


def test_the_cases_are_what_they_are_called(cases):
    names = ["centred", "centred, clients apart", "start not centred", "optimum not centred"]
    assert [case.name for case in cases] == 2 * names
    for case in cases:
        means = {
            "start": case.start.mean(1).abs().max(),
            "optimum": case.problem.optimum.mean(1).abs().max(),
            "clients": case.clients.mean((0, 2)).abs().max(),
        }
        off = {what for what, mean in means.items() if mean > 1e-12}
        word = case.name.split()[0]
        assert off == {"start": {"start", "clients"}, "optimum": {"optimum"}}.get(word, set())
        assert case.begins_a_round is ("apart" not in case.name)
        assert case.is_centred is ("not" not in case.name)


def test_clients_differ_and_gradients_have_row_means(cases):
    for case in cases:
        at_optimum = case._replace(clients=case.problem.optimum.expand_as(case.clients))
        every = torch.arange(case.problem.x.shape[1]).expand(1, len(case.clients), -1)
        step = take_step(at_optimum, Algorithm(), every)
        assert step.mean_gradient.abs().max() < 1e-12
        pulls = (step.clients[0] - case.problem.optimum).flatten(1)
        assert pulls.norm(dim=1).min() > 0.01
        elsewhere = take_step(case, Algorithm(), every).mean_gradient
        assert elsewhere.mean(1).abs().max() > 1e-3


def test_other_coordinates_leave_the_losses_alone(close):
    for problem in draw_problems():
        turned = with_centred_optimum(problem)
        close(problem.objective(problem.optimum), turned.objective(turned.optimum))
        close(problem.x.norm(dim=-1), turned.x.norm(dim=-1))
        assert problem.smoothness == pytest.approx(turned.smoothness)
        assert problem.optimum.mean(1).abs().max() > 0.01
        assert turned.optimum.mean(1).abs().max() < 1e-12


def gradients(problem, weights, index):
    """The clients' gradients, by the formulas for a linear model."""
    found = []
    for k, picked in enumerate(index):
        x, y, w = problem.x[k, picked], problem.y[k, picked], weights[k]
        answer = torch.sigmoid(x @ w.T) if problem.name == "logistic" else x @ w.T
        found.append((answer - y).T @ x / len(x))
    return torch.stack(found)


def test_a_step_is_that_of_a_plain_loop(cases, steps, close):
    for case, step in zip(cases, steps, strict=True):
        index, m = draw_batches(case.problem, 300, 0)[7], case.start.shape[1]
        e = torch.ones(m, 1, dtype=torch.float64) / m**0.5
        g = gradients(case.problem, case.clients, index)
        lr = 0.5 / case.problem.smoothness
        close(step["fedavg"].clients[7], case.clients - lr * g)
        close(step["projected"].clients[7], case.clients - lr * (g - g @ e @ e.T))
        every = torch.arange(case.problem.x.shape[1]).expand(len(case.clients), -1)
        expected = gradients(case.problem, case.clients, every).mean(0)
        close(step["fedavg"].mean_gradient, expected)
        close(step["projected"].mean_gradient, expected - expected @ e @ e.T)


def setup_of(case: Case, algorithm, **schedule):
    """A run of the library on the problem of a case."""
    clients, examples, inputs = case.problem.x.shape
    linear = torch.nn.Linear(inputs, len(case.start), bias=False, dtype=torch.float64)
    parts = list(torch.arange(clients * examples).split(examples))
    return Setup(
        algorithm=algorithm,
        model=Model(linear),
        data=FederatedData(case.problem.x.flatten(0, 1), case.problem.y.flatten(0, 1), parts),
        optimizer=SGD(0.5 / case.problem.smoothness),
        schedule=Schedule(cohort_size=clients, steps=1, **schedule),
        loss=case.problem.loss,
        initial={"weight": case.start},
        engine="sequential",
    )


@pytest.mark.filterwarnings("ignore:.*leaves Global GC no layer")
@pytest.mark.filterwarnings("ignore:.*does not suit this model")
def test_a_round_of_one_step_is_the_same_by_local_gc_global_gc_and_gcfed(cases, steps, close):
    for case, step in zip(cases, steps, strict=True):
        if not case.begins_a_round:
            continue
        size = case.problem.x.shape[1]
        index = draw_batches(case.problem, 300, 0)[3]
        plans = [BatchPlan.of([k * size + picked]) for k, picked in enumerate(index)]
        for algorithm in (Algorithm(), LocalGC(), GlobalGC(), GCFed(), GCFed(lam=1.0)):
            setup = setup_of(case, algorithm, rounds=1, batch_size=4)
            result = run_round(setup, *start(setup), 0, list(range(len(index))), plans)
            method = "fedavg" if algorithm == Algorithm() else "projected"
            close(result.server.params["weight"], step[method].after[3])


def test_rounds_are_steps_one_after_the_other(cases, close):
    case = cases[2]
    for method in METHODS.values():
        at = case
        for step in range(3):
            taken = take_step(at, method, draw_batches(case.problem, 2, step)[1:])
            at = together("later", case.problem, taken.after[0])
        close(take_rounds(case, method, 3, 2)[1], at.start)


def test_the_discrepancy_by_hand():
    """F = |w - (3, 1)|^2 / 2 and a start of mean zero: at (1, -1) F is 4, and so is the bound."""
    x = 2**0.5 * torch.eye(2, dtype=torch.float64)[None]
    problem = Problem("by hand", x, x @ t([3.0, 1.0]).T, squared_error, 1.0)
    found = discrepancy_of(together("by hand", problem, t([5.0, -5.0])))
    assert found == pytest.approx((4, 4, 0, 4), abs=1e-12)


def test_the_bound_holds_and_the_limit_is_not_the_projected_optimum(cases):
    for case in cases:
        found = discrepancy_of(case)
        assert found.limit <= found.nearest + 1e-12
        assert found.nearest <= found.bound + 1e-12
        if not case.is_centred:
            assert 0 < found.limit < found.nearest and found.apart > 0.1


@pytest.mark.filterwarnings("ignore:.*does not suit this model")
def test_the_projected_method_ends_at_the_limit(close):
    """Over many rounds on all examples; FedAvg ends at the optimum."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 30, 3, generator=generator, dtype=torch.float64)
    y = torch.randn(2, 30, 2, generator=generator, dtype=torch.float64)
    problem = Problem("drawn", x, y, squared_error, 1.0)
    case = together("drawn", problem, t([1.0, 2.0, 0.0], [0.0, -1.0, 3.0]))
    ends = {LocalGC(): limit_of(case), Algorithm(): problem.optimum}
    for algorithm, end in ends.items():
        *_, last = simulate(setup_of(case, algorithm, rounds=80, batch_size=30))
        close(last.server.params["weight"], end, tolerance=1e-6)
    assert gaps(limit_of(case), problem.optimum) > 0.1


def test_batches_of_an_epoch_are_not_drawn_afresh():
    """The second step of an epoch never sees what the first saw, so its gradient is biased."""
    part = np.array([4, 9])
    for seed in range(5):
        rng = np.random.default_rng(seed)
        first, second = plan(part, 1, epochs=None, steps=2, rng=rng, fill="none")
        assert {first.item(), second.item()} == {4, 9}


def numbers(text):
    """A text as its words, and its numbers as such."""
    number = r"-?\d+\.?\d*(?:e[-+]\d+)?"
    return re.sub(number, "#", text).split(), [float(n) for n in re.findall(number, text)]


def test_the_page_shows_what_the_command_prints(gcfed):
    answer = gcfed("theory")
    assert answer.code == 0
    blocks = re.findall(r"```text\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    words, values = numbers(answer.out)
    shown, said = numbers("\n".join(blocks))
    assert shown == words
    assert said == pytest.approx(values, rel=1e-2)


def test_draws_that_give_no_standard_error_are_refused(gcfed):
    for draws in (1, 10**6):
        answer = gcfed("theory", "--draws", draws)
        assert answer.code == 2
        assert answer.err == f"error: --draws is between 2 and 50000; not {draws}\n"
