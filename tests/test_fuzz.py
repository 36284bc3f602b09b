"""Wild inputs are taken or refused in words; `fuzzing` makes them, and tries many by a command."""

import fuzzing
import pytest
from hypothesis import HealthCheck, given, settings

from gcfed import InputError, capacity

pytestmark = pytest.mark.usefixtures("float32")
pytest_plugins = ["running"]

EXAMPLES = {"settings": 60, "specs": 200, "data sets": 60, "npz": 60, "forms": 200, "runs": 30}


@pytest.fixture(autouse=True)
def little_memory(monkeypatch):
    """What would take long to fill is refused."""
    monkeypatch.setattr(capacity, "memory", lambda: 2**28)


@pytest.mark.parametrize("kind", fuzzing.KINDS)
def test_wild_inputs_are_taken_or_refused_in_words(kind):
    strategy, action = fuzzing.KINDS[kind]
    taken = []

    @settings(
        max_examples=EXAMPLES.get(kind, 100),
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def one(wild):
        taken.append(fuzzing.attempt(action, wild))

    one()
    assert True in taken and False in taken  # else the inputs are too wild, or too tame


def test_what_is_not_meant_is_found():
    def fails(_):
        raise KeyError("a")

    def fails_within(_):
        raise InputError("model mlp cannot be made: KeyError") from KeyError("a")

    def refuses(_):
        raise InputError("no")

    with pytest.raises(KeyError):
        fuzzing.attempt(fails, 0)
    with pytest.raises(AssertionError, match="failed on its own"):
        fuzzing.attempt(fails_within, 0)
    assert not fuzzing.attempt(refuses, 0)


def test_run_directories_are_damaged_in_every_way():
    """The strategy reaches every file in every way."""
    seen = set()

    @settings(max_examples=300, derandomize=True, database=None)
    @given(fuzzing.damages())
    def one(drawn):
        seen.add(drawn[:2])

    one()
    assert len(seen) > 40
