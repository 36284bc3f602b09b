"""Runs as pandas tables."""

import importlib

import pytest
from made_runs import make_run, make_runs
from running import lines, tiny

from gcfed import InputError, load_run, run
from gcfed.results.frame import frame, summaries

pytest_plugins = ["running"]


def test_a_row_a_round(tmp_path):
    pytest.importorskip("pandas")
    make_run(tmp_path / "a", [0.1, 0.2], algorithm="gcfed(lam=None)", seed=3)
    make_run(tmp_path / "b", [0.3, None], seed=4)
    found = frame(tmp_path)
    assert list(found.columns[:4]) == ["run", "seed", "algorithm", "round"]
    assert found["seed"].tolist() == [3, 3, 4, 4]
    assert found["algorithm"].tolist() == ["gcfed", "gcfed", "fedavg", "fedavg"]
    assert found["test_accuracy"].tolist()[:3] == [0.1, 0.2, 0.3]
    assert found["test_accuracy"].isna().tolist() == [False, False, False, True]
    best = found.groupby("algorithm")["test_accuracy"].max()
    assert best.to_dict() == {"fedavg": 0.3, "gcfed": 0.2}


def test_every_field_of_a_line_of_a_real_run(tmp_path, float32):
    pytest.importorskip("pandas")
    run(tiny(), tmp_path / "a")
    found = frame(str(tmp_path / "a"))
    first, *_ = lines(tmp_path / "a")
    assert set(first) < set(found.columns)
    assert found["weights_sha256"][0] == first["weights_sha256"]
    assert frame([load_run(tmp_path / "a"), tmp_path]).equals(found)  # each run once


def test_a_run_that_has_no_round_yet(tmp_path):
    pytest.importorskip("pandas")
    make_run(tmp_path / "a", [], status="running")
    assert frame(tmp_path).empty
    assert list(frame(tmp_path).columns) == ["run", "seed", "algorithm"]


def test_a_row_a_run(tmp_path):
    pytest.importorskip("pandas")
    make_runs(tmp_path / "a", [0.5, 0.7], lr=0.25)
    make_run(tmp_path / "b", [0.1], status="running", rounds=9)
    found = summaries(tmp_path)
    assert found["status"].tolist() == ["finished", "finished", "killed"]
    assert found["test_accuracy"].tolist()[:2] == [0.5, 0.7]
    assert found["lr"].tolist() == [0.25, 0.25, 0.01]
    assert found["rounds"].tolist() == [1, 1, 1]  # that were done
    assert found["run"][2] == str(tmp_path / "b")
    assert found["best_round"].tolist()[:2] == [1, 1]
    assert found["partition"].tolist() == ["dirichlet"] * 3
    assert found["alpha"].tolist() == [0.1] * 3


def test_settings_are_columns_of_rounds_too(tmp_path):
    pytest.importorskip("pandas")
    make_run(tmp_path / "a", [0.1, 0.2], lr=0.25, partition="dirichlet(alpha=0.5)", clients=9)
    make_run(tmp_path / "b", [0.3], partition="iid")
    found = frame(tmp_path)
    assert found["round"].tolist() == [1, 2, 1]
    assert found["lr"].tolist() == [0.25, 0.25, 0.01]
    assert found["alpha"].tolist()[:2] == [0.5, 0.5] and found["alpha"].isna().tolist()[2]
    assert found["num_clients"].tolist() == [9, 9, 10]
    assert found["clients"][0] == [1, 2, 3]  # of the line: those that took part
    last = found.sort_values("round").groupby("lr").last()
    assert last["test_accuracy"].to_dict() == {0.01: 0.3, 0.25: 0.2}


def test_without_pandas(tmp_path, monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(name)

    make_run(tmp_path / "a", [0.1])
    monkeypatch.setattr("gcfed.results.frame.import_module", missing)
    for function in (frame, summaries):
        with pytest.raises(InputError, match=r"pip install 'gcfed\[notebook\]'"):
            function(tmp_path)


def test_pandas_is_asked_for_late():
    module = importlib.import_module("gcfed.results.frame")
    assert "pandas" not in vars(module)
