"""Runs side by side: groups, statistics, tables, and the command that prints them."""

import csv
import io
import json
import math
import statistics

import pytest
from made_runs import make_run, make_runs
from rich.console import Console

from gcfed import InputError
from gcfed.cli import console
from gcfed.results.captions import short
from gcfed.results.comparison import FORMATS, compare
from gcfed.results.tables import Entry, ranked
from gcfed.results.ttest import paired

pytest_plugins = ["running"]

REASON = "the updates of clients [1] are not finite"
DIVERGED = {"status": "failed", "ended": {"reason": REASON, "diverged": True}}
TABLE = {  # of Student's t, two-sided 0.05, by degrees of freedom, as printed tables have them
    **{1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 9: 2.262, 30: 2.042, 120: 1.980}
}


@pytest.fixture
def two(tmp_path):
    """FedAvg and GC-Fed with three seeds each."""
    make_runs(tmp_path / "a", [0.5, 0.6, 0.7], algorithm="fedavg")
    make_runs(tmp_path / "b", [0.6, 0.65, 0.9], algorithm="gcfed")
    return tmp_path


def cells(comparison):
    """The texts of a table, by the name of its group."""
    return {
        name.value: [cell.value + cell.rest for cell in row]
        for block in comparison.table().blocks
        for name, *row in block.rows
    }


def marks(comparison, column):
    return [row[column].mark for block in comparison.table().blocks for row in block.rows]


# Student's t


@pytest.mark.parametrize("df", TABLE)
def test_intervals_are_those_of_the_tables(df):
    """The half width of an interval is a quantile of the tables times the standard error."""
    values = [float(k * k) for k in range(df + 1)]
    found = paired(values)
    error = statistics.stdev(values) / math.sqrt(len(values))
    assert (found.high - found.low) / 2 / error == pytest.approx(TABLE[df], abs=6e-4)
    assert (found.high + found.low) / 2 == pytest.approx(found.mean)


def test_p_values_that_have_a_closed_form():
    """Of one degree of freedom, which is Cauchy's distribution, and of two."""
    one, two = paired([1.0, 2.0]), paired([1.0, 2.0, 3.0])
    assert one.p == pytest.approx(1 - 2 / math.pi * math.atan(3))  # t = 1.5 / 0.5
    t = 2 / math.sqrt(1 / 3)
    assert two.p == pytest.approx(1 - t / math.sqrt(2 + t * t))
    assert paired([-1.0, -2.0]).p == pytest.approx(one.p)


def test_paired_differences():
    """Student's own: the extra sleep of ten patients (Biometrika 1908), p = 0.00283."""
    sleep = paired([1.2, 2.4, 1.3, 1.3, 0.0, 1.0, 1.8, 0.8, 4.6, 1.4])
    assert sleep.mean == pytest.approx(1.58)
    assert sleep.p == pytest.approx(0.002833, abs=1e-6)
    assert (sleep.low, sleep.high) == pytest.approx((0.7001142, 2.4598858))


def test_one_difference_has_no_interval_and_equal_ones_no_test():
    one = paired([0.1])
    assert (one.n, one.mean, one.low, one.high, one.p) == (1, 0.1, None, None, None)
    same = paired([0.25, 0.25])
    assert (same.low, same.high, same.p) == (0.25, 0.25, None)
    rounded = paired([0.3 - 0.2, 0.4 - 0.3])  # equal, but for their last bits
    assert len(set(rounded.differences)) == 2
    assert (rounded.low, rounded.high, rounded.p) == (rounded.mean, rounded.mean, None)


# groups


def test_runs_that_differ_in_their_seed_alone_form_a_group(two):
    found = compare(two)
    assert [(r.name, r.group.seeds) for r in found.results] == [
        ("fedavg", (0, 1, 2)),
        ("gcfed", (0, 1, 2)),
    ]
    assert found.notes == ("the groups differ in: algorithm",)


def test_how_a_run_was_computed_makes_no_group_but_is_said(tmp_path):
    make_run(tmp_path / "a", [0.5], seed=0, engine="vectorized", precision="float32")
    make_run(tmp_path / "b", [0.5], seed=1, engine="sequential", precision="tf32")
    found = compare(tmp_path)
    assert len(found.results) == 1
    assert found.notes == (
        "the runs differ in engine: sequential, vectorized",
        "the runs differ in precision: float32, tf32",
    )


def test_settings_that_differ_are_never_silent(tmp_path):
    make_runs(tmp_path / "a", [0.5, 0.6], lr=0.01)
    make_runs(tmp_path / "b", [0.6, 0.7], lr=0.05)
    found = compare(tmp_path)
    assert [r.name for r in found.results] == ["fedavg, lr=0.01", "fedavg, lr=0.05"]
    assert found.notes == ("the groups differ in: lr (0.01, 0.05)",)
    assert list(found.blocks) == [""]  # a learning rate is a method's to choose


def test_other_tasks_are_other_blocks_with_ranks_of_their_own(tmp_path):
    for alpha, finals in ((0.1, (0.5, 0.6)), (1.0, (0.8, 0.7))):
        for name, final in zip(("fedavg", "gcfed"), finals, strict=True):
            settings = {"partition": f"dirichlet(alpha={alpha})", "algorithm": name}
            make_runs(tmp_path / f"{alpha}-{name}", [final], **settings)
    found = compare(tmp_path, baseline="fedavg")
    assert list(found.blocks) == [
        "α = 0.1",
        "α = 1",
    ]
    assert marks(found, 2) == ["second", "best", "best", "second"]
    gaps = [r.difference and round(r.difference.mean, 6) for r in found.results]
    assert gaps == [None, 0.1, None, -0.1]
    assert found.notes[0] == "the groups differ in: algorithm; partition (α = 0.1, α = 1)"
    for form, title in (
        ("text", "-- α = 1"),
        ("markdown", "**α = 1**"),
        ("latex", r"$\alpha$ = 1"),
    ):
        assert title in found.render(form)


def test_different_seeds_are_said(two):
    make_run(two / "c", [0.5], seed=7, algorithm="fedprox")
    each = "fedavg: 0, 1, 2; gcfed: 0, 1, 2; fedprox: 7"
    assert f"the groups have different seeds: {each}" in compare(two).notes


def test_seeds_are_compared_within_a_task(two):
    make_run(two / "c", [0.5], seed=7, algorithm="fedavg", alpha=5.0)
    assert "seeds" not in " ".join(compare(two).notes)
    make_run(two / "d", [0.5], seed=8, algorithm="fedprox", alpha=5.0)
    assert "the groups have different seeds (α = 5): fedavg: 7; fedprox: 8" in compare(two).notes


def test_the_same_cell_twice_counts_once(tmp_path):
    make_run(tmp_path / "a", [0.1], status="stopped", rounds=5)
    make_run(tmp_path / "b", [0.5] * 5)
    found = compare([tmp_path / "a", tmp_path, str(tmp_path / "b")])
    assert [o.final for o in found.results[0].outcomes] == [0.5]
    text = f"{tmp_path / 'a'} is left out: it has the settings and the seed of {tmp_path / 'b'}"
    assert text in found.notes


def test_of_equal_runs_the_one_with_the_most_probes_is_shown(tmp_path):
    make_run(tmp_path / "a", [0.5])
    make_run(tmp_path / "b", [0.5], probes=["drift", "cka"])
    (result,) = compare([tmp_path / "a", tmp_path / "b"]).results
    assert [run.path.name for run in result.group.runs] == ["b"]


def test_data_that_changed_under_the_same_name_are_another_task(tmp_path):
    for seed, sha256 in enumerate(["a" * 64, "a" * 64, "b" * 64]):
        identity = {"data_sha256": sha256, "numerics": 1, "code_sha256": []}
        make_run(tmp_path / f"{seed}", [0.5], seed=seed, identity=identity)
    found = compare(tmp_path)
    assert list(found.blocks) == ["data = aaaaaaaaaa", "data = bbbbbbbbbb"]
    assert found.notes[0] == "the groups differ in: data (aaaaaaaaaa, bbbbbbbbbb)"


def test_code_that_changed_under_the_same_name_is_another_method(tmp_path):
    for seed, code in enumerate([["c" * 64], ["d" * 64]]):
        make_run(tmp_path / f"{seed}", [0.5], algorithm="mine(x=1)", identity={"code_sha256": code})
    make_run(tmp_path / "2", [0.4], identity={"code_sha256": []})
    names = [r.name for r in compare(tmp_path).results]
    assert names == ["mine(x=1), code=cccccccccc", "mine(x=1), code=dddddddddd", "fedavg"]
    assert [r.name for r in compare([tmp_path / "0", tmp_path / "2"]).results] == [
        *("mine(x=1)", "fedavg")
    ]


def test_short_names():
    assert short("fedprox(mu=0.1) + gcfed(lam=0.5, min_ndim=2)") == "fedprox + gcfed(lam=0.5)"
    assert short("mine(x=1)") == "mine(x=1)"  # of a plugin that is not loaded
    assert short("mine(x=1) + fedprox(mu=0.1)") == "mine(x=1) + fedprox"


# statistics


def test_mean_and_deviation_over_seeds(two):
    row, other = compare(two).rows()
    finals = [0.6, 0.65, 0.9]
    assert (row["final_mean"], row["final_std"]) == pytest.approx((0.6, 0.1))
    assert other["final_mean"] == pytest.approx(statistics.mean(finals))
    assert other["final_std"] == pytest.approx(statistics.stdev(finals))
    assert cells(compare(two)) == {
        "fedavg": ["3", "60.00 (10.00)", "60.00 (10.00)"],
        "gcfed": ["3", "71.67 (16.07)", "71.67 (16.07)"],
    }


def test_final_is_the_mean_of_the_last_ten_evaluations(tmp_path):
    make_run(tmp_path / "a", [0.9, None] + [0.1] * 5 + [0.2] * 5)
    (row,) = compare(tmp_path).rows()
    assert row["final_mean"] == pytest.approx(0.15)
    assert (row["best_mean"], row["final_std"], row["seeds"]) == (0.9, None, 1)
    assert cells(compare(tmp_path)) == {"fedavg": ["1", "15.00", "90.00"]}


def test_rounds_and_bytes_to_a_target(tmp_path):
    """The mean of the last ten, of fewer at the start: 0.1, ..., 1.0 reach 0.5 in the ninth."""
    make_run(tmp_path / "a", [t / 10 for t in range(1, 11)], seed=0)
    make_run(tmp_path / "b", [None, *(t / 10 for t in range(1, 11))], seed=1, rounds=10)
    make_run(tmp_path / "c", [0.0] * 10, seed=2)
    found = compare(tmp_path, target=0.5)
    outcomes = found.results[0].outcomes
    assert [o.rounds_to_target for o in outcomes] == [9, 10, None]
    assert [o.bytes_to_target for o in outcomes] == [900, 1000, None]
    assert cells(found)["fedavg"][3:] == ["9.5 (0.7), 2 of 3", "0.0 (0.0), 2 of 3"]
    assert cells(compare(tmp_path, target=1.0))["fedavg"][3:] == ["not reached"] * 2


def test_fewest_rounds_are_best_if_all_seeds_get_there(tmp_path):
    make_run(tmp_path / "a", [0.1, 0.9, 0.9], algorithm="fedavg")
    make_run(tmp_path / "b", [0.9, 0.9, 0.9], algorithm="gcfed")
    make_run(tmp_path / "c", [0.9, 0.9, 0.9], algorithm="fedprox", seed=0)
    make_run(tmp_path / "d", [0.1, 0.1, 0.1], algorithm="fedprox", seed=1)
    assert marks(compare(tmp_path, target=0.5), 4) == ["second", "best", ""]


@pytest.mark.parametrize("target", [60, 0, -0.1, math.nan])
def test_a_target_is_a_fraction(two, target):
    with pytest.raises(InputError, match="a fraction such as"):
        compare(two, target=target)


def test_differences_are_paired_by_seed(two):
    base, other = compare(two, baseline="fedavg").results
    assert base.difference is None
    expected = paired([0.1, 0.05, 0.2])
    assert other.difference.differences == pytest.approx(expected.differences)
    assert other.difference.p == pytest.approx(expected.p)
    row = cells(compare(two, baseline="fedavg"))["gcfed"]
    assert row[3:] == ["+11.67 [-7.31, +30.64]", "0.118"]
    assert cells(compare(two, baseline="gcfed(lam=None)"))["fedavg"][3].startswith("-11.67")


def test_only_seeds_in_both_are_paired(tmp_path):
    make_runs(tmp_path / "a", [0.5], algorithm="fedavg")
    make_runs(tmp_path / "b", [0.6, 0.9], algorithm="gcfed")
    make_run(tmp_path / "c", [0.5], algorithm="fedprox", seed=5)
    found = compare(tmp_path, baseline="fedavg")
    assert cells(found)["gcfed"][3:] == ["+10.00 (1 pair)", "-"]
    assert cells(found)["fedprox"][3:] == ["-", "-"]
    assert "fedprox: no seed finished in both it and fedavg" in found.notes


def test_a_baseline_that_is_not_there(two):
    with pytest.raises(InputError, match="unknown baseline: 'fedavgg'; did you mean 'fedavg'"):
        compare(two, baseline="fedavgg")


def test_a_baseline_is_compared_as_an_algorithm(two):
    for text in ("gcfed( lam=None )", "gcfed(axis='output', min_ndim=2)"):
        assert compare(two, baseline=text).results[0].difference.mean == pytest.approx(-0.35 / 3)
    make_runs(two / "c", [0.5], algorithm="fedprox(mu=1.0) + gcfed")
    assert compare(two, baseline="fedprox(mu=1)+gcfed").results[0].difference is not None


def test_a_baseline_of_a_plugin_that_is_not_loaded(two):
    """Its defaults are not known, so its other hyper-parameters may be left out where one fits."""
    make_runs(two / "c", [0.5], algorithm="gkd(gamma=1.0, last=3) + gcfed(axis='output')")
    for text in ("gkd + gcfed", "gkd(gamma=1)+gcfed", "gkd(last=3, gamma=1.0) + gcfed(lam=None)"):
        assert compare(two, baseline=text).results[0].difference is not None
    said = r"fedavg, gcfed, 'gkd\(gamma=1.0, last=3\) \+ gcfed'\. gkd is of a plugin that is not"
    for text in ("gkd", "gcfed + gkd", "gkd(gamma=2) + gcfed", "gkd(1)"):
        with pytest.raises(InputError, match=said):
            compare(two, baseline=text)
    make_runs(two / "d", [0.5], algorithm="gkd(gamma=2.0, last=3) + gcfed")
    assert compare(two, baseline="gkd(gamma=2) + gcfed").results[0].difference is not None
    with pytest.raises(InputError, match=r"unknown baseline: 'gcfed"):
        compare(two, baseline="+".join(["gcfed"] * 1500))
    with pytest.raises(InputError, match=r"unknown baseline: 'gkd . gcfed'"):
        compare(two, baseline="gkd + gcfed")


def test_a_baseline_of_other_settings_is_said(tmp_path):
    make_runs(tmp_path / "a", [0.5, 0.6], algorithm="fedavg", lr=0.1)
    make_runs(tmp_path / "b", [0.6, 0.8], algorithm="gcfed", lr=0.2)
    found = compare(tmp_path, baseline="fedavg")
    text = "gcfed, lr=0.2 is compared with fedavg, lr=0.1: not the algorithm alone differs"
    assert text in found.notes
    assert found.results[1].difference.mean == pytest.approx(0.15)


def test_of_several_baselines_the_one_of_the_same_settings_is_meant(tmp_path):
    make_runs(tmp_path / "a", [0.5], algorithm="fedavg", lr=0.1)
    make_runs(tmp_path / "b", [0.4], algorithm="fedavg", lr=0.2)
    make_runs(tmp_path / "c", [0.6], algorithm="gcfed", lr=0.2)
    make_runs(tmp_path / "d", [0.6], algorithm="gcfed", lr=0.3)
    found = compare(tmp_path, baseline="fedavg")
    assert [r.baseline for r in found.results] == [None, None, "fedavg, lr=0.2", None]
    names = "'fedavg, lr=0.1' or 'fedavg, lr=0.2'"
    assert f"gcfed, lr=0.3: fedavg may be {names}; say which, for a difference" in found.notes
    named = compare(tmp_path, baseline="fedavg, lr=0.1")
    assert [r.baseline for r in named.results] == [None, *["fedavg, lr=0.1"] * 3]


def test_no_baseline_of_another_task(two):
    make_runs(two / "c", [0.5], algorithm="gcfed", clients=20)
    found = compare(two, baseline="fedavg")
    assert found.results[2].difference is None
    assert any("no run of fedavg shares its task" in note for note in found.notes)


# runs that did not finish


def test_diverged_runs_are_failed_at_the_level_of_chance(two):
    for seed in (0, 1, 2):
        make_run(two / f"s{seed}", [0.9], seed=seed, algorithm="scaffold", **DIVERGED)
    found = compare(two, baseline="fedavg", target=0.5)
    assert cells(found)["scaffold"] == [
        *("0 of 3", "10.00 (failed)", "10.00 (failed)", "not reached", "not reached", "-", "-")
    ]
    assert marks(found, 2) == ["second", "best", ""]
    assert f"scaffold, seed 1: failed after 1 of 1 rounds: {REASON}" in found.notes
    assert "10.00 (failed)" in found.render("latex")


def test_a_mean_without_its_failures_has_no_rank(two):
    make_run(two / "c0", [0.99], algorithm="fedprox", seed=0, rounds=2)
    make_run(two / "c1", [], algorithm="fedprox", seed=1, rounds=2, **DIVERGED)
    found = compare(two)
    assert cells(found)["fedprox"] == ["1 of 2", "99.00, 1 failed", "99.00, 1 failed"]
    assert marks(found, 2) == ["second", "best", ""]


def test_a_run_that_broke_off_did_not_diverge(tmp_path):
    make_run(tmp_path / "a", [0.9], status="failed", ended={"reason": "out of memory"}, rounds=2)
    assert cells(compare(tmp_path))["fedavg"][1] == "failed"


@pytest.mark.parametrize(("status", "said"), [("running", "killed"), ("stopped", "stopped")])
def test_unfinished_runs_are_left_out(tmp_path, status, said):
    make_run(tmp_path / "a", [0.5, 0.5], seed=0)
    make_run(tmp_path / "b", [0.9], seed=1, rounds=2, status=status)
    found = compare(tmp_path)
    assert cells(found)["fedavg"][:2] == ["1 of 2", "50.00"]
    assert found.notes == (f"fedavg, seed 1: {said} after 1 of 2 rounds, and left out",)
    only = compare(tmp_path / "b")
    assert cells(only)["fedavg"][:2] == ["0 of 1", "-"]


def test_what_is_no_run(tmp_path):
    with pytest.raises(InputError, match="neither a run nor a folder of runs"):
        compare(tmp_path)
    with pytest.raises(InputError, match="name a run"):
        compare([])


def test_a_run_that_was_never_judged_is_said(tmp_path):
    make_run(tmp_path / "a", [None])
    found = compare(tmp_path)
    assert cells(found)["fedavg"] == ["0 of 1", "-", "-"]
    assert found.notes == ("fedavg, seed 0: no round has a finite test accuracy",)


# tables


@pytest.fixture
def grid(tmp_path):
    """Two methods at two alphas, in the order that a grid would have them."""
    for alpha, finals in ((0.5, (0.8, 0.7)), (0.1, (0.5, 0.6))):
        for name, final in zip(("gcfed", "fedavg"), finals, strict=True):
            settings = {"partition": f"dirichlet(alpha={alpha})", "algorithm": name}
            make_runs(tmp_path / f"{alpha}-{name}", [final, final + 0.02], **settings)
    return tmp_path


def test_runs_of_a_folder_are_in_the_order_of_alpha_and_runs_given_in_their_own(grid):
    assert list(compare(grid).blocks) == ["α = 0.1", "α = 0.5"]
    given = [grid / name for name in ("0.5-gcfed", "0.5-fedavg", "0.1-gcfed", "0.1-fedavg")]
    found = compare(given)
    assert list(found.blocks) == ["α = 0.5", "α = 0.1"]
    assert [r.name for r in found.results] == ["gcfed", "fedavg"] * 2


def test_a_pivot_has_methods_as_rows_and_tasks_as_columns(grid):
    found = compare(grid)
    assert found.render(pivot=True).startswith("method  α = 0.1        α = 0.5\n")
    table = found.pivot()
    assert table.columns == ("method", "α = 0.1", "α = 0.5")
    assert [[c.value + c.rest for c in row] for row in table.blocks[0].rows] == [
        ["fedavg", "61.00 (1.41)", "71.00 (1.41)"],
        ["gcfed", "51.00 (1.41)", "81.00 (1.41)"],
    ]
    assert [[c.mark for c in row[1:]] for row in table.blocks[0].rows] == [
        ["best", "second"],
        ["second", "best"],
    ]
    assert r"method & $\alpha$ = 0.1 & $\alpha$ = 0.5 \\" in found.render("latex", pivot=True)
    assert "| `gcfed` | <u>51.00</u> (1.41) | **81.00** (1.41) |" in found.render(
        "markdown", pivot=True
    )
    rows = list(csv.DictReader(io.StringIO(found.render("csv", pivot=True))))
    assert [row["method"] for row in rows] == ["fedavg", "gcfed"]
    assert float(rows[1]["α = 0.5: mean"]) == pytest.approx(0.81)
    assert rows[1]["α = 0.5: finished"] == "2"
    with pytest.raises(InputError, match="unknown format of a pivot: 'json'"):
        found.render("json", pivot=True)


def test_a_pivot_counts_failures_and_says_what_is_missing(grid):
    make_run(grid / "p0", [0.99], algorithm="fedprox", seed=0, partition="dirichlet", rounds=2)
    failed = {"algorithm": "fedprox", "partition": "dirichlet", "rounds": 2, **DIVERGED}
    for seed in (1, 2):
        make_run(grid / f"p{seed}", [], seed=seed, **failed)
    found = compare(grid)
    (column,) = [k for k, title in enumerate(found.pivot().columns) if "rounds = 2" in title]
    fedavg, *_, fedprox = found.pivot().blocks[0].rows
    assert fedprox[column] == Entry("99.00", ", 1 of 3")
    assert fedavg[column] == Entry("-")


def test_a_method_tuned_for_each_task_is_one_row(tmp_path):
    for alpha, lr in ((0.1, 0.01), (1.0, 0.1)):
        for name in ("fedavg", "gcfed"):
            settings = {"partition": f"dirichlet(alpha={alpha})", "algorithm": name, "lr": lr}
            make_runs(tmp_path / f"{alpha}-{name}", [0.5], **settings)
    found = compare(tmp_path)
    assert [r.name for r in found.results] == [
        *("fedavg, lr=0.01", "gcfed, lr=0.01", "fedavg, lr=0.1", "gcfed, lr=0.1")
    ]
    assert [row[0].value for row in found.pivot().blocks[0].rows] == ["fedavg", "gcfed"]
    assert "lr (0.01, 0.1)" in found.pivot().notes[0]


def test_what_stands_below_a_pivot_is_of_the_pivot(two):
    line = (
        "final values of accuracy in %: mean (standard deviation) over seeds, "
        "each the mean of the one evaluation"
    )
    assert compare(two).pivot().notes[-1] == line
    *_, before, last = compare(two, baseline="fedavg").pivot().notes
    assert before == line
    assert last == "a pivot has final values alone: the table without it has the rest"


def test_the_number_of_evaluations_is_that_of_the_runs(tmp_path):
    make_run(tmp_path / "a", [0.5] * 3)
    assert "final: of all 3 evaluations;" in compare(tmp_path).render()
    make_run(tmp_path / "b", [0.5] * 12, algorithm="gcfed", rounds=12)
    assert "final: of the last 10 evaluations, or of all if fewer;" in compare(tmp_path).render()


def test_one_task_has_a_pivot_of_one_column(two):
    assert compare(two).pivot().columns == ("method", "final (%)")


def test_ranks():
    def rank(*values, **options):
        return [c.mark for c in ranked([Entry("")] * len(values), values, **options)]

    assert rank(3.0, 1.0, 2.0) == ["best", "", "second"]
    assert rank(3.0, 1.0, 2.0, largest=False) == ["", "best", "second"]
    assert rank(1.0, 1.0, 0.5, 0.2) == ["best", "best", "second", ""]
    assert rank(None, 1.0) == ["", ""]  # nothing to be better than


def test_plain_text(two):
    lines = compare(two, baseline="fedavg").render().splitlines()
    assert lines[0].split() == [
        *("method", "seeds", "final", "(%)", "best", "(%)"),
        *("minus", "fedavg", "[95", "%", "CI]", "p"),
    ]
    assert lines[1].startswith("fedavg  3      60.00+ (10.00)")
    assert lines[2].startswith("gcfed   3      71.67* (16.07)")
    assert lines[3] == "* best, + second"
    assert "not adjusted" in lines[-1]
    assert lines[-2].startswith(
        "accuracy: mean (standard deviation) over seeds; final: of the one evaluation; best:"
    )
    assert str(compare(two)) == compare(two).render("text")


def test_markdown(two):
    lines = compare(two).render("markdown").splitlines()
    assert lines[:4] == [
        "| method | seeds | final (%) | best (%) |",
        "| --- | ---: | ---: | ---: |",
        "| `fedavg` | 3 | <u>60.00</u> (10.00) | <u>60.00</u> (10.00) |",
        "| `gcfed` | 3 | **71.67** (16.07) | **71.67** (16.07) |",
    ]
    assert compare(two)._repr_markdown_() == compare(two).render("markdown")


def test_latex(two):
    make_runs(two / "c", [0.1, 0.2, 0.3], algorithm="gcfed(min_ndim=1)")
    lines = compare(two, baseline="fedavg").render("latex").splitlines()
    table = [line for line in lines if not line.startswith("%")]
    assert table[:3] == [
        r"\begin{tabular}{lrrrrr}",
        r"\toprule",
        r"method & seeds & final (\%) & best (\%) & minus fedavg [95 \% CI] & p \\",
    ]
    assert table[4].startswith(r"\texttt{fedavg} & 3 & \underline{60.00} (10.00) &")
    assert table[5].startswith(r"\texttt{gcfed} & 3 & \textbf{71.67} (16.07) &")
    expected = r"\texttt{gcfed(min\_ndim=1)} & 3 & 20.00 (10.00) & 20.00 (10.00) & $-$40.00 ["
    assert table[6].startswith(expected)
    assert table[-2:] == [r"\bottomrule", r"\end{tabular}"]
    assert {line.count("&") for line in table if line.endswith(r"\\")} == {5}


def test_csv_and_json_have_every_digit(two):
    found = compare(two, target=0.55, baseline="fedavg")
    rows = list(csv.DictReader(io.StringIO(found.render("csv"))))
    assert [row["name"] for row in rows] == ["fedavg", "gcfed"]
    assert float(rows[1]["final_mean"]) == found.rows()[1]["final_mean"]
    assert rows[0]["p"] == ""
    said = json.loads(found.render("json"))
    assert said["groups"][1]["difference"] == found.results[1].difference.mean
    assert said["differ"] == {"algorithm": ["fedavg", "gcfed"]}
    assert said["shared"]["clients"] == 10
    assert [run["final"] for run in said["groups"][0]["runs"]] == [0.5, 0.6, 0.7]
    assert said["groups"][0]["reached"] == 2


def test_an_unknown_format(two):
    with pytest.raises(InputError, match="unknown format: 'html'"):
        compare(two).render("html")


# the command


def test_the_command(two, gcfed):
    answer = gcfed("compare", two / "a", two / "b", "--baseline", "fedavg", "--target", "0.6")
    assert answer.code == 0
    assert answer.out == compare(two, baseline="fedavg", target=0.6).render()
    assert answer.err == ""


@pytest.mark.parametrize("form", FORMATS)
def test_formats_of_the_command(two, gcfed, form):
    answer = gcfed("compare", two, "--format", form)
    assert (answer.code, answer.out) == (0, compare(two).render(form))


def test_a_pivot_by_the_command(grid, gcfed, tmp_path):
    answer = gcfed("compare", grid, "--pivot", "--out", "pivot.tex")
    assert answer.out == compare(grid).render(pivot=True)
    assert (tmp_path / "pivot.tex").read_text() == compare(grid).render("latex", pivot=True)
    assert "unknown format of a pivot" in gcfed("compare", grid, "--pivot", "--out", "a.json").err


def test_files_are_made_and_never_overwritten(two, gcfed, tmp_path):
    answer = gcfed("compare", two, "--out", "table.tex", "--plot", "curves.png")
    assert answer.code == 0
    assert answer.out == compare(two).render()
    assert (tmp_path / "table.tex").read_text() == compare(two).render("latex")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    for option, name in (("--out", "table.tex"), ("--plot", "curves.png")):
        before = (tmp_path / name).read_bytes()
        answer = gcfed("compare", two, option, name)
        assert answer.code == 2
        assert f"{name} exists already" in answer.err
        assert (tmp_path / name).read_bytes() == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--format", "html"], "unknown format: 'html'"),
        (["--out", "table.xls"], "say what table.xls is to hold"),
        (["--out", "none/table.md"], "there is no folder"),
        (["--plot", "curves.gif"], "--plot makes a .png, .pdf, .svg file"),
        (["--target", "60"], "a fraction such as 0.6"),
        (["nowhere"], "nowhere is neither a run nor a folder of runs"),
    ],
)
def test_what_the_command_refuses(two, gcfed, tmp_path, words, said):
    before = sorted(tmp_path.rglob("*"))
    answer = gcfed("compare", two, *words)
    assert answer.code == 2
    assert said in " ".join(answer.err.split())
    assert sorted(tmp_path.rglob("*")) == before


def test_a_terminal_shows_bold_and_underlined(two, gcfed, monkeypatch):
    screen = io.StringIO()
    options = {"force_terminal": True, "width": 200, "highlight": False}
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(console, "out", Console(file=screen, **options))
    make_runs(two / "c", [0.5], algorithm="gcfed", clients=20)
    assert gcfed("compare", two, "--baseline", "fedavg").code == 0
    shown = screen.getvalue()
    assert "\x1b[1m71.67\x1b[0m (16.07)" in shown
    assert "\x1b[4m60.00\x1b[0m (10.00)" in shown
    assert "minus fedavg [95 % CI]" in shown
    assert "3/20 clients" in shown
