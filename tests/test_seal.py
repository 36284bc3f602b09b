"""Runs whose files were changed after they ended: every change is told."""

import hashlib
import itertools
import json
import shutil
import warnings
from pathlib import Path

import pytest
import torch
from killing import KILLED, killed_at_write
from made_runs import as_done_here
from running import lines, tiny
from safetensors.torch import load_file, save_file

import gcfed
from gcfed import InputError, compare, frame, load_run, resume, run, summaries, verify
from gcfed.results.finding import find_runs
from gcfed.results.run import open_run
from gcfed.results.seal import SEAL, broken_seals, is_sealed, make_seal

pytest_plugins = ["running"]
pytestmark = pytest.mark.usefixtures("float32")

OLD = Path(__file__).parent / "old_runs"
FILES = ("config.toml", "rounds.jsonl", "probes.jsonl", "model.safetensors")
SETTINGS = {"rounds": 4, "probes": ["drift"], "validation": 0.2, "evaluate_every": 2}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that ended, to be copied."""
    torch.set_default_dtype(torch.float32)
    path = tmp_path_factory.mktemp("whole") / "run"
    run(tiny(**SETTINGS), path)
    torch.set_default_dtype(torch.float64)
    return path


@pytest.fixture
def path(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "run")


def summary_of(path):
    return json.loads((path / "summary.json").read_text())


def write_lines(file, found):
    file.write_text("".join(json.dumps(line) + "\n" for line in found))


def seal_again(path):
    """What one who knows of the seal does after a change, so that only the rounds can tell."""
    summary = {key: value for key, value in summary_of(path).items() if key != SEAL}
    summary[SEAL] = make_seal(path, summary, {})
    (path / "summary.json").write_text(json.dumps(summary))


def change_summary(path, **changes):
    (path / "summary.json").write_text(json.dumps(summary_of(path) | changes))


def zero_bytes(file):
    data = file.read_bytes()
    file.write_bytes(data[:-64] + bytes(64))


def other(value):
    """A value of the same kind that is another."""
    match value:
        case None:
            return 0.5
        case str():
            return value[::-1] + "x"
        case list():
            return [*value, 7]
        case _:
            return value + 1


def test_a_run_that_ended_is_sealed(path):
    seal = summary_of(path)[SEAL]
    assert {*FILES} <= seal.keys()
    for name in seal.keys() - {"summary.json"}:
        assert seal[name] == hashlib.sha256((path / name).read_bytes()).hexdigest(), name
    assert any(name.startswith("checkpoints/best-") for name in seal)
    assert is_sealed(open_run(path)) and broken_seals(open_run(path)) == []
    assert verify(path) == gcfed.Verification(path, 4, None, (), True)
    assert verify(path, quick=True) == gcfed.Verification(path, 0, None, (), True)


FIELDS = (
    *("round", "test_accuracy", "test_loss", "validation_loss", "validation_accuracy", "tested"),
    *("train_loss", "clients", "dropped", "absent", "late", "corrupted", "update_norm"),
    *("bytes_up", "bytes_down", "weights_sha256"),
)


def test_the_fields_that_are_changed_are_all_there_are(path):
    assert set(FIELDS) == set(lines(path)[1])


@pytest.mark.parametrize("number", [0, 1])  # without an evaluation, and with one
@pytest.mark.parametrize("field", FIELDS)
def test_every_field_of_a_line_is_compared(path, field, number):
    found = lines(path)
    found[number][field] = "cohort" if field == "tested" else other(found[number][field])
    write_lines(path / "rounds.jsonl", found)
    assert broken_seals(open_run(path)) == ["rounds.jsonl was changed after the run ended"]
    seal_again(path)
    assert verify(path, quick=True).holds  # its seal is of the changed file
    again = verify(path)
    assert (again.holds, again.differs) == (False, number)
    (reason,) = again.reasons
    assert reason.startswith(f"round {number + 1} comes out otherwise than it was recorded: ")
    assert field in reason


def test_an_evaluation_that_is_hidden_is_told(path):
    found = lines(path)
    hidden = {key: None for key in found[1] if key.startswith(("test", "validation"))}
    found[1] |= hidden
    write_lines(path / "rounds.jsonl", found)
    seal_again(path)
    assert verify(path).differs == 1


def test_the_last_evaluation_cannot_be_hidden(tmp_path):
    run(tiny(**SETTINGS | {"rounds": 3}), tmp_path / "a")
    found = lines(tmp_path / "a")
    assert [line["tested"] for line in found] == [None, "global", "global"]
    found[2] |= {key: None for key in found[2] if key.startswith(("test", "validation"))}
    write_lines(tmp_path / "a" / "rounds.jsonl", found)
    seal_again(tmp_path / "a")
    assert verify(tmp_path / "a").differs == 2


LINES = {
    "cut": lambda found: found[:-1],
    "added": lambda found: [*found, found[-1] | {"round": 4}],
    "swapped": lambda found: [found[1], found[0], *found[2:]],
    "removed": lambda found: [found[0], *found[2:]],
    "a field more": lambda found: [*found[:-1], found[-1] | {"test_f1": 0.99}],
    "none": lambda found: [],
}


@pytest.mark.parametrize("name", ["rounds.jsonl", "probes.jsonl"])
@pytest.mark.parametrize("change", LINES.values(), ids=LINES)
def test_every_line_is_compared(path, name, change):
    found = [json.loads(line) for line in (path / name).read_text().splitlines()]
    write_lines(path / name, change(found))
    assert f"{name} was changed after the run ended" in verify(path).reasons
    seal_again(path)
    assert not verify(path).holds


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_missing_cut_or_changed_is_told(path, name):
    data = (path / name).read_bytes()
    changed = f"{name} was changed after the run ended"
    (path / name).write_bytes(data + b"\n")
    assert changed in broken_seals(open_run(path))
    (path / name).write_bytes(data[: len(data) // 2])
    assert changed in broken_seals(open_run(path))
    (path / name).write_bytes(data)
    assert broken_seals(open_run(path)) == []
    (path / name).rename(path / "elsewhere")
    assert any(f"{name} is missing" in reason for reason in broken_seals(gcfed.Run(path)))


@pytest.mark.parametrize("sealed", [True, False])
def test_weights_that_were_changed_are_told(path, tmp_path, sealed):
    run(tiny(**SETTINGS, seed=1), tmp_path / "other")
    file = path / "model.safetensors"
    right, others = file.read_bytes(), (tmp_path / "other" / file.name).read_bytes()
    zero_bytes(file)
    for content in (file.read_bytes(), others, right[:-9], None):
        file.unlink()
        if content is not None:
            file.write_bytes(content)
        if not sealed:
            summary = {key: value for key, value in summary_of(path).items() if key != SEAL}
            (path / "summary.json").write_text(json.dumps(summary))
        again = verify(path)
        assert not again.holds and again.differs is None
        assert any("model.safetensors" in reason for reason in again.reasons)
        file.write_bytes(right)
    assert verify(path).holds and verify(path).sealed == sealed


def test_what_a_file_of_weights_says_of_its_model_is_compared(path):
    file = path / "model.safetensors"
    about = {"model": "mlp(hidden=(8,))", "shape": [8, 8], "num_classes": 10, "dtype": "float32"}
    made_up = {"mean": [9.0], "std": [1.0]}
    save_file(load_file(file), file, {"gcfed": json.dumps({**about, "transform": made_up})})
    seal_again(path)
    (reason,) = verify(path).reasons
    assert reason.startswith("model.safetensors says otherwise of its model: ")
    assert "transform" in reason


@pytest.mark.parametrize(
    "change",
    [
        {"status": "failed", "reason": "made up", "round": 4},
        {"status": "failed", "reason": "made up", "round": 4, "diverged": True},
        {"test_accuracy": 0.97},
        {"test_accuracy_best": 0.97},
        {"validation_accuracy": 0.97},
        {"best_round": 2},
        {"seed": 5},
        {"algorithm": "gcfed"},
        {"rounds": 5},
        {"bytes_up": 1},
        {"weights_sha256": "0" * 64},
    ],
    ids=str,
)
def test_every_field_of_the_summary_is_compared(path, change):
    change_summary(path, **change)
    assert "summary.json was changed after the run ended" in broken_seals(open_run(path))
    seal_again(path)
    assert not verify(path).holds


@pytest.mark.parametrize("seal", [3, "x", [], None, {}, {"rounds.jsonl": 7}])
def test_a_damaged_seal_is_told(path, seal):
    change_summary(path, **{SEAL: seal})
    assert not verify(path, quick=True).holds
    with pytest.raises(InputError, match="is not what its run ended with"):
        load_run_quietly(path).model  # noqa: B018


def load_run_quietly(path):
    with pytest.warns(UserWarning, match=f"{path.name}: "):
        return load_run(path)


def test_a_run_without_its_seal_is_not_sealed(path):
    summary = {key: value for key, value in summary_of(path).items() if key != SEAL}
    (path / "summary.json").write_text(json.dumps(summary))
    again = verify(path)
    assert (again.holds, again.sealed) == (True, False)
    write_lines(path / "rounds.jsonl", lines(path)[:-1])
    assert verify(path, quick=True).reasons == (
        "rounds.jsonl has 3 lines, and summary.json says 4",
    )
    assert not verify(path).holds


def test_weights_that_were_changed_are_not_used(path):
    x = torch.zeros(2, 1, 8, 8)
    load_run(path).predict(x)
    zero_bytes(path / "model.safetensors")
    changed = load_run_quietly(path)
    with pytest.raises(InputError, match=r"model\.safetensors is not what .* gcfed verify"):
        changed.predict(x)


def test_the_best_model_is_sealed_too(path):
    best = next((path / "checkpoints").glob("best-*"))
    load_run(path).best_model  # noqa: B018
    zero_bytes(best)
    with pytest.raises(InputError, match="is not what its run ended with"):
        load_run_quietly(path).best_model  # noqa: B018
    shutil.rmtree(path / "checkpoints")  # takes up space that some need
    assert verify(path).holds


def test_the_best_model_is_done_again(path):
    best = next((path / "checkpoints").glob("best-*"))
    right = best.read_bytes()
    zero_bytes(best)
    seal_again(path)
    assert verify(path, quick=True).holds
    assert verify(path).reasons == (
        f"the weights in {best.name} are not those that the run came to",
    )
    best.write_bytes(right)
    seal_again(path)
    assert verify(path).holds


def test_the_best_model_is_that_of_the_best_round(path):
    (manifest,) = (path / "checkpoints").glob("*4.json")
    found = json.loads(manifest.read_text())
    scores = [line["validation_accuracy"] or 0.0 for line in lines(path)]
    assert found["best"]["round"] == max(range(4), key=scores.__getitem__)
    found["best"]["round"] = 4 - found["best"]["round"]
    manifest.write_text(json.dumps(found))
    (reason,) = verify(path).reasons
    assert reason.endswith(" is not the model of the best round")
    manifest.write_text("{}")
    with pytest.raises(InputError, match=r"00000004\.json is damaged"):
        verify(path)


@pytest.mark.parametrize("field", ["commit", "engine_reason", "resumed", SEAL])
def test_where_a_run_came_from_is_sealed(path, field):
    file = path / "provenance.json"
    made = json.loads(file.read_text())
    file.write_text(json.dumps(made | {field: "made up"}))
    reason = "provenance.json was changed after it was written"
    assert broken_seals(open_run(path)) == [reason] and verify(path).reasons == (reason,)
    file.write_text("{")
    assert any("provenance.json cannot be read" in r for r in broken_seals(open_run(path)))
    file.unlink()
    assert broken_seals(open_run(path)) == ["provenance.json is missing"]


def test_an_older_seal_does_not_hold_where_a_run_came_from(gcfed, path):
    made = json.loads((path / "provenance.json").read_text())
    del made[SEAL]
    (path / "provenance.json").write_text(json.dumps(made))
    found = verify(path)
    assert (found.holds, found.sealed, found.unsealed) == (True, True, ("provenance.json",))
    said = "the files are those that the run ended with; provenance.json is not sealed"
    assert gcfed("verify", path, "--quick").out == f"{path}: {said}\n"
    assert "holds; provenance.json is not sealed" in gcfed("show", path).out


def test_numbers_that_were_changed_are_shown_with_a_warning(gcfed, path):
    found = lines(path)
    write_lines(path / "rounds.jsonl", [line | {"test_accuracy": 0.97} for line in found])
    change_summary(path, test_accuracy=0.97)
    words = "rounds.jsonl was changed after the run ended; summary.json was changed after"
    for reading in (load_run, compare, frame, summaries):
        with pytest.warns(UserWarning, match=words):
            reading(path)
    assert words in gcfed("show", path).out
    for command, where in (("show", path.parent), ("compare", path)):
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            assert f"{path.name}: {words}" in gcfed(command, where).err


def test_a_run_that_holds_is_shown_without_a_warning(gcfed, path):
    assert "holds" in gcfed("show", path).out
    assert SEAL not in summaries(path).columns
    assert load_run(path).until(2).summary["rounds"] == 2
    assert len(compare([load_run(path).until(2)]).results) == 1
    assert broken_seals(load_run(path).until(2)) == []


def test_a_run_that_goes_on_is_sealed_again(path, tmp_path):
    before = summary_of(path)[SEAL]
    held = load_run(path)
    held.summary  # noqa: B018 - read before it goes on
    resume(path, rounds=6)
    assert summary_of(path)[SEAL]["rounds.jsonl"] != before["rounds.jsonl"]
    assert broken_seals(held) == []
    assert verify(path).holds and verify(path).rounds == 6


class StopError(Exception):
    pass


def test_what_a_run_leaves_that_broke_off_is_not_falsified(path):
    def stop(found):
        raise StopError

    with pytest.raises(StopError):
        resume(path, rounds=6, observe=stop)
    with (path / "rounds.jsonl").open("a") as file:
        file.write('{"round": 5, "test_acc')  # torn
    assert summary_of(path)["status"] == "failed"
    assert len(lines_that_are_whole(path)) == 5  # and the weights are those after 4
    for status in ("failed", "running"):
        change_summary(path, status=status)
        found = verify(path)
        assert (found.holds, found.sealed, found.rounds) == (True, False, 5)
    load_run(path).model  # noqa: B018


@pytest.mark.slow
def test_a_run_that_is_killed_while_it_goes_on_is_not_falsified(whole, tmp_path):
    """At every write: what comes first breaks the seal, and what comes last seals it again."""
    sealed = []
    for number in itertools.count(1):
        path = shutil.copytree(whole, tmp_path / str(number))
        ended = killed_at_write(lambda path=path: resume(path, rounds=5), number)
        assert broken_seals(open_run(path)) == [], number
        sealed.append(is_sealed(open_run(path)))
        if ended != KILLED:
            break
    assert sealed[0] and sealed[-1] and sealed.count(False) > 20


def lines_that_are_whole(path):
    return (path / "rounds.jsonl").read_text().split("\n")[:-1]


def test_a_run_that_was_stopped_is_sealed(tmp_path):
    def stop(found):
        if next(iter(found.values()))["round"] == 1:
            raise KeyboardInterrupt

    assert run(tiny(rounds=4), tmp_path / "a", stop)["status"] == "stopped"
    assert verify(tmp_path / "a") == gcfed.Verification(tmp_path / "a", 2, None, (), True)
    change_summary(tmp_path / "a", status="finished")
    seal_again(tmp_path / "a")
    (reason,) = verify(tmp_path / "a").reasons
    assert reason == "summary.json says status = 'finished', and its rounds come to 'stopped'"


@pytest.mark.filterwarnings("ignore:.*last bits may differ")
def test_runs_of_before_are_not_sealed_and_hold(tmp_path):
    shutil.copytree(OLD, tmp_path / "old")
    runs = find_runs(tmp_path / "old")
    assert len(runs) == 10
    for old in runs:
        assert verify(old.path, quick=True) == gcfed.Verification(old.path, 0, None, (), False)
    old = next(run for run in runs if run.config.algorithm.startswith("gcfed"))
    as_done_here(old, tmp_path / "new")
    found = verify(old.path)
    assert found.reasons == () and not found.sealed
    changed = [line | {"test_accuracy": 0.97} for line in lines(old.path)]
    write_lines(old.path / "rounds.jsonl", changed)
    assert verify(old.path).differs == 0


def test_quick_on_the_command_line(gcfed, path, tmp_path, monkeypatch):
    monkeypatch.setattr("gcfed.runs.verify.verify_together", None)  # no round is done again
    runs = tmp_path / "runs"
    for name in ("a", "b", "c", "d", "e"):
        shutil.copytree(path, runs / name)
    assert gcfed("verify", "runs", "--quick").code == 0
    zero_bytes(runs / "b" / "model.safetensors")
    (runs / "c" / "summary.json").write_text('{"status": "running"}')
    (runs / "d" / "summary.json").unlink()
    (runs / "e" / "rounds.jsonl").write_text("x\n")
    answer = gcfed("verify", "runs", "--quick")
    assert answer.code == 1
    assert answer.out.splitlines()[:4] == [
        "runs/a: the files are those that the run ended with",
        "runs/b: model.safetensors was changed after the run ended",
        "runs/c: not sealed",
        "runs/d: cannot be verified: it holds no summary.json; gcfed resume runs/d makes it again",
    ]
    assert answer.out.splitlines()[4].startswith("runs/e: cannot be verified: runs/e/rounds.jsonl")
    wrong = gcfed("verify", "runs", "--quick", "--rounds", "2")
    assert wrong.code == 2 and "leave out --rounds" in wrong.err
