"""Runs of a folder, told apart by what differs, and whether anybody goes on with them."""

import io
import os
import signal
import sys

from killing import ended, forked
from made_runs import make_run, make_runs

from gcfed import Run, lock
from gcfed.results.facts import last_rounds, status_of
from gcfed.results.finding import find_runs
from gcfed.results.listing import run_table

pytest_plugins = ["running"]


def rows(path):
    table = run_table(find_runs(path), below=path)
    return [table.columns, *([cell.value for cell in row] for row in table.blocks[0].rows)]


def test_runs_are_told_apart_by_what_differs(tmp_path, gcfed):
    make_run(tmp_path / "a", [0.5], partition="dirichlet(alpha=0.1)", lr=0.1)
    make_run(tmp_path / "b", [0.5], partition="dirichlet(alpha=0.5)", lr=0.2, engine="vectorized")
    columns, first, second = rows(tmp_path)
    assert columns[:4] == ("algorithm", "partition", "lr", "seed")
    assert (first[:4], second[:4]) == (
        ["fedavg", "α = 0.1", "0.1", "0"],
        ["fedavg", "α = 0.5", "0.2", "0"],
    )
    assert gcfed("show", tmp_path).out.splitlines()[2].startswith("fedavg     α = 0.5    0.2  0 ")


def test_several_runs_are_shown_by_their_paths_each_once(tmp_path, gcfed):
    for name in ("a", "b", "c"):
        make_run(tmp_path / name, [0.5])
    shown = gcfed("show", "b", "a", "b").out.splitlines()
    assert [line.split()[-1] for line in shown[1:3]] == ["b", "a"]
    assert gcfed("show", "b", "b").out == gcfed("show", "b", "./b").out
    assert "nowhere is neither a run" in gcfed("show", "a", "nowhere").err


def test_a_run_whose_lines_are_damaged_says_what_to_do(tmp_path, gcfed):
    path = make_run(tmp_path / "a", [0.5, 0.6])
    (path / "rounds.jsonl").write_text("{\n{}\n")
    said = gcfed("show", "a").err
    assert "a/rounds.jsonl is damaged in line 1" in said
    assert "; gcfed run a/config.toml --out FOLDER does it again" in said
    (path / "provenance.json").unlink()
    assert "provenance.json cannot be read: No such file or directory; " in gcfed("show", "a").err


def test_a_locale_without_greek_has_a_name_for_alpha(tmp_path, monkeypatch, gcfed):
    for alpha in (0.1, 0.5):
        make_run(tmp_path / f"{alpha}", [0.5], partition=f"dirichlet(alpha={alpha})")
    screen = io.TextIOWrapper(io.BytesIO(), "ascii")
    monkeypatch.setattr(sys, "stdout", screen)
    assert gcfed("show", tmp_path).code == 0
    screen.flush()
    assert b"fedavg     \\u03b1 = 0.1 " in screen.buffer.getvalue()


def test_runs_that_differ_in_seed_and_algorithm_have_no_more_columns(tmp_path):
    make_runs(tmp_path / "a", [0.5, 0.6], algorithm="fedavg")
    make_run(tmp_path / "b", [0.5, 0.6], algorithm="gcfed")  # with another number of rounds
    assert rows(tmp_path)[0] == (
        *("algorithm", "seed", "status", "rounds", "metric", "final", "best", "run"),
    )


def test_a_run_that_somebody_writes_is_running(tmp_path):
    path = make_run(tmp_path / "a", [0.5], status="running", rounds=3)
    assert Run(path).status == "killed"

    def look():
        lock._held.clear()  # as in a process that did not come out of this one
        (tmp_path / "seen").write_text(Run(path).status)

    with lock.locked([path]):
        assert Run(path).status == "running"
        assert ended(forked(look)) == 0
        assert (tmp_path / "seen").read_text() == "running"
        assert ended(forked(look)) == 0  # to ask has not ended the lock
        assert (tmp_path / "seen").read_text() == "running"
    assert Run(path).status == "killed"


def test_a_run_whose_process_was_killed_is_killed(tmp_path, gcfed):
    path = make_run(tmp_path / "a", [0.5], status="running", rounds=3)

    def die():
        lock._held.clear()
        with lock.locked([path]):
            os.kill(os.getpid(), signal.SIGKILL)

    ended(forked(die))
    assert (path / lock.LOCK).read_bytes()  # its name is still there
    assert Run(path).status == "killed"
    assert "killed  1 of 3" in gcfed("show", tmp_path).out
    with lock.locked([path]):  # and to ask has not locked it
        pass


def test_rounds_count_from_1(tmp_path):
    run = Run(make_run(tmp_path / "a", [0.5, 0.6]))
    assert [row[0] for row in last_rounds(run.records, ("round",))] == ["1", "2"]
    ended = {"reason": "so it was", "round": 2}
    failed, stopped = (
        Run(make_run(tmp_path / name, [0.5, 0.6], status=name, ended=ended, rounds=9))
        for name in ("failed", "stopped")
    )
    assert status_of(failed) == "failed in round 3: so it was"
    assert status_of(stopped) == "stopped after round 2: so it was"
