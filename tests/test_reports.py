"""What a sweep prints and writes of its runs."""

import json

import pytest
from running import TINY

from gcfed.results.comparison import compare
from gcfed.sweeps.sweep import Sweep

pytest_plugins = ["running"]

GRID = {"algorithm": ["gcfed", "fedavg"], "alpha": [0.5, 0.1]}


@pytest.fixture
def grid(tmp_path, monkeypatch):
    """Two methods at two alphas, neither in the order of the alphabet nor of numbers."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    shared = {k: v for k, v in TINY.items() if k not in ("algorithm", "partition", "seed")}
    shared |= {"seeds": [0, 1], "rounds": 2, "engine": "sequential"}
    text = "".join(f"{key} = {json.dumps(value)}\n" for key, value in shared.items())
    text += "[grid]\n" + "".join(f"{key} = {json.dumps(v)}\n" for key, v in GRID.items())
    path = tmp_path / "grid.toml"
    path.write_text(text)
    return path


@pytest.mark.slow
def test_a_sweep_makes_a_table_and_a_figure_in_the_order_of_its_grid(grid, gcfed, tmp_path):
    words = ("--pivot", "--out", "table.tex", "--plot", "curves.svg", "--baseline", "fedavg")
    answer = gcfed("sweep", grid, "--devices", "cpu", *words)
    assert answer.code == 0, answer.err
    found = Sweep(grid).compare(baseline="fedavg")
    assert answer.out == found.render(pivot=True)
    head, first, second, *_ = answer.out.splitlines()
    assert head.split("  ")[0] == "method" and head.index("α = 0.5") < head.index("α = 0.1")
    assert (first.split()[0], second.split()[0]) == ("gcfed", "fedavg")
    assert (tmp_path / "table.tex").read_text() == found.render("latex", pivot=True)
    drawn = (tmp_path / "curves.svg").read_text()
    assert drawn.index(">gcfed</text>") < drawn.index(">fedavg</text>")
    again = gcfed("sweep", grid, "--baseline", "fedavg", "--out", "table.md")
    assert again.out == found.render()
    assert (tmp_path / "table.md").read_text() == found.render("markdown")
    assert "minus fedavg" in again.out
    stored = compare(tmp_path / "runs")  # in the order of alpha: nobody said another
    assert list(stored.blocks) == ["α = 0.1", "α = 0.5"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--baseline", "fedprox"], "unknown baseline: 'fedprox'"),
        (["--out", "old.md"], "old.md exists already"),
        (["--out", "table.xls"], "say what table.xls is to hold"),
        (["--plot", "curves.gif"], "--plot makes a .png, .pdf, .svg file"),
        (["--pivot", "--out", "a.json"], "unknown format of a pivot: 'json'"),
    ],
)
def test_what_is_refused_before_anything_is_trained(grid, gcfed, tmp_path, words, said):
    (tmp_path / "old.md").write_text("kept")
    answer = gcfed("sweep", grid, *words)
    assert answer.code == 2
    assert said in " ".join(answer.err.split())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["grid.toml", "old.md"]


def test_a_sweep_whose_cells_are_judged_differently_makes_no_one_table(grid, gcfed):
    text = grid.read_text().replace("alpha = [0.5, 0.1]", 'metrics = [["accuracy"], ["loss"]]')
    grid.write_text(text)
    answer = gcfed("sweep", grid, "--out", "table.tex")
    assert answer.code == 2
    assert "judged by different metrics (accuracy, loss)" in " ".join(answer.err.split())
