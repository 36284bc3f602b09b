"""Sweeps: over devices, through failures, stopped and killed, and what is selected."""

import io
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from killing import KILLED, ended, forked
from made_runs import ACCURACY
from rich.console import Console
from running import TINY, tiny

import gcfed as package
from gcfed import InputError, RunStore, Sweep
from gcfed.cli import console
from gcfed.cli.board import Board, plain_lines
from gcfed.config import plugins
from gcfed.population.samplers import SAMPLERS
from gcfed.sweeps.child import CellJob, Child, Ended, Ready, RoundsDone, Started, serve
from gcfed.sweeps.devices import allot, find_devices, recorded_allotment, shares
from gcfed.sweeps.pool import Slot
from gcfed.sweeps.state import CellState
from gcfed.sweeps.tuning import select

pytest_plugins = ["running"]
pytestmark = pytest.mark.usefixtures("float32", "registries")

PLUGIN = """
import os, signal, time, warnings
from pathlib import Path

import torch

import gcfed
from gcfed.algorithms import register
from gcfed.population.samplers import SAMPLERS, uniform


@register("fragile")
class Fragile(gcfed.Algorithm):
    '''Fails for as long as a file is there.'''

    def init_server(self, params):
        Path("cores").mkdir(exist_ok=True)
        cores = sorted(os.sched_getaffinity(0))
        Path("cores", str(os.getpid())).write_text(f"{cores} {torch.get_num_threads()}")
        return {}

    def update(self, delta, ctx):
        if Path("broken").exists() and ctx.round == 1:
            raise ValueError("a server that is out of order")
        return delta, {}


@register("doomed")
class Doomed(gcfed.Algorithm):
    '''Ends its process for as long as a file is there.'''

    def update(self, delta, ctx):
        if Path("broken").exists() and ctx.round == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return delta, {}


@register("talkative")
class Talkative(gcfed.Algorithm):
    '''Has something to say.'''

    def update(self, delta, ctx):
        warnings.warn("mind the gap")
        return delta, {}


@SAMPLERS.register("slow")
def slow(*arguments):
    '''Uniform, and slow while a file is there.'''
    time.sleep(0.1 if Path("slow").exists() else 0)
    return uniform(*arguments)


@gcfed.DATASETS.register("contrary")
def contrary(root):
    '''What is learnt on the train examples is wrong on the test examples.'''
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(240) % 4
    x = torch.nn.functional.one_hot(y, 4).float() + 0.1 * torch.randn(240, 4, generator=generator)
    return gcfed.Dataset(
        train=gcfed.Examples(x[:200], y[:200]),
        test=gcfed.Examples(x[200:], (y[200:] + 1) % 4),
        num_classes=4,
    )
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder to work in, with a plugin; processes have one thread, as the tests have."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(plugins, "_loaded", {})
    monkeypatch.setattr(SAMPLERS, "_entries", dict(SAMPLERS._entries))
    (tmp_path / "mine.py").write_text(PLUGIN)
    return tmp_path


def toml(values, **tables):
    text = "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())
    for table, lists in tables.items():
        text += f"[{table}]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in lists.items())
    return text


def without(*keys, **changes):
    values = {**TINY, "plugins": ["mine.py"], **changes}
    return {key: value for key, value in values.items() if key not in keys}


def bits(runs):
    return {run.path.name: (run.path / "rounds.jsonl").read_bytes() for run in runs}


@pytest.mark.slow
def test_cells_that_fail_leave_the_others(gcfed, folder):
    """On two CPU devices: of five cells one raises, one is killed and one diverges."""
    algorithms = ["fedavg", "fragile", "doomed", "fedprox(mu=1e30)", "gcfed"]
    (folder / "grid.toml").write_text(
        toml(without("algorithm", seeds=[0, 1], rounds=3), grid={"algorithm": algorithms})
    )
    (folder / "broken").touch()
    answer = gcfed("sweep", "grid.toml", "--devices", "cpu,cpu")
    assert answer.code == 1
    record = json.loads((folder / "runs/sweeps/grid/sweep.json").read_text())
    cells = record["cells"]
    statuses = [cell["status"] for cell in cells]
    assert statuses == ["done", "failed", "failed", "diverged", "done"]
    said = (
        r"update of Fragile \(mine\.py, line \d+\) raises ValueError: a server that is out of order"
    )
    assert re.fullmatch(said, cells[1]["reason"])
    assert "SIGKILL; was it killed for want of memory?" in cells[2]["reason"]
    assert "not finite in round 1" in cells[3]["reason"]
    assert record["devices"] == ["cpu", "cpu"]
    for cell in (cells[0], cells[3], cells[4]):
        assert len(cell["runs"]) == 2
        assert cell["started"] <= cell["finished"]
        assert all((folder / "runs" / name / "summary.json").is_file() for name in cell["runs"])
    for number, text in ((2, "ValueError: a server"), (3, "SIGKILL"), (4, "not finite")):
        assert f"cell {number} ({algorithms[number - 1]}) " in answer.err
        assert text in answer.err
    assert "cell 5 of 5 (gcfed): done after" in answer.err
    assert answer.out.splitlines()[1].startswith("fedavg ")
    straight = RunStore("straight").run_together(
        [tiny(algorithm="gcfed", rounds=3, seed=s, plugins=("mine.py",)) for s in (0, 1)]
    )
    mine = [package.load_run(folder / "runs" / name) for name in cells[4]["runs"]]
    assert bits(mine) == bits(straight)
    assert mine[0].provenance["seeds_together"] == [0, 1]

    (folder / "cores" / str(os.getpid())).unlink()  # of this process, which looked at the cells
    (found,) = (path.read_text() for path in (folder / "cores").iterdir())
    assert record["allotment"] == allot(["cpu", "cpu"], 5)._asdict()
    each = record["allotment"]["cores"]
    assert found in {f"{part} 1" for part in shares(["cpu", "cpu"], each)}

    (folder / "broken").unlink()  # mended: those that failed are tried again, and only those
    before = bits(mine)
    again = gcfed("sweep", "grid.toml", "--json")
    assert again.code == 3
    assert again.err == ""
    record = json.loads(again.out)
    assert record == json.loads((folder / "runs/sweeps/grid/sweep.json").read_text())
    assert [cell["status"] for cell in record["cells"]] == [*["done"] * 3, "diverged", "done"]
    assert bits(mine) == before
    doomed = [package.load_run(folder / "runs" / name) for name in record["cells"][2]["runs"]]
    assert [len(run.records) for run in doomed] == [3, 3]


def test_cores_are_divided_among_cpu_devices(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 2, 4, 6, 7})
    monkeypatch.setattr("torch.get_num_threads", lambda: 4)
    assert allot(["cpu"], 9) == (5, 4)
    assert allot(["cpu", "cuda:0", "cpu"], 9) == (2, 2)  # equal: a cell may come to either
    assert allot(["cpu"] * 7, 9) == (1, 1)
    assert allot(["cpu"] * 7, 2) == (2, 2)  # of a grid of two cells, no more than two are busy
    assert shares(["cpu"], 5) == [[0, 2, 4, 6, 7]]
    assert shares(["cpu", "cuda:0", "cpu"], 2) == [[0, 2], [], [4, 6]]
    assert shares(["cpu"] * 7, 1) == [[0], [2], [4], [6], [7], [0], [2]]
    assert shares(["cpu"], 9) == [[0, 2, 4, 6, 7]]  # settled on a larger machine
    monkeypatch.setattr("torch.cuda.device_count", lambda: 3)
    assert find_devices(None, "auto") == ["cuda:0", "cuda:1", "cuda:2"]
    assert find_devices(None, "cpu") == ["cpu"]
    assert find_devices("cuda:2, cpu", "auto") == ["cuda:2", "cpu"]
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    assert find_devices(None, "auto") == ["cpu"]


@pytest.mark.slow
@pytest.mark.parametrize("devices", [["--devices", "cpu,cpu"], []], ids=["same", "other"])
def test_what_a_cell_gets_does_not_depend_on_what_is_left(gcfed, folder, devices):
    """Killed before its last cell, a sweep gives it the cores and the engine it would have had."""
    values = without("algorithm", "engine", rounds=2, seeds=[0])
    (folder / "grid.toml").write_text(toml(values, grid={"algorithm": ["fedavg", "gcfed"]}))
    assert gcfed("sweep", "grid.toml", "--devices", "cpu,cpu").code == 0
    record = json.loads((folder / "runs/sweeps/grid/sweep.json").read_text())
    (name,) = record["cells"][1]["runs"]
    straight = package.load_run((folder / "runs" / name).rename(folder / name))
    assert gcfed("sweep", "grid.toml", *devices).code == 0
    again = package.load_run(folder / "runs" / name)
    assert bits([again]) == bits([straight])
    for what in ("engine", "engine_reason", "threads"):
        assert again.provenance[what] == straight.provenance[what]
    found = json.loads((folder / "runs/sweeps/grid/sweep.json").read_text())
    assert found["allotment"] == record["allotment"]
    assert [cell["engine"] for cell in found["cells"]] == [straight.provenance["engine"]] * 2


def test_a_record_that_says_nothing_settles_nothing(tmp_path, monkeypatch):
    path = tmp_path / "sweep.json"
    assert recorded_allotment(path) is None
    for text in (
        "{",
        "[]",
        '{"allotment": {"cores": 1}}',
        '{"allotment": {"cores":0,"threads":1}}',
    ):
        path.write_text(text)
        assert recorded_allotment(path) is None
    path.write_text('{"allotment": {"cores": 2, "threads": 1}}')
    monkeypatch.setattr("gcfed.sweeps.devices.available_cores", lambda: 1)
    with pytest.warns(UserWarning, match="began with 2 cores for each process"):
        assert recorded_allotment(path) == (2, 1)


def test_a_device_may_have_no_number(monkeypatch, tmp_path):
    chosen = []
    monkeypatch.setattr("torch.cuda.set_device", chosen.append)
    monkeypatch.setattr(Child, "live", lambda self: None)
    monkeypatch.setattr(os, "setsid", lambda: None)
    for device in ("cuda", "cuda:1", "cpu"):
        serve(None, device, [], 1, 1, Path.cwd())
    assert chosen == [1]


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"


def until(check, seconds=120):
    end = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.02)


def test_ctrl_c_does_not_reach_a_process_that_begins(tmp_path):
    """The terminal sends it to the whole group, and the parent tells the process."""
    slot = Slot("cpu", [], 1)
    slot._start()
    os.kill(slot._process.pid, signal.SIGINT)
    assert slot.pipe.poll(60)
    assert slot.pipe.recv() == Ready()
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()
    slot.release()
    slot.end()


def num_lines(store):
    return sum(path.read_bytes().count(b"\n") for path in store.glob("*/rounds.jsonl"))


@pytest.mark.slow
def test_stopped_and_killed_it_goes_on_to_the_same_bits(folder):
    """By Ctrl-C, which a terminal sends to the group, and killed: its processes end with it."""
    values = without("algorithm", sampler="slow", rounds=20, seeds=[0, 1])
    algorithms = {"algorithm": ["scaffold", "gcfed"]}
    (folder / "grid.toml").write_text(toml(values, grid=algorithms))
    (folder / "slow").touch()
    store = folder / "runs"

    def trainer(lines):
        """The process that trains, when there are so many lines."""
        until(lambda: num_lines(store) >= lines)
        locks = [path.read_text() for path in store.glob("*/.lock")]
        (pid,) = {json.loads(text)["pid"] for text in locks if text}
        return pid

    def assert_stopped(pid):
        until(lambda: not alive(pid), 20)
        (run, _) = (r for r in RunStore(store).runs() if r.config.algorithm.startswith("scaffold"))
        assert run.summary["status"] == "stopped"
        assert run.summary["rounds"] == len(run.records) < 20

    command = [sys.executable, "-c", "from gcfed.cli import main; main()", "sweep", "grid.toml"]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, start_new_session=True, text=True
    ) as process:
        pid = trainer(4)
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert "the same command goes on" in err
    assert_stopped(pid)
    record = json.loads((store / "sweeps/grid/sweep.json").read_text())
    assert [cell["status"] for cell in record["cells"]] == ["stopped", "waiting"]

    parent = forked(lambda: package.sweep("grid.toml"))
    pid = trainer(num_lines(store) + 4)
    assert pid != parent
    os.kill(parent, signal.SIGKILL)
    assert ended(parent) == KILLED
    assert_stopped(pid)
    (folder / "slow").unlink()
    made = package.sweep("grid.toml")
    assert [state.status for state in made.cells] == ["done", "done"]
    for state in made.cells:
        straight = RunStore("straight").run_together(
            [config.model_copy(update={"device": "cpu"}) for config in state.cell.configs]
        )
        assert bits(state.runs) == bits(straight)
    assert {len(run.records) for run in made.runs} == {20}


@pytest.mark.slow
def test_tuning_selects_on_validation_and_never_on_the_test_set(gcfed, folder):
    """On data where the better a model is on validation examples, the worse it is on the test."""
    values = without(
        dataset="contrary",
        model="mlp(hidden=())",
        partition="iid",
        cohort=10,
        rounds=12,
        validation=0.2,
        seeds=[0, 1],
    )
    grid, tune = {"weighting": ["uniform", "examples"]}, {"lr": [1e-9, 0.5, 1e30]}
    (folder / "grid.toml").write_text(toml(values, grid=grid, tune=tune))
    answer = gcfed("sweep", "grid.toml")
    assert answer.code == 0  # 1e30 diverges, and is a candidate that is not selected
    made = Sweep("grid.toml")  # found, and nothing is trained
    assert [state.status for state in made.cells] == ["done", "done", "diverged"] * 2
    tests, validations = (
        [[run.summary[split] for run in state.runs] for state in made.cells[:2]]
        for split in ("test_accuracy", "validation_accuracy")
    )
    assert sum(tests[1]) < sum(tests[0])
    assert sum(validations[1]) > sum(validations[0])
    for selection, weighting in zip(made.selected, grid["weighting"], strict=True):
        assert selection.point == {"weighting": weighting}
        assert selection.best.cell.candidate == {"lr": 0.5}
        runs = selection.best.runs
        assert selection.score == sum(r.summary["validation_accuracy"] for r in runs) / 2
        assert selection.scores[2] is None
    assert {run.config.lr for run in made.runs} == {0.5}
    assert [result.group.settings["lr"] for result in made.compare().results] == [0.5, 0.5]
    assert set(made.frame()["run"]) == {str(run.path) for run in made.runs}
    lines = answer.out.splitlines()
    assert len([line for line in lines if line.startswith("fedavg")]) == 2
    best = 100 * made.selected[0].score
    row = ["weighting=uniform", "lr=0.5", "validation", "accuracy", f"{best:.2f}", "%"]
    assert any(line.split() == row for line in lines)
    shown = {f"{100 * sum(found) / 2:.2f}" for found in tests}
    assert f"{100 * sum(tests[1]) / 2:.2f}" in answer.out
    assert not any(f"{100 * sum(tests[0]) / 2:.2f}" in text for text in (answer.out, answer.err))
    assert len(shown) == 2
    record = json.loads((folder / "runs/sweeps/grid/sweep.json").read_text())
    assert "test_accuracy" not in json.dumps(record)
    assert [found["selected"] for found in record["selected"]] == [{"lr": 0.5}] * 2


def test_a_process_is_replaced_after_an_error_in_code(tmp_path):
    """Which may leave a device in any state; an error of the input does not."""
    told, process = [], SimpleNamespace(is_alive=lambda: True)
    for over, is_kept in ((Ended([], "no", "Traceback"), False), (Ended([], "no"), True)):
        slot, other = slot_of(process, tmp_path)
        other.send(over)
        slot.hear(lambda *message: told.append(message))
        assert slot.job is None
        assert (slot._process is process) == is_kept == (not slot.pipe.closed)
        assert told.pop() == (7, "cpu", over)
        other.close()


def slot_of(process, tmp_path):
    """A slot at work, and the end of its pipe that its process holds."""
    slot = Slot("cpu", [], 1)
    slot._process, slot.job = process, CellJob(7, (), tmp_path, "test_accuracy")
    slot.pipe, other = multiprocessing.Pipe()
    return slot, other


def test_a_process_that_ends_before_it_begins(tmp_path):
    """As that of a script does which calls `sweep` again, for want of a guard."""
    dead = SimpleNamespace(is_alive=lambda: False, join=lambda seconds: None, exitcode=1)
    slot, other = slot_of(dead, tmp_path)
    other.close()
    with pytest.raises(InputError, match=r"exit code 1: a script that calls .* __name__"):
        slot.hear(lambda *message: None)


def test_what_fails_while_it_is_told_is_not_taken_for_a_lost_process(tmp_path):
    slot, other = slot_of(SimpleNamespace(is_alive=lambda: True), tmp_path)
    other.send(Ended([]))

    def full(*message):
        raise OSError("No space left on device")

    with pytest.raises(OSError, match="No space left"):
        slot.hear(full)


def test_a_cell_that_is_told_to_stop_before_it_begins(tmp_path):
    """While its process was still starting: nobody would tell it again."""
    ours, theirs = multiprocessing.Pipe()
    child = Child(theirs)
    listening = threading.Thread(target=child._listen)
    ours.close()
    with pytest.raises(KeyboardInterrupt):
        listening.start()
        listening.join()
        time.sleep(1)
    assert child._do(CellJob(1, (tiny(),), tmp_path, "test_accuracy")) == Ended([])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("error", "reason", "has_trace"),
    [
        (package.InputError("no such\n  model: mlp"), "no such model: mlp", False),
        (
            RuntimeError("in a worker process: KeyError: 'w'\nTraceback ...\nKeyError: 'w'"),
            r"RuntimeError: in a worker process: KeyError: 'w' \(test_sweep\.py, line \d+\)",
            True,
        ),
    ],
)
def test_a_cell_fails_for_a_reason_of_one_line(tmp_path, monkeypatch, error, reason, has_trace):
    def fail(*_):
        raise error

    monkeypatch.setattr(RunStore, "run_together", fail)
    ours, theirs = multiprocessing.Pipe()
    with ours, theirs:
        ended = Child(theirs)._do(CellJob(1, (tiny(),), tmp_path, "test_accuracy"))
    assert re.fullmatch(reason, ended.reason)
    assert (ended.trace is not None) == has_trace


def candidate(score, status="done", lr=0.1):
    runs = [
        SimpleNamespace(summary={"validation_accuracy": s, "test_accuracy": 1 - s}) for s in score
    ]
    cell = SimpleNamespace(point={}, candidate={"lr": lr}, number=1)
    return CellState(cell, ACCURACY, status, runs=runs)


def test_who_can_be_selected():
    def best(*states):
        (selection,) = select(states)
        return selection.best

    low, high, twin = candidate([0.5, 0.6]), candidate([0.9, 0.4]), candidate([0.4, 0.9])
    assert best(low, high) is best(high, low) is high
    assert best(high, twin) is high
    assert best(twin, high) is twin
    assert best(low, candidate([0.99], "diverged")) is low  # of its other seeds nothing is known
    assert best(low, candidate([], "failed")) is low
    assert best(low, candidate([0.9, 0.9], "stopped")) is None  # it is not over
    assert best(low, candidate([], "waiting")) is None
    assert best(candidate([], "failed")) is None


def test_from_a_notebook(folder):
    """A dict, an observer, and a second sweep of the same name meanwhile."""
    told, said = [], []

    def observe(state):
        told.append((state.cell.number, state.status, state.rounds))
        if len(told) == 1:
            with pytest.raises(InputError) as error:
                package.sweep(grid, name="mine")
            said.append(str(error.value))

    grid = {**without("lr", algorithm="talkative"), "grid": {"lr": [0.1]}}
    with pytest.warns(UserWarning, match="^cell 1: mind the gap$"):
        made = package.sweep(grid, devices="cpu", observe=observe, name="mine")
    assert told == [(1, "running", 0), (1, "running", 1), (1, "running", 2), (1, "done", 2)]
    assert "is being written by this very process" in said[0]
    assert made.path == folder.joinpath("runs/sweeps/mine/sweep.json").relative_to(folder)
    assert made.selected == []
    assert str(made.compare()).splitlines()[1].startswith("talkative")
    assert len(made.frame()) == 2
    again = package.sweep(grid, observe=observe, name="mine")
    assert len(told) == 4
    assert bits(again.runs) == bits(made.runs)


@pytest.fixture
def many(tmp_path):
    grid = {"lr": [0.01 * k for k in range(1, 31)]}
    return Sweep({**TINY, "rounds": 20, "seeds": [0, 1], "grid": grid}, tmp_path / "runs")


def test_the_live_table_fits_the_screen(many, monkeypatch):
    screen = Console(file=io.StringIO(), width=100, height=12, force_terminal=False)
    monkeypatch.setattr(console, "err", screen)
    for number, status in ((3, "done"), (9, "failed"), (20, "running"), (21, "running")):
        many.cells[number - 1].status = status
    running = many.cells[19]
    running.take("cpu", Started(), [])
    for t in range(5):
        running.take("cpu", RoundsDone({0: t + 1, 1: t + 1}, {0: 0.25, 1: 0.75}), [])
    running.first_round -= 8.0
    screen.print(Board(many).draw())
    lines = screen.file.getvalue().splitlines()
    assert len(lines) <= 12
    cells = [line.split()[0] for line in lines[1:-1]]
    assert {"9", "20", "21"} <= set(cells)
    assert "3" not in cells
    (line,) = (line for line in lines if line.startswith("20 "))
    assert " on cpu " in line
    assert "5/20" in line
    assert "50.00" in line
    assert line.rstrip().endswith("30.0 s")  # 15 rounds at 8 s for 4
    assert lines[-1].startswith("2 of 30 cells, 1 failed or diverged")
    assert lines[-1].endswith(" left")


def test_bars_give_way_before_anything_else_in_the_live_table(many, monkeypatch):
    screen = Console(file=io.StringIO(), width=58, force_terminal=False)
    monkeypatch.setattr(console, "err", screen)
    running = many.cells[0]
    running.take("cpu", Started(), [])
    for t in range(5):
        running.take("cpu", RoundsDone({0: t + 1, 1: t + 1}, {0: 0.25, 1: 0.75}), [])
    running.first_round -= 8.0
    screen.print(Board(many).draw())
    head, line, *_ = screen.file.getvalue().splitlines()
    assert head.split() == ["cell", "settings", "status", "round", "accuracy", "left"]
    assert all(word in line for word in ("lr=0.01", "on cpu", "5/20", "50.00 %", "30.0 s"))
    assert len(line) <= 58


def test_plain_lines(many, capsys):
    tell, state = plain_lines(many), many.cells[4]
    state.take("cuda:1", Started(), [])
    tell(state)
    for t in range(20):
        state.take("cuda:1", RoundsDone({0: t + 1, 1: t + 1}, {0: 0.1}), [])
        tell(state)
    state.take("cuda:1", Ended([], "no memory"), [])
    tell(state)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 12
    assert lines[0] == "cell 5 of 30 (lr=0.05): starts on cuda:1"
    assert lines[1].startswith("cell 5 of 30 (lr=0.05): round 2 of 20  accuracy 10.00 %")
    assert lines[-1].endswith(": no memory")
    assert "failed after" in lines[-1]
