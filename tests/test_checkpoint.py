"""What a checkpoint holds, what it costs, and how often there is one."""

import json
import time

import pytest
import torch
from running import far, lines, tiny

from gcfed import MODELS, InputError, load_run, run, simulate
from gcfed.config.build import build
from gcfed.core.memory import HostStore
from gcfed.runs.checkpoint import Checkpoints
from gcfed.runs.client_files import ClientFiles
from gcfed.runs.disk_memory import first_snapshot
from gcfed.runs.journal import DamagedError, Journal, Mark
from gcfed.runs.tensor_files import from_bytes, to_bytes
from gcfed.simulation.lines import weights_sha256
from gcfed.simulation.snapshot import Clients

pytest_plugins = ["running"]
pytestmark = pytest.mark.usefixtures("float32", "registries")


def test_trees_come_back_bit_by_bit():
    shared = torch.randn(3)
    value = {
        "b": {"z": torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)},
        "a/b.c": {"bf16": torch.randn(3).bfloat16(), "n": torch.tensor(3), "empty": torch.ones(0)},
        "0/nothing": {},
        "views": {"one": shared, "two": shared, "part": torch.randn(4, 4)[:, 1]},
        "odd": {"nan": torch.tensor([torch.nan, -0.0, torch.inf]), "bool": torch.tensor([True])},
        "wide": {"x": torch.randn(1, 3).expand(4, 3), "t": torch.randn(3, 2).t()},
    }
    again = from_bytes(to_bytes(value))
    assert json.dumps(again, default=str) == json.dumps(value, default=str)  # and in this order
    for name, inner in value.items():
        assert list(again[name]) == list(inner)
        assert weights_sha256(again[name]) == weights_sha256(inner)
    assert again["b"]["z"].is_contiguous(memory_format=torch.channels_last)
    assert again["wide"]["t"].stride() == value["wide"]["t"].stride()
    assert again["wide"]["x"].is_contiguous()


def test_a_journal_is_cut_and_checked(tmp_path):
    journal, marks = Journal(tmp_path / "j"), [Mark()]
    journal.cut(Mark())
    for number in range(3):
        journal.append({"n": number})
        marks.append(journal.mark())
    assert [len(journal.read(mark)) for mark in marks] == [0, 1, 2, 3]
    with (tmp_path / "j").open("a") as file:
        file.write('{"n": 4')
    again = Journal(tmp_path / "j")
    again.cut(marks[2])
    again.append({"n": 7})
    assert again.mark() != marks[3]
    assert again.num_lines == 3
    assert again.read(again.mark()) == [{"n": 0}, {"n": 1}, {"n": 7}]
    with pytest.raises(DamagedError, match="j is not what was written"):
        again.read(marks[3])
    (tmp_path / "j").unlink()
    with pytest.raises(DamagedError, match="No such file"):
        again.cut(marks[1])


def rows(*numbers, width=3):
    return {"c": {"w": torch.tensor(numbers, dtype=torch.float64)[:, None].repeat(1, width)}}


def kept(memory):
    return Clients(memory, HostStore(), HostStore())


def test_clients_files_follow_the_versions(tmp_path):
    files, store = ClientFiles(tmp_path, kept(HostStore())), HostStore()
    files.rewind(Mark(), kept(store), None)
    folder, marks = tmp_path / "clients", []
    for rounds, ids in enumerate(([1, 2], [2, 3], [3], []), start=1):
        store = store.scatter(ids, rows(*(100 * rounds + i for i in ids)))
        marks.append(files.save(kept(store), rounds))
        files.prune()
    assert marks[3] == marks[2]
    names = {path.stem for path in folder.iterdir()}
    assert names == {"memory-1-1", "memory-2-2", "memory-3-3"}
    held = {i: row["c"]["w"][0].item() for i, row in files.load(marks[2]).memory.items()}
    assert held == {1: 101, 2: 202, 3: 303}
    with pytest.raises(DamagedError):
        files.load(marks[0])  # two checkpoints ago


def test_what_a_killed_process_left_goes(tmp_path):
    empty = kept(HostStore())
    files = ClientFiles(tmp_path, empty)
    files.rewind(Mark(), empty, None)
    one = kept(HostStore().scatter([1, 2], rows(1, 2)))
    two = kept(one.memory.scatter([2], rows(22)))
    first, second = files.save(one, 1), files.save(two, 2)
    files.save(kept(two.memory.scatter([1, 3], rows(7, 8))), 3)  # its manifest was never written
    again = ClientFiles(tmp_path, empty)
    again.rewind(second, again.load(second), first)
    assert {path.stem for path in (tmp_path / "clients").iterdir()} == {
        *("memory-1-1", "memory-2-1", "memory-2-2"),
    }
    assert len((tmp_path / "clients.jsonl").read_text().splitlines()) == 2
    again.save(again.load(second), 4)
    again.prune()
    assert not (tmp_path / "clients" / "memory-2-1.safetensors").exists()


def test_what_a_checkpoint_costs_does_not_grow_with_the_clients(tmp_path):
    """Bytes written, with ten and with a thousand clients visited before."""
    written = []
    for visited in (10, 1000):
        folder = tmp_path / str(visited)
        store = HostStore().scatter(list(range(visited)), rows(*range(visited), width=50))
        files = ClientFiles(folder, kept(HostStore()))
        files.rewind(Mark(), kept(HostStore()), None)
        files.save(kept(store), 1)
        journal, before = folder / "clients.jsonl", set((folder / "clients").iterdir())
        size = journal.stat().st_size
        files.save(kept(store.scatter([3, 5], rows(1, 2, width=50))), 2)
        new = set((folder / "clients").iterdir()) - before
        assert {path.name for path in new} == {f"memory-{i}-2.safetensors" for i in (3, 5)}
        written.append(journal.stat().st_size - size + sum(p.stat().st_size for p in new))
    assert written[0] == written[1]


def test_a_run_keeps_two_checkpoints_and_what_they_need(tmp_path):
    config = tiny(algorithm="scaffold", rounds=9, checkpoint_every=2)
    run(config, tmp_path / "a")
    folder = tmp_path / "a" / "checkpoints"
    best = max(lines(tmp_path / "a"), key=lambda line: line["test_accuracy"])["round"]
    files = {path.name for path in folder.iterdir()}
    assert {f for f in files if not f.startswith("best-")} == {
        *("00000008.json", "00000008.safetensors", "00000009.json", "00000009.safetensors"),
        *("clients", "clients.jsonl"),
    }
    manifest = json.loads((folder / "00000009.json").read_text())
    assert manifest["best"] == {"round": best, "file": f"best-{best + 1:08d}.safetensors"}
    versions = {}
    for path in (folder / "clients").iterdir():
        kind, client, rounds = path.stem.split("-")
        versions.setdefault((kind, client), []).append(int(rounds))
    assert all(len(found) <= 2 for found in versions.values())
    suffixes = {path.suffix for path in (tmp_path / "a").rglob("*") if path.is_file()}
    assert suffixes == {".json", ".jsonl", ".toml", ".safetensors", ""}  # "" is the lock


def test_a_checkpoint_holds_where_the_run_stood(tmp_path):
    config = tiny(algorithm="scaffold + fedvarp", rounds=3)
    run(config, tmp_path / "a")
    experiment = build(config)
    *_, last = simulate(experiment.setup)
    empty = first_snapshot(experiment).clients
    checkpoints = Checkpoints(tmp_path / "a" / "checkpoints", 0, empty)
    found = checkpoints.load(checkpoints.read(3), torch.device("cpu"))
    assert found.round == 2
    torch.testing.assert_close(found.server, last.server, atol=0, rtol=0)
    for now, then in zip(found.clients, last.clients, strict=True):
        torch.testing.assert_close(dict(now.items()), dict(then.items()), atol=0, rtol=0)
    assert len(dict(found.clients.memory.items())) > 3
    with pytest.raises(DamagedError, match="is of another run or round"):
        Checkpoints(tmp_path / "a" / "checkpoints", 1, found.clients).read(3)


def test_the_best_model_is_kept(tmp_path):
    summaries = {
        s: run(tiny(rounds=6, lr=0.5, validation=0.2, seed=s), tmp_path / str(s)) for s in range(5)
    }
    seed = next(s for s, summary in summaries.items() if summary["best_round"] < 5)
    loaded, best = (
        load_run(tmp_path / str(seed)),
        lines(tmp_path / str(seed))[summaries[seed]["best_round"]],
    )
    assert weights_sha256(loaded.best_model.state_dict()) == best["weights_sha256"]
    assert weights_sha256(loaded.model.state_dict()) != best["weights_sha256"]


def test_a_best_model_there_is_not(tmp_path):
    MODELS.register("far")(far)
    run(tiny(model="far"), tmp_path / "a")
    with pytest.raises(InputError, match="holds no best model"):
        load_run(tmp_path / "a").best_model  # noqa: B018


def saved_rounds(config, path):
    seen = []

    def observe(found):
        seen.append([p.stem for p in (path / "checkpoints").glob("0*.json")])

    run(config, path, observe)
    return [int(max(names, default=0)) for names in seen]


def test_every_so_many_rounds_or_minutes(tmp_path, monkeypatch):
    config = {"rounds": 6, "engine": "sequential"}
    assert saved_rounds(tiny(**config), tmp_path / "a") == [0] * 6
    assert saved_rounds(tiny(**config, checkpoint_every=2), tmp_path / "b") == [0, 0, 2, 2, 4, 4]
    clock = iter(range(0, 10_000, 20))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    minutes = tiny(**config, checkpoint_minutes=1.0)
    assert saved_rounds(minutes, tmp_path / "c") == [0, 0, 0, 3, 3, 3]


def test_memory_on_disk_changes_nothing(tmp_path):
    config = {"algorithm": "scaffold + fedvarp", "rounds": 5, "clients": 5}
    run(tiny(**config), tmp_path / "host")
    spilled = []

    def observe(found):
        spilled.append(len(list((tmp_path / "disk").glob(".spill-*/*"))))

    run(tiny(**config, memory="disk"), tmp_path / "disk", observe)
    assert lines(tmp_path / "disk") == lines(tmp_path / "host")
    assert max(spilled) <= 2 * 2 * 5  # memory and row, of this version and of the one before
    assert not list((tmp_path / "disk").glob(".spill-*"))
