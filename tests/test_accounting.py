"""What noise is worth: published epsilons, and a formula that does not use the library."""

import json
import logging
import sys

import numpy as np
import pytest
from running import tiny
from scipy.special import logsumexp
from scipy.stats import norm

pytest.importorskip("dp_accounting")
from gcfed import parse
from gcfed.config.settings import Config
from gcfed.results.facts import facts
from gcfed.results.privacy import Mechanism, mechanism_of, spent
from gcfed.results.run import load_run
from gcfed.runs.train import run_together

pytest_plugins = ["running"]

ORDERS = np.r_[1.25:10:0.25, 10:64]


def renyi(q, z, order):
    """The Renyi divergence of a subsampled Gaussian from a plain one, integrated on a grid."""
    x = np.linspace(-12 * z, 64 + 12 * z, 20_001)
    ratio = np.logaddexp(np.log1p(-q), np.log(q) + (2 * x - 1) / (2 * z * z))
    density = norm.logpdf(x, scale=z) + np.log(x[1] - x[0])
    return logsumexp(density + order * ratio) / (order - 1)


@pytest.mark.parametrize(
    ("multiplier", "epochs", "published", "tolerance"),
    [(1.3, 20, 1.34, 0.01), (0.7, 70, 8.68, 0.001)],
)
def test_published_epsilons(multiplier, epochs, published, tolerance):
    """Bu et al. (2020), figure 4: 256 of 60,000 examples, delta 1e-5, by the moments accountant.

    Ours makes less of the same moments (Canonne et al., 2020, proposition 12).
    """
    q, rounds, delta = 256 / 60_000, epochs * 60_000 // 256, 1e-5
    moments = np.array([rounds * renyi(q, multiplier, order) for order in ORDERS])
    theirs = moments + np.log(1 / delta) / (ORDERS - 1)
    assert theirs.min() == pytest.approx(published, rel=tolerance)
    ours = moments + np.log1p(-1 / ORDERS) - np.log(delta * ORDERS) / (ORDERS - 1)
    found = Mechanism(multiplier, 256, 60_000, is_random=True).epsilon(rounds, delta)
    assert found == pytest.approx(ours.min(), rel=1e-3)
    assert found < published


def test_clients_that_are_not_drawn_alike_count_as_drawn_always():
    """One Gaussian of T rounds is that of one round with a multiplier smaller by sqrt(T)."""
    always = Mechanism(8.0, 5, 100, is_random=False)
    assert always.epsilon(16, 1e-5) == pytest.approx(Mechanism(2.0, 5, 5, True).epsilon(1, 1e-5))
    assert always.epsilon(16, 1e-5) > Mechanism(8.0, 5, 100, is_random=True).epsilon(16, 1e-5)


def test_what_is_proven_is_more_than_what_is_customary():
    mechanism = Mechanism(4.0, 5, 100, is_random=True)
    assert mechanism.proven_epsilon(100, 1e-5) > 2 * mechanism.epsilon(100, 1e-5)
    more = Mechanism(8.0, 5, 100, is_random=True)
    assert more.proven_epsilon(100, 1e-5) < mechanism.proven_epsilon(100, 1e-5)


NOISY = "gcfed + clip_update(norm=1) + noise(multiplier=2)"


def test_which_clients_are_drawn_alike():
    algorithm = parse(NOISY)
    assert mechanism_of(algorithm, Config(clients=10)) == Mechanism(2.0, 5, 10, is_random=True)
    for changes in ({"sampler": "examples"}, {"availability": "daily(period=4)"}):
        assert not mechanism_of(algorithm, Config(clients=10, **changes)).is_random
    assert mechanism_of(parse("gcfed + clip_update"), Config(clients=10)) is None


def test_a_run_says_what_it_will_spend_and_records_what_it_spent(tmp_path, caplog):
    caplog.set_level(logging.INFO, "gcfed")
    run_together([tiny(algorithm=NOISY)], [tmp_path / "run"])
    epsilon = Mechanism(2.0, 3, 10, is_random=True).epsilon(2, 10**-1.1)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["epsilon"], summary["delta"]) == (epsilon, pytest.approx(10**-1.1))
    said = f"epsilon {epsilon:.3g} at delta 0.079"
    assert f"privacy spent after 2 rounds: {said}" in caplog.text
    assert dict(facts(load_run(tmp_path / "run")))["privacy"] == f"{said} spent"


def test_without_the_library_a_run_goes_on(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    found = spent(parse(NOISY), Config(clients=10), 3)
    assert found.epsilon is None and "pip install 'gcfed[privacy]'" in str(found)


def test_the_command(gcfed, tmp_path):
    config = tmp_path / "config.toml"
    config.write_text(f'algorithm = "{NOISY}"\nclients = 50\nrounds = 250\n')
    answer = gcfed("privacy", config, "--delta", "1e-5")
    head, *rows = (line.split() for line in answer.out.splitlines()[:4])
    assert head == ["rounds", "epsilon"]
    mechanism = Mechanism(2.0, 5, 50, is_random=True)
    assert rows == [[str(t), f"{mechanism.epsilon(t, 1e-5):.3g}"] for t in (100, 200, 250)]
    assert f"epsilon {mechanism.proven_epsilon(250, 1e-5):.3g}\n" in answer.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--algorithm", "gcfed"], "gcfed adds no noise"),
        (
            ["--algorithm", NOISY],
            "depends on the number of clients: give --clients, or set clients",
        ),
        (["--algorithm", NOISY, "--delta", "2"], "--delta is between 0 and 1, such as 1e-5"),
    ],
)
def test_the_command_refuses(gcfed, words, said):
    answer = gcfed("privacy", *words)
    assert answer.code == 2 and said in answer.err
