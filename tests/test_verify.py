"""Recorded runs, done again."""

import json

import pytest
import torch
from running import far, flags, lines, tiny

from gcfed import MODELS, InputError, load_run, run, verify
from gcfed.runs.train import run_together

pytest_plugins = ["running"]
pytestmark = pytest.mark.usefixtures("float32", "registries")


def tamper(path, number, **changes):
    """Write something else into a round's line."""
    found = lines(path)
    found[number] |= changes
    (path / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in found))


@pytest.mark.parametrize("algorithm", ["scaffold + gcfed", "fedvarp", "fedadam"])
def test_a_run_is_done_again_to_the_same_bits(algorithm, tmp_path):
    run(tiny(algorithm=algorithm, rounds=4), tmp_path / "a")
    told = []
    found = verify(tmp_path / "a", observe=told.append)
    assert (found.holds, found.rounds, found.differs) == (True, 4, None)
    assert told == [1, 2, 3, 4]
    assert verify(str(tmp_path / "a"), rounds=2).rounds == 2
    assert verify(tmp_path / "a", rounds=9).rounds == 4
    assert not list((tmp_path / "a").glob(".*.part"))


def test_the_first_round_that_differs_is_named(tmp_path):
    run(tiny(rounds=4), tmp_path / "a")
    tamper(tmp_path / "a", 2, weights_sha256="0" * 64)
    tamper(tmp_path / "a", 3, weights_sha256="0" * 64)
    found = verify(tmp_path / "a")
    assert (found.holds, found.differs) == (False, 2)
    assert found.reasons == (
        "rounds.jsonl was changed after the run ended",
        "round 3 comes out otherwise than it was recorded: weights_sha256",
    )
    found = verify(tmp_path / "a", rounds=2)
    assert (found.holds, found.rounds, found.differs) == (False, 2, None)


def test_other_code_gives_other_weights(tmp_path, monkeypatch):
    """What verify is for: the same config, and an engine that has changed since."""
    run(tiny(rounds=2), tmp_path / "a")
    real = torch.Tensor.add

    def worse(algorithm, delta, ctx):
        return {name: real(x, 1e-7) for name, x in delta.items()}, ctx.state

    monkeypatch.setattr("gcfed.Algorithm.update", worse)
    assert verify(tmp_path / "a").differs == 0


def test_runs_trained_together_are_done_again_together(tmp_path, monkeypatch):
    paths = [tmp_path / f"seed-{s}" for s in (0, 1)]
    run_together([tiny(seed=s, engine="vectorized") for s in (0, 1)], paths)
    tamper(paths[1], 1, weights_sha256="0" * 64)
    seen = []
    from gcfed.runs import verify as verifying

    real = verifying.simulate_together

    def watched(setups, *places, **keywords):
        seen.append([(s.schedule.seed, s.chosen.name) for s in setups])
        return real(setups, *places, **keywords)

    monkeypatch.setattr(verifying, "simulate_together", watched)
    assert verify(paths[0]).holds
    assert verify(paths[1]).differs == 1
    assert seen == [[(0, "vectorized"), (1, "vectorized")]] * 2


def test_a_run_that_diverged_diverges_again(tmp_path):
    MODELS.register("far")(far)
    run(tiny(model="far"), tmp_path / "a")
    assert load_run(tmp_path / "a").summary["diverged"]
    assert verify(tmp_path / "a").holds
    run(tiny(), tmp_path / "b")
    summary = json.loads((tmp_path / "b" / "summary.json").read_text())
    failed = {**summary, "status": "failed", "diverged": True, "round": 1}
    (tmp_path / "b" / "summary.json").write_text(json.dumps(failed))
    (tmp_path / "b" / "rounds.jsonl").write_text(json.dumps(lines(tmp_path / "b")[0]) + "\n")
    assert verify(tmp_path / "b").differs == 1


def test_what_cannot_be_verified(tmp_path):
    run(tiny(), tmp_path / "a")
    made = json.loads((tmp_path / "a" / "provenance.json").read_text())
    made["identity"]["data_sha256"] = "0"
    (tmp_path / "a" / "provenance.json").write_text(json.dumps(made))
    with pytest.raises(InputError, match="a began with other data than there is now"):
        verify(tmp_path / "a")
    run(tiny(), tmp_path / "b")
    (tmp_path / "b" / "rounds.jsonl").write_text("")
    found = verify(tmp_path / "b")
    assert (found.holds, found.rounds) == (False, 0)
    assert "rounds.jsonl has 0 lines, and summary.json says 2" in found.reasons
    (tmp_path / "b" / "summary.json").write_text('{"status": "running"}')
    with pytest.raises(InputError, match="b has no round yet that could be compared"):
        verify(tmp_path / "b")


def test_verify_on_the_command_line(gcfed, tmp_path):
    gcfed("run", *flags(rounds=3), "--seeds", "0,1", "--out", "runs/a")
    gcfed("run", *flags(rounds=3), "--out", "runs/b")
    answer = gcfed("verify", "runs/b")
    assert answer.code == 0
    assert answer.out == "runs/b: 3 rounds again, every one to the same bits\n"
    assert "2 rounds again" in gcfed("verify", "runs/b", "--rounds", "2").out
    tamper(tmp_path / "runs" / "a" / "seed-1", 1, weights_sha256="0" * 64)
    answer = gcfed("verify", "runs")
    assert answer.code == 1
    verdicts = answer.out.splitlines()
    assert len(verdicts) == 3
    assert "runs/a/seed-0: 3 rounds again, every one to the same bits" in verdicts
    changed = "rounds.jsonl was changed after the run ended"
    otherwise = "round 2 comes out otherwise than it was recorded: weights_sha256"
    assert f"runs/a/seed-1: {changed}; {otherwise}" in verdicts
    made = json.loads((tmp_path / "runs" / "b" / "provenance.json").read_text())
    made["identity"]["data_sha256"] = "0"
    (tmp_path / "runs" / "b" / "provenance.json").write_text(json.dumps(made))
    (tmp_path / "runs" / "c").mkdir()
    (tmp_path / "runs" / "a" / "seed-1").rename(tmp_path / "runs" / "z")
    gcfed("run", *flags(rounds=1), "--out", "runs/d")
    answer = gcfed("verify", "runs")
    assert answer.code == 1
    alone, other, last, moved = answer.out.splitlines()
    assert alone.startswith("runs/a/seed-0: cannot be verified: runs/a/seed-0 was trained togeth")
    assert other.startswith("runs/b: provenance.json was changed after it was written; cannot be ")
    assert "runs/b began with other data than there is now" in other
    assert last == "runs/d: 1 rounds again, every one to the same bits"
    assert moved.startswith("runs/z: ") and "cannot be verified: runs/z was tr" in moved
    answer = gcfed("verify", "runs/b", "runs/d", "runs/b", "runs/d/../d")
    assert answer.code == 1 and len(answer.out.splitlines()) == 2
    summary = tmp_path / "runs" / "b" / "summary.json"
    summary.write_text("{")
    answer = gcfed("verify", "runs/b", "runs/d")
    assert answer.code == 1
    damaged, last = sorted(answer.out.splitlines())
    assert damaged.startswith("runs/b: cannot be verified: runs/b/summary.json cannot be read: ")
    assert last == "runs/d: 1 rounds again, every one to the same bits"
    wrong = gcfed("verify", "runs/d", "none")
    assert wrong.out == ""
    assert wrong.code == 2
    (tmp_path / "runs" / "sweeps" / "grid").mkdir(parents=True)
    (tmp_path / "runs" / "sweeps" / "grid" / "sweep.json").touch()
    for command in ("verify", "resume", "compare", "show"):
        wrong = gcfed(command, "runs/sweeps")
        assert "it holds the records of sweeps, whose runs lie beside it, in runs\n" in wrong.err
    wrong = gcfed("verify", "none")
    assert wrong.code == 2
    assert "none is neither a run nor a folder of runs" in wrong.err
