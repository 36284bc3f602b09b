"""How good a model is: metrics over examples, and a round as a row of numbers."""

import hashlib
import math

import pytest
import torch
from torch import nn

from gcfed import (
    METRICS,
    SGD,
    Algorithm,
    FederatedData,
    InputError,
    Model,
    Schedule,
    Setup,
    TestSet,
    evaluate,
    predict,
    record,
    simulate,
)
from gcfed.algorithms import FedProx
from gcfed.simulation.lines import record_together, weights_sha256


@pytest.fixture
def test(data):
    return TestSet(data.x[:50], data.y[:50])


def test_a_model_is_judged_in_evaluation_mode_by_the_mean_over_all_examples(make_setup, test):
    module = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.BatchNorm1d(16), nn.Linear(16, 5))
    setup = make_setup(Algorithm(), module=module, engine="sequential", fill="repeat")
    *_, result = simulate(setup)
    trained = setup.model.module(result.server.params, result.server.buffers).eval()
    with torch.no_grad():
        logits = trained(test.x)
    wanted = {
        "loss": nn.functional.cross_entropy(logits, test.y).item(),
        "accuracy": (logits.argmax(1) == test.y).double().mean().item(),
    }
    for size in (1000, 7, 1):  # a last chunk that is shorter counts for what it holds
        found = evaluate(setup, result.server, TestSet(test.x, test.y, batch_size=size))
        assert found == pytest.approx(wanted)
    torch.testing.assert_close(predict(setup, result.server, test.x).logits, logits)


def test_seeds_are_judged_together_as_each_is_alone(make_setup, data, test):
    """Two by the same examples and one by others; a batch is prepared once for those alike."""
    prepared = []

    def shown(x, key):
        if key is None:
            prepared.append(len(x))
        return x

    setups = [make_setup(Algorithm(), seed=seed, transform=shown, rounds=1) for seed in (0, 1, 2)]
    results = [next(iter(simulate(setup))) for setup in setups]
    other = TestSet(data.x[50:80], data.y[50:80])
    tests = [{"test": test}, {"test": test, "validation": other}, {"test": other}]
    prepared.clear()
    together = record_together(setups, results, tests)
    assert prepared == [50, 30, 30]
    assert together == [record(*run) for run in zip(setups, results, tests, strict=True)]
    assert len({line["weights_sha256"] for line in together}) == 3
    assert len({line["test_loss"] for line in together}) == 3
    assert "validation_loss" in together[1] and "validation_loss" not in together[0]


@pytest.mark.usefixtures("unrehearsed")
def test_a_transform_stands_before_the_model_without_a_key(make_setup, test):
    keys = []

    def halve(x, key):
        keys.append(key)
        return x / 2

    plain, halved = make_setup(Algorithm()), make_setup(Algorithm(), transform=halve)
    server = next(iter(simulate(plain))).server
    shown = TestSet(test.x / 2, test.y)
    assert evaluate(halved, server, test) == evaluate(plain, server, shown)
    assert keys == [None]


def test_metrics_of_another_task():
    """Regression: metrics by name, a mean over each example's outputs, and no accuracy."""
    torch.manual_seed(0)
    x = torch.randn(60, 3)
    y = x @ torch.randn(3, 2)

    def squares(out, y):
        return (out - y).square()

    def error(out, y):
        return (out - y).abs()

    setup = Setup(
        algorithm=FedProx(mu=0.1),
        model=Model(nn.Linear(3, 2)),
        data=FederatedData(x, y, list(torch.arange(60).split(20))),
        optimizer=SGD(0.1),
        schedule=Schedule(rounds=1, cohort_size=2, batch_size=10, epochs=1),
        loss=squares,
    )
    (result,) = simulate(setup)
    metrics = {"error": error, "r2": METRICS["r2"](), "perplexity": METRICS["perplexity"]()}
    line = record(setup, result, {"test": TestSet(x[:7], y[:7], metrics, batch_size=4)})
    out = x[:7] @ result.server.params["weight"].T + result.server.params["bias"]
    assert line["test_error"] == pytest.approx((out - y[:7]).abs().mean().item())
    assert line["test_loss"] == pytest.approx((out - y[:7]).square().mean().item())
    assert line["test_accuracy"] is None
    assert line["test_perplexity"] == pytest.approx(math.exp(line["test_loss"]))
    unexplained = (out - y[:7]).square().sum(0) / (y[:7] - y[:7].mean(0)).square().sum(0)
    assert line["test_r2"] == pytest.approx((1 - unexplained).mean().item())


def test_what_is_not_due_or_not_finite_is_none(make_setup, test):
    setup = make_setup(Algorithm(), rounds=1)
    (result,) = simulate(setup)
    tests = {"test": test, "validation": test}
    full, empty = record(setup, result, tests), record(setup, result, tests, due=False)
    assert list(full) == list(empty)
    assert empty["validation_loss"] is empty["test_accuracy"] is empty["tested"] is None
    assert full["validation_loss"] == full["test_loss"] is not None
    assert record(setup, result)["tested"] is None
    bad = TestSet(test.x, test.y, {"bad": lambda logits, y: logits[:, 0] / 0})
    assert record(setup, result, {"test": bad})["test_bad"] is None


def test_an_empty_test_set_is_refused(test):
    with pytest.raises(InputError, match="holds no example"):
        TestSet(test.x[:0], test.y[:0])


def test_a_fingerprint_sees_names_shapes_dtypes_and_bits():
    weights = {"b": torch.zeros(2, 3, dtype=torch.float32), "a": torch.ones(())}
    again = {"a": torch.ones(()), "b": torch.zeros(3, 2, dtype=torch.float32).T}
    assert weights_sha256(weights) == weights_sha256(again)  # neither order nor strides
    for other in (
        {**weights, "b": torch.zeros(3, 2, dtype=torch.float32)},
        {**weights, "b": torch.zeros(2, 3, dtype=torch.int32)},
        {**weights, "b": -torch.zeros(2, 3, dtype=torch.float32)},
        {"c": weights["b"], "a": weights["a"]},
        {"a": weights["a"]},
    ):
        assert weights_sha256(other) != weights_sha256(weights)
    digest = hashlib.sha256(b"n torch.uint8 [2]\n" + bytes([7, 8])).hexdigest()
    assert weights_sha256({"n": torch.tensor([7, 8], dtype=torch.uint8)}) == digest
