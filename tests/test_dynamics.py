"""Training dynamics of stored runs: first differences, falls, peaks."""

import csv
import io
import json
import statistics

import pytest
from made_runs import ACCURACY, LOSS, make_run

from gcfed import InputError, dynamics
from gcfed.results.dynamics import (
    Dynamics,
    first_differences,
    largest_drop,
    series_dynamics,
    smoothed_at,
)

pytest_plugins = ["running"]

DIVERGED = {"status": "failed", "ended": {"reason": "not finite", "diverged": True, "round": 2}}


def test_first_differences_by_hand():
    assert first_differences([1.0, 4.0, 2.0, 2.0]) == [3.0, -2.0, 0.0]
    assert first_differences([1.0]) == first_differences([]) == []


def test_largest_drop_by_hand():
    """From the 6 to the 1, although no single step falls by more than 3."""
    assert largest_drop([2.0, 6.0, 3.0, 4.0, 1.0, 5.0], ACCURACY) == 5.0
    assert largest_drop([1.0, 2.0, 3.0], ACCURACY) == 0.0
    assert largest_drop([1.0, 3.0, 2.0], LOSS) == 2.0  # a loss that rises


def test_smoothed_by_hand():
    values = [float(t) for t in range(1, 21)]
    rounds = list(range(1, 21))
    assert smoothed_at(rounds, values) == statistics.fmean(range(11, 21))
    assert smoothed_at(rounds, values, 12) == statistics.fmean(range(3, 13))
    assert smoothed_at(rounds, values, 2) == 1.5
    assert smoothed_at(rounds, values, 21) is None
    assert smoothed_at([5, 10, 15], [1.0, 2.0, 6.0], 12) == 1.5  # evaluated every 5 rounds
    assert smoothed_at([5, 10, 15], [1.0, 2.0, 6.0], 4) is None
    assert smoothed_at([], []) is None


def test_all_of_a_series_by_hand():
    """Differences 3, -2, 2: their mean is 1, their deviation the root of (4 + 9 + 1) / 2."""
    found = series_dynamics([1, 2, 3, 4], [1.0, 4.0, 2.0, 4.0], ACCURACY, at=2)
    assert found == Dynamics(1.0, pytest.approx(7**0.5), -2.0, 2.0, 4.0, 2.5)
    falling = series_dynamics([1, 2, 3, 4], [1.0, 4.0, 2.0, 4.0], LOSS)
    assert (falling.worst, falling.drop, falling.peak) == (3.0, 3.0, 1.0)


def test_a_series_too_short_to_tell():
    assert series_dynamics([], [], ACCURACY) == Dynamics()
    assert series_dynamics([1], [0.5], ACCURACY) == Dynamics(drop=0, peak=0.5, smoothed=0.5)
    assert series_dynamics([1, 2], [0.5, 0.25], ACCURACY).std is None


@pytest.fixture
def runs(tmp_path):
    """FedAvg goes up and down; GC-Fed is steadier, and one of its seeds diverged."""
    make_run(tmp_path / "a0", [0.1, 0.5, 0.2, 0.6], algorithm="fedavg", seed=0)
    make_run(tmp_path / "a1", [0.1, 0.5, 0.4, 0.6], algorithm="fedavg", seed=1)
    make_run(tmp_path / "b0", [0.2, 0.3, 0.4, 0.5], algorithm="gcfed", seed=0)
    make_run(tmp_path / "b1", [0.2, 0.3], algorithm="gcfed", seed=1, rounds=4, **DIVERGED)
    make_run(tmp_path / "c0", [0.3, 0.4, 0.35, 0.5], algorithm="fedprox", seed=0)
    return tmp_path


def cells(found):
    return {
        name.value: [entry.value + entry.rest for entry in row]
        for block in found.table().blocks
        for name, *row in block.rows
    }


def test_a_table_over_seeds(runs):
    found_at_two = dynamics(runs, at=2, target=0.3)
    found = cells(found_at_two)
    assert found["fedavg"] == [
        *("2", "16.667 (0.000)", "32.79 (10.78)", "-20.00 (14.14)", "20.00 (14.14)"),
        *("60.00 (0.00)", "30.00 (0.00)", "2.0 (0.0)"),
    ]
    ends = ["10.000", "0.00", "10.00", "0.00", "50.00", "25.00"]
    assert found["gcfed"][:7] == ["1 of 2", *(f"{value}, 1 failed" for value in ends)]
    assert found["fedprox"] == [
        *("1", "6.667", "10.41", "-5.00", "5.00", "50.00", "35.00", "1.0"),
    ]
    notes = dynamics(runs).table().notes
    assert any("gcfed, seed 1: failed after 2 of 4 rounds" in note for note in notes)
    assert any("at round 2: the mean of all 2 evaluations" in n for n in found_at_two.table().notes)


def test_a_group_with_a_failure_has_no_rank(runs):
    (block,) = dynamics(runs).table().blocks
    marks = {row[0].value: [entry.mark for entry in row[2:]] for row in block.rows}
    assert marks["gcfed"] == [""] * 6
    assert marks["fedavg"] == ["best", "second", "second", "second", "best", "second"]


def test_a_group_that_failed_whole_is_shown_as_failed(tmp_path):
    make_run(tmp_path / "a", [0.1, 0.5], algorithm="fedavg")
    make_run(tmp_path / "b", [0.2, 0.3], algorithm="gcfed", **DIVERGED)
    found = cells(dynamics(tmp_path))
    assert found["gcfed"] == ["0 of 1", *["failed"] * 6]


def test_rounds_without_an_evaluation(tmp_path):
    """Every second round is judged, and one of those judgements is not finite."""
    values = [None, 0.1, None, 0.3, None, None, None, 0.2]
    make_run(tmp_path / "a", values, evaluate_every=2)
    (found,) = dynamics(tmp_path, at=7).groups
    assert found.runs[0] == Dynamics(
        *map(pytest.approx, (0.05, statistics.stdev([0.2, -0.1]), -0.1, 0.1, 0.3, 0.2))
    )
    assert any(
        "to the next, every 2 rounds, in points" in n for n in dynamics(tmp_path).table().notes
    )


def test_a_loss_is_better_when_it_is_lower(tmp_path):
    make_run(tmp_path / "a", [2.0, 1.0, 1.5], metric=LOSS, algorithm="fedavg")
    make_run(tmp_path / "b", [2.0, 1.0, 0.5], metric=LOSS, algorithm="gcfed")
    found = dynamics(tmp_path, metric="loss")
    assert found.table().columns[4] == "max"
    assert cells(found)["fedavg"][1:6] == ["-0.2500", "1.0607", "0.5000", "0.5000", "1.0000"]
    (block,) = found.table().blocks
    assert [row[2].mark for row in block.rows] == ["second", "best"]


def test_the_command_prints_and_writes(gcfed, runs):
    answer = gcfed("compare", runs, "--dynamics", "--at", "2")
    assert answer.code == 0, answer.err
    assert "at round 2 (%)" in answer.out.splitlines()[0]
    rows = list(
        csv.DictReader(io.StringIO(gcfed("compare", runs, "--dynamics", "--format=csv").out))
    )
    assert float(rows[0]["difference_mean_mean"]) == pytest.approx(1 / 6)
    assert [row["failed"] for row in rows] == ["0", "1", "0"]
    for name in ("t.tex", "t.md", "t.json", "t.txt"):
        assert gcfed("compare", runs, "--dynamics", "--out", name).code == 0
    found = json.loads((runs / "t.json").read_text())
    assert found[2]["drop_mean"] == pytest.approx(0.05)
    assert "\\toprule" in (runs / "t.tex").read_text()
    assert gcfed("compare", runs, "--dynamics", "--plot", "curves.png").code == 0
    assert (runs / "curves.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--at", "5"], "--at goes with --dynamics"),
        (["--dynamics", "--pivot"], "--dynamics goes with neither --pivot nor --baseline"),
        (["--dynamics", "--at", "0"], "at is at least 1; not 0"),
        (["--dynamics", "--at", "900"], "no run has a round 900: the longest has"),
        (["--dynamics", "--out", "x.xyz"], "say what x.xyz is to hold"),
        (["--plot", "x.png", "--draw", "nope", "--out", "t.md"], "nope"),
        (["--dynamics", "--plot", "x.png", "--draw", "nope", "--out", "t.md"], "nope"),
    ],
)
def test_the_command_refuses(gcfed, runs, words, said):
    answer = gcfed("compare", runs, *words)
    assert answer.code == 2 and said in answer.err and not answer.out
    assert not (runs / "x.png").exists() and not (runs / "t.md").exists()


def test_a_notebook_shows_a_table(runs):
    assert "<table" in dynamics(runs)._repr_html_()
    with pytest.raises(InputError, match="at is a whole number"):
        dynamics(runs, at="x")
