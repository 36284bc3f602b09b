"""Runs that are stopped, killed or damaged, and end as if nothing had happened."""

import errno
import itertools
import json
import os
import random as python_random
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
from dataclasses import dataclass

import pytest
import torch
from killing import KILLED, ended, forked, killed_after, killed_at_write
from running import Normed, flags, lines, tiny
from torch import nn

from gcfed import (
    ALGORITHMS,
    ENGINES,
    MODELS,
    Algorithm,
    InputError,
    Sequential,
    load_run,
    resume,
    run,
    simulate_together,
    verify,
)
from gcfed.cpu import processor
from gcfed.runs.journal import Journal
from gcfed.runs.train import run_together

pytest_plugins = ["running"]
pytestmark = pytest.mark.usefixtures("float32", "registries", "normed")

SMALL = {
    "dataset": "synthetic(train=80, test=20)",
    "model": "mlp(hidden=(4,))",
    "clients": 4,
    "cohort": 2,
    "rounds": 8,
    "partition": "iid",
    "checkpoint_every": 2,
}
FAMILIES = {
    "stateless": {"algorithm": "gcfed"},
    "server": {"algorithm": "fedadam"},
    "memory": {"algorithm": "scaffold"},
    "model-sized memory": {"algorithm": "moon"},
    "rows": {"algorithm": "fedvarp"},
    "all": {"algorithm": "scaffold + fedvarp + moon"},
    "averaged buffers": {"algorithm": "fedacg", "model": "normed"},
    "local buffers": {"algorithm": "feddyn", "model": "normed", "buffers": "local"},
    "on disk": {"algorithm": "scaffold + fedvarp", "memory": "disk"},
    "validation": {"algorithm": "fedyogi", "validation": 0.2, "evaluate_every": 3},
}


def small(**changes):
    return tiny(**{**SMALL, **changes})


@pytest.fixture
def normed(registries):
    MODELS.register("normed")(Normed)


class StopError(Exception):
    """What a test stops a run with."""


def until(num_rounds):
    """An observer that breaks a run off."""

    def observe(found):
        if next(iter(found.values()))["round"] + 1 == num_rounds:
            raise StopError

    return observe


def broken_off(config, path, num_rounds):
    with pytest.raises(StopError):
        run(config, path, until(num_rounds))


def assert_same(path, straight):
    """A run ended as the one that never stopped, down to what its last checkpoint holds."""
    assert (path / "rounds.jsonl").read_bytes() == (straight / "rounds.jsonl").read_bytes()
    for name in ("model.safetensors", "summary.json"):
        assert (path / name).read_bytes() == (straight / name).read_bytes(), name
    timings = load_run(path).timings
    assert [t["round"] for t in timings] == [line["round"] for line in lines(straight)]
    last = sorted((straight / "checkpoints").glob("0*.json"))[-1]
    best = json.loads(last.read_text())["best"]["file"]
    for name in (f"checkpoints/{last.stem}.safetensors", f"checkpoints/{best}", "config.toml"):
        assert (path / name).read_bytes() == (straight / name).read_bytes(), name
    assert newest_rows(path) == newest_rows(straight)
    assert not list(path.glob(".spill-*")) and not list(path.rglob("*.part"))


def newest_rows(path):
    """The last version of every client's rows."""
    found = {}
    for file in (path / "checkpoints" / "clients").iterdir():
        kind, client, rounds = file.stem.split("-")
        found.setdefault((kind, client), {})[int(rounds)] = file.read_bytes()
    assert all(len(versions) <= 2 for versions in found.values())
    return {key: versions[max(versions)] for key, versions in found.items()}


@pytest.mark.parametrize("family", FAMILIES)
def test_killed_at_any_write_and_resumed(family, tmp_path):
    """Killed again and again, each time at another of the writes that a run consists of."""
    config, random = small(**FAMILIES[family]), python_random.Random(family)
    run(config, tmp_path / "straight")
    path, deaths = tmp_path / "killed", 0
    while not (path / "summary.json").exists():
        shutil.rmtree(path, ignore_errors=True)
        deaths += killed_at_write(lambda: run(config, path), random.randint(10, 60)) == KILLED
    for _ in range(6):
        deaths += killed_at_write(lambda: resume(path), random.randint(1, 60)) == KILLED
    assert deaths >= 3
    resume(path)
    assert_same(path, tmp_path / "straight")


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_goes_on_from_a_checkpoint(family, tmp_path):
    config = small(**FAMILIES[family])
    run(config, tmp_path / "straight")
    broken_off(config, tmp_path / "a", 5)
    resume(tmp_path / "a")
    assert load_run(tmp_path / "a").provenance["resumed"][0]["after_rounds"] == 4
    assert_same(tmp_path / "a", tmp_path / "straight")


@pytest.mark.slow
def test_killed_at_every_single_write(tmp_path):
    """Every write of a whole run, one after the other, with client memory, rows and state."""
    config = small(algorithm="scaffold + fedvarp + moon", rounds=4)
    run(config, tmp_path / "straight")
    for number in range(1, 1000):
        path = tmp_path / str(number)
        if killed_at_write(lambda path=path: run(config, path), number) != KILLED:
            break
        if (path / "summary.json").exists():
            resume(path)
            assert_same(path, tmp_path / "straight")
        shutil.rmtree(path, ignore_errors=True)
    assert number > 50


def test_killed_at_random_moments(tmp_path):
    config, random = small(algorithm="scaffold + gcfed", rounds=40), python_random.Random(0)
    run(small(rounds=1), tmp_path / "first")  # what is imported then does not count
    began = time.perf_counter()
    run(config, tmp_path / "straight")
    whole = time.perf_counter() - began
    path, deaths = tmp_path / "killed", 0
    child = forked(lambda: run(config, path))
    while not (path / "summary.json").exists():
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    assert ended(child) == KILLED
    for _ in range(6):
        moment = whole * random.uniform(0.05, 0.4)
        deaths += killed_after(lambda: resume(path), moment) == KILLED
    assert deaths >= 2
    resume(path)
    assert_same(path, tmp_path / "straight")


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_every_algorithm_resumes(name, tmp_path):
    """To register an algorithm is to test it."""
    chain = f"clip_update + {name}" if name == "noise" else name  # which is measured by a norm
    config = small(algorithm=chain, rounds=5)
    run(config, tmp_path / "straight")
    broken_off(config, tmp_path / "a", 3)
    assert load_run(tmp_path / "a").summary["status"] == "failed"
    resume(tmp_path / "a")
    assert_same(tmp_path / "a", tmp_path / "straight")
    assert load_run(tmp_path / "a").provenance["resumed"][0]["after_rounds"] == 2


def test_a_torn_last_line(tmp_path):
    config = small(algorithm="fedvarp")
    run(config, tmp_path / "straight")
    broken_off(config, tmp_path / "a", 5)
    for name in ("rounds.jsonl", "timings.jsonl"):
        with (tmp_path / "a" / name).open("a") as file:
            file.write('{"round": 5, "test_acc')
    resume(tmp_path / "a")
    assert_same(tmp_path / "a", tmp_path / "straight")


def flip(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def halve(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def newest_client(folder):
    return max((folder / "clients").iterdir(), key=lambda p: int(p.stem.split("-")[2]))


DAMAGES = {
    "a bit of the server": lambda folder: flip(folder / "00000004.safetensors"),
    "half the server": lambda folder: halve(folder / "00000004.safetensors"),
    "no server": lambda folder: (folder / "00000004.safetensors").unlink(),
    "half the manifest": lambda folder: halve(folder / "00000004.json"),
    "an empty manifest": lambda folder: (folder / "00000004.json").write_text(""),
    "another manifest": lambda folder: (folder / "00000004.json").write_text("[]"),
    "another round": lambda folder: shutil.copy(folder / "00000002.json", folder / "00000004.json"),
    "a bit of a client": lambda folder: flip(newest_client(folder)),
    "no client": lambda folder: newest_client(folder).unlink(),
    "the journal": lambda folder: flip(folder / "clients.jsonl"),
    "a line": lambda folder: halve(folder.parent / "rounds.jsonl"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_said_and_the_one_before_taken(damage, tmp_path):
    config = small(algorithm="scaffold + fedvarp", rounds=6)
    run(config, tmp_path / "straight")
    broken_off(config, tmp_path / "a", 5)
    DAMAGES[damage](tmp_path / "a" / "checkpoints")
    said = r"a: the checkpoint after 4 rounds is damaged \(.*\); going back to the one before"
    with pytest.warns(UserWarning, match=said):
        resume(tmp_path / "a")
    assert load_run(tmp_path / "a").provenance["resumed"][0]["after_rounds"] == 2
    assert_same(tmp_path / "a", tmp_path / "straight")


def test_without_a_whole_checkpoint_a_run_starts_again(tmp_path):
    config = small(algorithm="scaffold")
    run(config, tmp_path / "straight")
    broken_off(config, tmp_path / "a", 5)
    for path in (tmp_path / "a" / "checkpoints").glob("0*.safetensors"):
        halve(path)
    with pytest.warns(UserWarning) as said:
        resume(tmp_path / "a")
    told = [str(w.message) for w in said]
    assert [w.partition("after ")[2][0] for w in told[:2]] == ["4", "2"]
    assert told[2].endswith("a starts again from its first round")
    assert_same(tmp_path / "a", tmp_path / "straight")


def test_more_rounds_and_fewer(tmp_path):
    run(small(algorithm="scaffold + fedadam"), tmp_path / "straight")
    run(small(algorithm="scaffold + fedadam", rounds=3), tmp_path / "a")
    before = (tmp_path / "a" / "provenance.json").read_bytes()
    assert resume(tmp_path / "a")["rounds"] == 3  # nothing to do, nothing done
    assert (tmp_path / "a" / "provenance.json").read_bytes() == before
    assert resume(tmp_path / "a", rounds=8)["rounds"] == 8
    assert_same(tmp_path / "a", tmp_path / "straight")
    with pytest.raises(InputError, match="has 8 rounds already, which is more than 5"):
        resume(tmp_path / "a", rounds=5)
    run(small(lr_schedule="cosine", rounds=3), tmp_path / "b")
    with pytest.raises(InputError, match="a run of 3 rounds, in which its cosine schedule ends"):
        resume(tmp_path / "b", rounds=5)


def test_ctrl_c_stops_after_the_round(tmp_path):
    config = small(algorithm="fedvarp", checkpoint_every=None)
    run(config, tmp_path / "straight")

    def observe(found):
        if found[0]["round"] == 2:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.warns(UserWarning, match="stopping after this round; once more to stop at once"):
        summary = run(config, tmp_path / "a", observe)
    assert (summary["status"], summary["reason"], summary["round"]) == ("stopped", "interrupted", 3)
    assert len(lines(tmp_path / "a")) == 3
    assert (tmp_path / "a" / "checkpoints" / "00000003.json").exists()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    resume(tmp_path / "a")
    assert_same(tmp_path / "a", tmp_path / "straight")


def test_ctrl_c_twice_stops_at_once(tmp_path):
    config = small(algorithm="fedavgm")
    run(config, tmp_path / "straight")

    def observe(found):
        if found[0]["round"] == 4:
            for _ in range(2):
                signal.raise_signal(signal.SIGINT)

    with pytest.warns(UserWarning, match="stopping after this round"):
        summary = run(config, tmp_path / "a", observe)
    assert summary["status"] == "stopped"
    resume(tmp_path / "a")
    assert_same(tmp_path / "a", tmp_path / "straight")


def test_interrupted_between_a_line_and_what_belongs_to_it(tmp_path, monkeypatch):
    config, real = small(algorithm="fedavgm", checkpoint_every=None), Journal.append
    run(config, tmp_path / "straight")

    def interrupted(self, line):
        real(self, line)
        if line.get("round") == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(Journal, "append", interrupted)
    assert run(config, tmp_path / "a")["status"] == "stopped"
    monkeypatch.undo()
    resume(tmp_path / "a")
    assert_same(tmp_path / "a", tmp_path / "straight")


def test_a_run_in_a_thread_leaves_signals_alone(tmp_path):
    thread = threading.Thread(target=lambda: run(small(rounds=1), tmp_path / "a"))
    thread.start()
    thread.join()
    assert load_run(tmp_path / "a").summary["status"] == "finished"


def together(seeds=(0, 1, 2), **changes):
    return [small(seed=s, engine="vectorized", **changes) for s in seeds]


def folders(root, seeds=(0, 1, 2)):
    return [root / f"seed-{s}" for s in seeds]


def test_runs_trained_together_resume_together(tmp_path):
    configs, random = together(algorithm="scaffold"), python_random.Random(1)
    run_together(configs, folders(tmp_path / "straight"))
    paths, deaths = folders(tmp_path / "a"), 0
    for number in itertools.count(50):  # until just one of them is a run
        shutil.rmtree(tmp_path / "a", ignore_errors=True)
        assert killed_at_write(lambda: run_together(configs, paths), number) == KILLED
        if (paths[0] / "summary.json").exists():
            break
    assert not (paths[1] / "summary.json").exists()
    for _ in range(5):
        deaths += killed_at_write(lambda: resume(paths[0]), random.randint(5, 80)) == KILLED
    assert deaths >= 3
    resume(paths[1])
    for path, straight in zip(paths, folders(tmp_path / "straight"), strict=True):
        assert_same(path, straight)
    shutil.rmtree(paths[0])
    with pytest.raises(InputError, match=r"trained together with .*seed-0, which is not there"):
        resume(paths[1])


def test_a_checkpoint_that_not_all_of_them_have_is_none(tmp_path):
    """Killed after the first of three had written it."""
    configs = together(algorithm="scaffold")
    run_together(configs, folders(tmp_path / "straight"))
    paths = folders(tmp_path / "a")
    with pytest.raises(StopError):
        run_together(configs, paths, until(5))
    for path in paths[1:]:
        (path / "checkpoints" / "00000004.json").unlink()
    resume(paths[0])
    for path, straight in zip(paths, folders(tmp_path / "straight"), strict=True):
        assert load_run(path).provenance["resumed"][0]["after_rounds"] == 2
        assert_same(path, straight)


@pytest.fixture
def fragile(registries):
    """A model, and an algorithm under which it breaks in its third round if its seed is odd."""

    @MODELS.register("fragile")
    def fragile(shape, num_classes):
        net = nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))
        if torch.initial_seed() % 2:
            nn.init.constant_(net[1].bias, 9.0)
        return net

    @ALGORITHMS.register("breaking")
    @dataclass(frozen=True)
    class Breaking(Algorithm):
        def upload(self, delta, ctx):
            breaks = (ctx.round >= 2) & (ctx.anchor["1.bias"].mean() > 5)
            factor = torch.where(breaks, torch.inf, 1.0)
            return super().upload({name: factor * x for name, x in delta.items()}, ctx)


def test_one_that_diverges_is_left_behind_or_does_so_again(fragile, tmp_path, monkeypatch):
    """Broken off before a checkpoint without it, and after one: who shares a batch matters."""
    seeds, seen, real = (0, 1, 2, 3, 4), [], simulate_together

    def watched(setups, places, **keywords):
        seen.append([setup.schedule.seed for setup in setups])
        return real(setups, places, **keywords)

    configs = together(seeds, model="fragile", algorithm="breaking")
    summaries = run_together(configs, folders(tmp_path / "straight", seeds))
    lasting = [s for s in seeds if summaries[s]["status"] == "finished"]
    broken = [s for s in seeds if summaries[s]["status"] == "failed"]
    assert lasting and {summaries[s]["round"] for s in broken} == {2}
    monkeypatch.setattr("gcfed.runs.train.simulate_together", watched)
    for stop, going_on in ((3, list(seeds)), (5, lasting)):
        paths = folders(tmp_path / str(stop), seeds)
        with pytest.raises(StopError):
            run_together(configs, paths, until(stop))
        assert load_run(paths[broken[0]]).summary["status"] == "failed"
        resume(paths[lasting[0]])
        assert seen.pop() == going_on
        for seed in lasting:
            assert_same(paths[seed], tmp_path / "straight" / f"seed-{seed}")
        for seed in broken:
            assert load_run(paths[seed]).summary == summaries[seed]
            assert len(lines(paths[seed])) == 2
    assert resume(paths[broken[0]])["status"] == "failed"  # as it would again


def test_a_full_disk_loses_nothing(tmp_path):
    """A limit on the size of files, which a system has even where a disk has none."""
    config = small(algorithm="scaffold", rounds=30)
    run(config, tmp_path / "straight")

    def limited():
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
        run(config, tmp_path / "a")

    def failing():
        try:
            limited()
        except InputError as error:
            (tmp_path / "said").write_text(str(error))
            raise

    assert ended(forked(failing)) == 1
    said = (tmp_path / "said").read_text()
    assert f"go on with gcfed resume {tmp_path / 'a'}" in said
    assert "File too large" in said
    assert load_run(tmp_path / "a").summary["status"] == "stopped"
    resume(tmp_path / "a")
    assert_same(tmp_path / "a", tmp_path / "straight")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_really_full_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=120k", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("this system mounts nothing")
    config = small(algorithm="scaffold", rounds=6)
    try:
        run(config, tmp_path / "straight")
        broken_off(config, disk / "a", 3)
        with pytest.raises(OSError), (disk / "hog").open("wb") as hog:
            hog.write(bytes(200_000))
        with pytest.raises(InputError, match="No space left on device"):
            resume(disk / "a")
        (disk / "hog").unlink()
        resume(disk / "a")
        assert_same(disk / "a", tmp_path / "straight")
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize("what", ["fsync", "replace"])
def test_a_disk_that_fails_at_a_checkpoint(what, tmp_path, monkeypatch):
    config = small(algorithm="fedadam")
    run(config, tmp_path / "straight")
    real = getattr(os, what)

    def full(*arguments, **keywords):
        if len(lines(tmp_path / "a")) >= 4:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*arguments, **keywords)

    def observe(found):
        monkeypatch.setattr(os, what, full)

    with pytest.raises(InputError, match="No space left on device; what was saved is whole"):
        run(config, tmp_path / "a", observe)
    monkeypatch.undo()
    assert (tmp_path / "a" / "checkpoints" / "00000002.json").exists()
    resume(tmp_path / "a")
    assert_same(tmp_path / "a", tmp_path / "straight")


def test_two_processes_cannot_write_one_run(tmp_path):
    said = []

    def observe(found):
        if found[0]["round"] == 0:
            with pytest.raises(InputError) as error:
                resume(tmp_path / "a")
            said.append(str(error.value))
            child = forked(other)
            assert ended(child) == 0
            said.append((tmp_path / "said").read_text())

    def other():
        from gcfed import lock

        lock._held.clear()  # as in a process that did not come out of this one
        try:
            resume(tmp_path / "a")
        except InputError as error:
            (tmp_path / "said").write_text(str(error))

    run(small(rounds=2), tmp_path / "a", observe)
    here, there = said
    assert here.endswith("a is being written by this very process")
    assert f"a is being written by process {os.getpid()} on " in there
    assert "wait until it ends, or end it" in there
    assert load_run(tmp_path / "a").summary["status"] == "finished"


@pytest.mark.parametrize("content", [None, "", '{"status": "fin', "{}"])
@pytest.mark.parametrize("rounds", [3, 8])
def test_a_summary_that_is_lost_or_damaged_is_made_again(gcfed, tmp_path, content, rounds):
    run(small(), tmp_path / "straight")
    if rounds == 8:
        run(small(), tmp_path / "a")
    else:
        broken_off(small(), tmp_path / "a", rounds)
    (tmp_path / "a" / "summary.json").unlink()
    if content is not None:
        (tmp_path / "a" / "summary.json").write_text(content)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert "a is left out" in gcfed("show", ".").err
        assert "gcfed resume a makes it again" in gcfed("show", "a").err
        again = gcfed("resume", "a")
    assert again.code == 0 and "the last checkpoint makes it again" in again.err
    assert_same(tmp_path / "a", tmp_path / "straight")


def test_lost_summaries_of_runs_in_a_folder_are_made_again(gcfed, tmp_path):
    for name in "ab":
        run(small(seed=ord(name)), tmp_path / "runs" / name)
    kept = (tmp_path / "runs" / "a" / "summary.json").read_bytes()
    (tmp_path / "runs" / "a" / "summary.json").unlink()
    (tmp_path / "runs" / "b" / "summary.json").write_text("")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        again = gcfed("resume", "runs")
    assert again.code == 0 and "left out" not in again.err
    assert (tmp_path / "runs" / "a" / "summary.json").read_bytes() == kept
    assert [verify(tmp_path / "runs" / name).holds for name in "ab"] == [True, True]


def test_a_run_without_provenance_is_done_again(gcfed, tmp_path):
    run(small(rounds=2), tmp_path / "a b")
    (tmp_path / "a b" / "provenance.json").unlink()
    found = gcfed("resume", "a b", "--rounds", "3")
    how = "gcfed run 'a b/config.toml' --out FOLDER does it again"
    assert found.code == 2 and how in found.err
    (tmp_path / "a b" / "summary.json").unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        found = gcfed("resume", "a b")
    assert found.code == 2 and how in found.err and "makes it again" not in found.err
    assert gcfed("run", "a b/config.toml", "--out", "c").code == 0
    rounds = [(tmp_path / name / "rounds.jsonl").read_bytes() for name in ("a b", "c")]
    assert rounds[0] == rounds[1]


def test_settings_that_were_changed_are_named_with_both_values(tmp_path):
    broken_off(small(), tmp_path / "a", 3)
    text = (tmp_path / "a" / "config.toml").read_text()
    changed = text.replace("lr = 0.01", "lr = 0.5").replace("momentum = 0.9", "momentum = 0.0")
    (tmp_path / "a" / "config.toml").write_text(changed)
    both = r"a began with other lr \(0.01 then, 0.5 now\) and momentum \(0.9 then, 0.0 now\) than"
    with pytest.raises(InputError, match=both):
        resume(tmp_path / "a")


def test_what_a_run_is_made_of_must_not_have_changed(tmp_path):
    plugin = tmp_path / "mine.py"
    plugin.write_text("FACTOR = 1\n")
    config = small(plugins=(str(plugin),))
    broken_off(config, tmp_path / "a", 3)
    plugin.write_text("FACTOR = 2\n")
    with pytest.raises(InputError, match="began with other code of its plugins than there is now"):
        resume(tmp_path / "a")
    plugin.write_text("FACTOR = 1\n")
    made = json.loads((tmp_path / "a" / "provenance.json").read_text())
    changed = {**made, "torch": "1.0"}
    (tmp_path / "a" / "provenance.json").write_text(json.dumps(changed))
    with pytest.warns(UserWarning, match=r"began with torch 1\.0, and this is .*last bits may"):
        resume(tmp_path / "a")
    with pytest.raises(InputError, match=r"is not a run: it holds no config\.toml"):
        resume(tmp_path / "none")


@pytest.mark.parametrize(
    ("then", "faster", "said"),
    [
        ({"products": "by oneDNN"}, False, "began with products by oneDNN, and this is by torch"),
        ({}, True, "began with products by torch, and this is by oneDNN"),
    ],
)
def test_who_multiplied_is_compared(then, faster, said, tmp_path, monkeypatch):
    """A run that does not say was made when torch itself always did."""
    config = small(engine="workers(processes=1)")
    broken_off(config, tmp_path / "a", 3)
    made = json.loads((tmp_path / "a" / "provenance.json").read_text())
    del made["products"]
    (tmp_path / "a" / "provenance.json").write_text(json.dumps({**made, **then}))
    monkeypatch.setattr("gcfed.engines.workers.is_faster", lambda: faster)
    with pytest.warns(UserWarning, match=f"{said}: last bits may differ"):
        resume(tmp_path / "a")


def test_the_processor_is_compared(tmp_path, monkeypatch):
    began = tmp_path / "a"
    broken_off(small(), began, 3)
    assert load_run(began).provenance["processor"] == processor()
    monkeypatch.setattr("gcfed.runs.provenance.processor", lambda: "another (AVX2)")
    said = f"{began} began with processor {processor()}, and this is another (AVX2): last bits"
    with pytest.warns(UserWarning, match=re.escape(said)):
        resume(began)


@pytest.mark.filterwarnings("error")
def test_a_run_that_does_not_say_its_processor_goes_on(tmp_path):
    broken_off(small(), tmp_path / "a", 3)
    made = json.loads((tmp_path / "a" / "provenance.json").read_text())
    del made["processor"]
    (tmp_path / "a" / "provenance.json").write_text(json.dumps(made))
    resume(tmp_path / "a")


@pytest.mark.filterwarnings("error")
def test_who_multiplies_matters_only_where_the_engine_asks(tmp_path, monkeypatch):
    monkeypatch.setattr("gcfed.engines.workers.is_faster", lambda: True)
    broken_off(small(), tmp_path / "a", 3)
    made = json.loads((tmp_path / "a" / "provenance.json").read_text())
    assert made.pop("products") == "by torch"
    (tmp_path / "a" / "provenance.json").write_text(json.dumps(made))
    resume(tmp_path / "a")


def test_the_recorded_engine_threads_and_device_are_used(tmp_path):
    broken_off(small(engine="vectorized"), tmp_path / "a", 3)
    made = json.loads((tmp_path / "a" / "provenance.json").read_text())
    (tmp_path / "a" / "provenance.json").write_text(json.dumps({**made, "threads": 2}))
    seen = []
    resume(tmp_path / "a", observe=lambda found: seen.append(torch.get_num_threads()))
    assert set(seen) == {2}
    assert torch.get_num_threads() == 1
    assert load_run(tmp_path / "a").config.engine == "vectorized"


def test_fewer_clients_at_once_stay_fewer(tmp_path, monkeypatch):
    """Memory was short from the third round on; where a run is resumed there is enough."""

    class Short(Sequential):
        def __call__(self, jobs):
            if int(jobs[0].cohort.round[0]) >= 2 and len(jobs[0].cohort.key) > 2:
                raise torch.OutOfMemoryError
            return super().__call__(jobs)

    config = small(clients=8, cohort=4, lr=0.3, rounds=6)
    with monkeypatch.context() as patched, pytest.warns(UserWarning, match="memory is short"):
        patched.setitem(ENGINES._entries, "sequential", Short)
        run(config, tmp_path / "straight")
        broken_off(config, tmp_path / "a", 5)
    run(config, tmp_path / "enough")
    assert lines(tmp_path / "enough") != lines(tmp_path / "straight")  # in last bits
    resume(tmp_path / "a")
    assert_same(tmp_path / "a", tmp_path / "straight")
    assert [t["chunk"] for t in load_run(tmp_path / "a").timings] == [None, None, 2, 2, 2, 2]
    assert verify(tmp_path / "a").holds


@pytest.mark.parametrize("what", ["finish", "timings", "a middle line"])
def test_other_mishaps(what, tmp_path, monkeypatch):
    config = small(algorithm="fedavgm")
    run(config, tmp_path / "straight")
    if what == "finish":  # the disk fills up when all rounds are done
        monkeypatch.setattr("gcfed.runs.writer.save_module", full)
        with pytest.raises(InputError, match="No space left on device"):
            run(config, tmp_path / "a")
        monkeypatch.undo()
        assert load_run(tmp_path / "a").summary["status"] == "stopped"
        resume(tmp_path / "a")
    else:
        broken_off(config, tmp_path / "a", 5)
        name = "timings.jsonl" if what == "timings" else "rounds.jsonl"
        damaged = bytearray((tmp_path / "a" / name).read_bytes())
        damaged[0] = 0
        (tmp_path / "a" / name).write_bytes(damaged)
        if what == "timings":
            resume(tmp_path / "a")
            assert lines(tmp_path / "a") == lines(tmp_path / "straight")
            return
        with pytest.warns(UserWarning, match=r"damaged|starts again from its first round"):
            resume(tmp_path / "a")
    assert_same(tmp_path / "a", tmp_path / "straight")


def full(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.slow
def test_a_real_process_with_workers_killed_and_resumed(gcfed, tmp_path):
    """Its forked workers hold no lock, and a new process goes on at once."""
    settings = flags(**{**SMALL, "algorithm": "scaffold", "engine": "workers", "rounds": 12})
    assert gcfed("run", *settings, "--out", "straight").code == 0
    code = "from gcfed.cli import main; main()"
    command = [sys.executable, "-c", code, "run", *settings, "--out", "a"]
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        rounds = tmp_path / "a" / "rounds.jsonl"
        for _ in range(60_000):
            if rounds.exists() and rounds.read_bytes().count(b"\n") >= 3:
                break
            time.sleep(0.001)
        process.kill()
    answer = gcfed("resume", "a")
    assert answer.code == 0, answer.err
    assert "finished" in answer.out
    assert_same(tmp_path / "a", tmp_path / "straight")


def test_resume_on_the_command_line(gcfed, tmp_path):
    begun, settings = flags(**{**SMALL, "rounds": 3}), flags(**SMALL)
    assert gcfed("run", *begun, "--seeds", "0,1", "--out", "a").code == 0
    assert gcfed("run", *settings, "--seeds", "0,1", "--out", "straight").code == 0
    told = gcfed("resume", "a", "--rounds", "4").err
    assert "\nengine: sequential on cpu (as the run began)\n" in told
    answer = gcfed("resume", "a", "--rounds", "8", "--json")
    assert answer.code == 0
    assert [summary["rounds"] for summary in json.loads(answer.out)] == [8, 8]
    for seed in ("seed-0", "seed-1"):
        assert_same(tmp_path / "a" / seed, tmp_path / "straight" / seed)
    assert (tmp_path / "a/summary.json").read_text() == (
        tmp_path / "straight/summary.json"
    ).read_text()
    both = json.loads(gcfed("resume", "a/seed-0", "straight", "a", "--json").out)
    assert [summary["seed"] for summary in both] == [0, 1, 0, 1]  # a set of runs once
    again = gcfed("resume", "a/seed-0")
    assert again.code == 0 and "a/seed-0 has no round left to do: --rounds" in again.err
    wrong = gcfed("resume", "none")
    assert wrong.code == 2
    assert "none is neither a run nor a folder of runs" in wrong.err
    assert "has 8 rounds already" in gcfed("resume", "a", "--rounds", "2").err
    for command in ("resume", "verify"):
        assert "rounds is a positive count; not 0" in gcfed(command, "a", "--rounds", "0").err
