"""Lines written while the next round is trained, as on a GPU, whose part a stand-in plays."""

import errno
import os
import signal

import pytest
import torch
from killing import KILLED, killed_at_write
from running import lines
from test_resume import StopError, assert_same, broken_off, small

from gcfed import load_run, resume, run, verify
from gcfed.core import tree
from gcfed.errors import InputError
from gcfed.runs import scribe
from gcfed.runs.journal import Journal
from gcfed.runs.train import run_together
from gcfed.simulation import underway
from gcfed.simulation.side_stream import Fetched, SideStream

pytest_plugins = ["running", "test_resume"]
pytestmark = pytest.mark.usefixtures("float32", "registries", "normed")


class Arrival:
    """The end of a copy, which fills memory that holds nothing of use until it is waited for."""

    def __init__(self, host, value):
        self._host, self._value = host, value

    def synchronize(self):
        tree.map(lambda a, b: a.copy_(b), self._host, self._value)


class Beside(SideStream):
    """A side stream whose copies arrive as late as they may."""

    is_beside = True

    def fetch(self, value):
        host = tree.map(lambda x: torch.full_like(x, 7), value)
        return Fetched(host, Arrival(host, value))


@pytest.fixture
def beside(monkeypatch):
    """Call what makes runs write their lines beside the next round."""
    return lambda: monkeypatch.setattr("gcfed.runs.scribe.SideStream", Beside)


KINDS = {
    "plain": {"algorithm": "gcfed"},
    "memory": {"algorithm": "scaffold + fedvarp"},
    "local buffers": {"algorithm": "fedavg", "model": "normed", "buffers": "local"},
    "validation": {"algorithm": "fedyogi", "validation": 0.2, "evaluate_every": 3},
    "probes": {"algorithm": "fedavg", "probes": ("drift",)},
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_bytes_in_the_same_order(kind, beside, tmp_path):
    config, seen = small(**KINDS[kind]), []
    run(config, tmp_path / "straight")
    beside()
    run(config, tmp_path / "a", lambda found: seen.append(found[0]["round"]))
    assert seen == list(range(8))
    assert_same(tmp_path / "a", tmp_path / "straight")
    assert verify(tmp_path / "a").holds


@pytest.mark.parametrize("is_beside", [True, False])
def test_a_line_is_written_while_later_rounds_are_trained(is_beside, beside, tmp_path, monkeypatch):
    """On a CPU, where nothing is gained, before it."""
    if is_beside:
        beside()
    written, real = [], underway.prepare

    def begun(*round):
        written.append(len(lines(tmp_path / "a")))
        return real(*round)

    monkeypatch.setattr(underway, "prepare", begun)
    run(small(rounds=5, checkpoint_every=3), tmp_path / "a")
    assert written == ([0, 0, 0, 3, 3] if is_beside else [0, 1, 2, 3, 4])


def test_seeds_together_of_which_some_diverge(beside, tmp_path):
    configs = [small(seed=s, engine="vectorized", lr=lr) for s, lr in ((0, 0.1), (1, 0.1))]
    straight = [tmp_path / "straight" / str(config.seed) for config in configs]
    paths = [tmp_path / "a" / str(config.seed) for config in configs]
    run_together(configs, straight)
    beside()
    run_together(configs, paths)
    for path, other in zip(paths, straight, strict=True):
        assert_same(path, other)
    wild = small(algorithm="fedavg", server_lr=1e30)
    summary = run(wild, tmp_path / "wild")
    assert summary["diverged"]
    assert summary["round"] == len(lines(tmp_path / "wild")) > 0


@pytest.mark.slow
@pytest.mark.parametrize("write", [24, 31, 38, 46, 55])
def test_killed_at_a_write_and_resumed(write, beside, tmp_path):
    config = small(algorithm="scaffold")
    run(config, tmp_path / "straight")
    beside()
    assert killed_at_write(lambda: run(config, tmp_path / "a"), write) == KILLED
    resume(tmp_path / "a")
    assert_same(tmp_path / "a", tmp_path / "straight")


def test_what_ends_a_run_leaves_the_lines_of_all_rounds_before(beside, tmp_path, monkeypatch):
    config, real = small(checkpoint_every=None), underway.prepare
    run(config, tmp_path / "straight")
    beside()

    def failing(setup, server, clients, t, *cohort):
        if t == 5:
            raise StopError("the device is lost")
        return real(setup, server, clients, t, *cohort)

    monkeypatch.setattr(underway, "prepare", failing)
    with pytest.raises(StopError, match="the device is lost"):
        run(config, tmp_path / "a")
    monkeypatch.setattr(underway, "prepare", real)
    assert len(lines(tmp_path / "a")) == 5
    assert load_run(tmp_path / "a").summary["reason"] == "the device is lost"
    broken_off(config, tmp_path / "b", 3)
    assert len(lines(tmp_path / "b")) == 5  # that which was trained meanwhile is written too
    for name in ("a", "b"):
        resume(tmp_path / name)
        assert_same(tmp_path / name, tmp_path / "straight")


def test_ctrl_c_leaves_nothing_unwritten(beside, tmp_path):
    config = small(checkpoint_every=None)
    run(config, tmp_path / "straight")
    beside()

    def observe(found):
        if found[0]["round"] == 2:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.warns(UserWarning, match="stopping after this round"):
        summary = run(config, tmp_path / "a", observe)
    assert (summary["status"], summary["reason"], summary["round"]) == ("stopped", "interrupted", 6)
    assert len(lines(tmp_path / "a")) == 6  # the rounds after, one of which was under way
    assert (tmp_path / "a" / "checkpoints" / "00000006.json").exists()
    resume(tmp_path / "a")
    assert_same(tmp_path / "a", tmp_path / "straight")


def test_too_little_memory_to_judge_a_model_ends_the_run(beside, tmp_path, monkeypatch):
    """Cohorts are not halved for it, and no line is missing among those that are written."""
    config, real, asked = small(), scribe.begin_records, []
    run(config, tmp_path / "straight")
    beside()

    def short(*judged):
        asked.append(1)
        if len(asked) == 4:
            raise torch.OutOfMemoryError("out of memory")
        return real(*judged)

    monkeypatch.setattr(scribe, "begin_records", short)
    with pytest.raises(InputError, match="memory is short where models are judged"):
        run(config, tmp_path / "a")
    assert [line["round"] for line in lines(tmp_path / "a")] == [0, 1, 2, 3]
    resume(tmp_path / "a")
    assert_same(tmp_path / "a", tmp_path / "straight")


def test_no_line_follows_one_that_is_missing(beside, tmp_path, monkeypatch):
    config, real, hit = small(checkpoint_every=None), Journal.append, []
    run(config, tmp_path / "straight")
    beside()

    def interrupted(self, line):
        if line.get("round") == 4 and not hit:
            hit.append(1)
            raise KeyboardInterrupt
        real(self, line)

    monkeypatch.setattr(Journal, "append", interrupted)
    summary = run(config, tmp_path / "a")
    assert summary["status"] == "stopped"
    assert [line["round"] for line in lines(tmp_path / "a")] == [0, 1, 2, 3]
    assert (tmp_path / "a" / "checkpoints" / "00000004.json").exists()
    resume(tmp_path / "a")
    assert_same(tmp_path / "a", tmp_path / "straight")


def test_a_full_disk_is_said_as_ever(beside, tmp_path, monkeypatch):
    config, real = small(), Journal.append
    run(config, tmp_path / "straight")
    beside()

    def full(self, line):
        if line.get("round") == 4:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        real(self, line)

    monkeypatch.setattr(Journal, "append", full)
    with pytest.raises(
        InputError, match=r"rounds.jsonl: No space left .*; what was saved is whole"
    ):
        run(config, tmp_path / "a")
    monkeypatch.undo()
    assert [line["round"] for line in lines(tmp_path / "a")] == [0, 1, 2, 3]
    assert load_run(tmp_path / "a").summary["status"] == "stopped"
    resume(tmp_path / "a")
    assert_same(tmp_path / "a", tmp_path / "straight")
