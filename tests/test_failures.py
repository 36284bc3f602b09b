"""Failures are results: wherever runs become one number, those that failed are counted beside it.

Of each method three seeds are tried, and the updates of some clients are not finite.
"""

import csv
import io

import pytest
from made_runs import make_run, make_runs
from running import TINY, lines, tiny

from gcfed import RunStore, Sweep, compare, summaries
from gcfed.config.build import build
from gcfed.config.identity import digest, identity

pytest_plugins = ["running"]

DIVERGED = {"status": "failed", "ended": {"reason": "so it was", "diverged": True, "round": 1}}

FORMS = {
    "text": "fedprox  2 of 3  80.00 (28.28), 1 failed",
    "markdown": "| `fedprox` | 2 of 3 | 80.00 (28.28), 1 failed |",
    "latex": r"\texttt{fedprox} & 2 of 3 & 80.00 (28.28), 1 failed &",
}
PIVOTS = {
    "text": "fedprox  80.00 (28.28), 2 of 3",
    "markdown": "| `fedprox` | 80.00 (28.28), 2 of 3 |",
    "latex": r"\texttt{fedprox} & 80.00 (28.28), 2 of 3 \\",
}


@pytest.fixture
def folder(tmp_path):
    """FedAvg finishes with every seed, FedProx with 2 of 3: the third was good until it failed."""
    make_runs(tmp_path / "fedavg", [0.5, 0.6, 0.7], rounds=2)
    make_runs(tmp_path / "fedprox", [0.6, 1.0], algorithm="fedprox", rounds=2)
    failed = {"algorithm": "fedprox", "seed": 2, "rounds": 2, **DIVERGED}
    make_run(tmp_path / "fedprox" / "seed-2", [0.95], **failed)
    return tmp_path


@pytest.mark.parametrize("form", FORMS)
def test_tables_count_them(form, folder):
    found = compare(folder)
    assert FORMS[form] in found.render(form)
    assert PIVOTS[form] in found.render(form, pivot=True)
    assert "fedprox, seed 2: failed after 1 of 2 rounds: so it was" in found.render(form)


def test_notebooks_count_them(folder):
    page = compare(folder)._repr_html_()
    assert "2 of 3" in page and "80.00 (28.28), 1 failed" in page


def test_files_of_numbers_count_them(folder):
    found = compare(folder)
    fedprox = list(csv.DictReader(io.StringIO(found.render("csv"))))[1]
    assert (fedprox["seeds"], fedprox["finished"], fedprox["failed"]) == ("3", "2", "1")
    pivot = list(csv.DictReader(io.StringIO(found.render("csv", pivot=True))))[1]
    assert (pivot["final: finished"], pivot["final: seeds"]) == ("2", "3")
    group = found.to_json()["groups"][1]
    assert (group["seeds"], group["finished"], group["failed"]) == (3, 2, 1)
    assert [run["final"] for run in group["runs"]] == [0.6, 1.0, None]


def test_figures_count_them(folder):
    (axes,) = compare(folder).plot().axes
    assert axes.get_title() == "fedprox: 2 of 3 runs"
    (axes,) = compare(folder / "fedavg").plot().axes
    assert axes.get_title() == ""


def test_a_difference_says_of_how_many_pairs_it_is(folder):
    text = compare(folder, baseline="fedavg").render()
    assert "2 of 3  80.00 (28.28), 1 failed" in text and "(2 pairs)" in text


def test_a_mean_in_pandas_is_of_those_that_finished(folder):
    pytest.importorskip("pandas")
    found = summaries(folder).groupby("algorithm")["test_accuracy"].agg(["mean", "count", "size"])
    assert found.loc["fedprox"].tolist() == [pytest.approx(0.8), 2, 3]
    assert summaries(folder).set_index("run")["status"].tolist().count("failed") == 1


TORN = {**TINY, "faults": "random(corruption=0.2)"}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Seeds of which the last gets an update that is not finite, which ends its run or does not."""
    found = RunStore(tmp_path_factory.mktemp("torn"))
    for choice in ("fail", "drop"):
        found.run_together([tiny(**TORN, on_nonfinite=choice, seed=s) for s in (1, 2, 3)])
    return found


def test_a_run_that_drops_updates_is_another_run():
    by_choice = {
        choice: digest(identity(build(tiny(on_nonfinite=choice)))) for choice in ("fail", "drop")
    }
    assert by_choice["fail"] != by_choice["drop"]
    assert by_choice["fail"] == digest(identity(build(tiny())))


def test_what_was_dropped_is_counted(store):
    """The same seeds, all of which finish, with a note of what they left out."""
    found = compare(store.folder)
    by_task = {task: r for task, (r,) in found.blocks.items()}
    assert sorted(by_task) == ["on_nonfinite = drop", "on_nonfinite = fail"]
    assert len(by_task["on_nonfinite = fail"].failed) == 1
    assert not by_task["on_nonfinite = drop"].failed
    assert "fedavg: updates that were not finite were left out (seed 3: 1)" in found.notes
    (dropping,) = (o.run for o in by_task["on_nonfinite = drop"].outcomes if o.run.config.seed == 3)
    assert [len(line["dropped"]) for line in lines(dropping.path)] == [0, 1]


def test_a_sweep_may_try_both(store):
    """It finds the runs that are done, each choice its own."""
    grid = {**TORN, "seeds": [1, 2, 3], "grid": {"on_nonfinite": ["fail", "drop"]}}
    made = Sweep(grid, store.folder, "cpu")
    assert [(state.status, state.seeds) for state in made.cells] == [
        *(("diverged", "2 of 3"), ("done", "3"))
    ]
    page = made._repr_html_()
    assert "2 of 3" in page and "diverged: seed 3: the updates of clients" in page
    assert "2 of 3" in made.compare().render(pivot=True)
