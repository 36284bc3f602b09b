"""Cells that share a device: threads of one process, which take turns."""

import json
import multiprocessing
import threading
import time
import warnings
from itertools import pairwise

import pytest
import torch
from running import lines, tiny
from test_resume import assert_same
from test_sweep import bits, toml, without

import gcfed as package
from gcfed import RunStore, Sweep, load_run, run, turns
from gcfed.errors import InputError
from gcfed.runs import interrupt
from gcfed.simulation import loop
from gcfed.sweeps import pool
from gcfed.sweeps.child import CellJob, Child, Ended, Note, RoundsDone
from gcfed.sweeps.devices import Allotment, find_devices
from gcfed.sweeps.pool import Slot, make_slots

pytest_plugins = ["running", "test_resume", "test_sweep"]
pytestmark = pytest.mark.usefixtures("float32", "registries")


@pytest.fixture(autouse=True)
def nobody_asked(monkeypatch):
    """Another test may have asked the threads of this process to stop."""
    monkeypatch.setattr(interrupt, "_of_threads", interrupt.Request())


def in_threads(*calls):
    """Call functions in threads of their own, which take turns, once all of them wait."""
    taking = turns.Turns()

    def taken(call):
        with taking.taken():
            call()

    threads = [threading.Thread(target=taken, args=(call,)) for call in calls]
    with taking.taken():
        for thread in threads:
            thread.start()
        while len(taking._queue) <= len(calls):
            time.sleep(0.001)
    for thread in threads:
        thread.join()


def test_turns_go_round():
    """A thread that offers its turn comes after those that wait; without others, it goes on."""
    seen = []

    def count(name):
        for number in range(3):
            seen.append(f"{name}{number}")
            with turns.offered():
                pass

    in_threads(lambda: count("a"), lambda: count("b"))
    assert [text[1] for text in seen] == list("001122")
    assert all(one[0] != other[0] for one, other in pairwise(seen))
    assert not turns.is_shared()
    with turns.offered():
        pass


def test_nothing_of_two_runs_mixes_while_one_has_its_turn():
    inside, most = [0], []

    def work():
        for _ in range(20):
            inside[0] += 1
            most.append(inside[0])
            time.sleep(0)
            inside[0] -= 1
            with turns.offered():
                pass

    in_threads(*[work] * 4)
    assert set(most) == {1} and len(most) == 80


def test_runs_that_share_a_process_end_with_the_bits_they_have_alone(tmp_path, monkeypatch):
    """Of several algorithms, seeds and precisions, and none of them before another."""
    configs = {
        "a": tiny(algorithm="scaffold", rounds=4, precision="float32"),
        "b": tiny(algorithm="gcfed", rounds=4, precision="tf32", engine="vectorized"),
        "c": tiny(algorithm="fedadam", rounds=4, seed=3, dataset="synthetic(train=90, test=30)"),
    }
    for name, config in configs.items():
        run(config, tmp_path / "straight" / name)
    order, real, settings = [], loop.conclude, []

    def concluded(setup, *arguments):
        order.append(type(setup.algorithm).__name__)
        settings.append(torch.get_float32_matmul_precision())
        return real(setup, *arguments)

    monkeypatch.setattr(loop, "conclude", concluded)
    in_threads(*(lambda n=n, c=c: run(c, tmp_path / n) for n, c in configs.items()))
    assert len(order) == 12 and len(set(order[:3])) == 3  # the first round of each, to begin with
    assert set(settings) == {torch.get_float32_matmul_precision()}
    for name in configs:
        assert_same(tmp_path / name, tmp_path / "straight" / name)


def test_memory_that_is_missing_may_be_a_neighbours(tmp_path, monkeypatch):
    """So the cohort is not halved, which would change bits; alone it is."""
    real, failures = loop.prepare, []

    def short(setup, server, clients, t, ids, plans):
        if len(ids) > 2:
            raise torch.OutOfMemoryError
        return real(setup, server, clients, t, ids, plans)

    def shared():
        with pytest.raises(torch.OutOfMemoryError):
            run(tiny(), tmp_path / "shared")
        failures.append(load_run(tmp_path / "shared").summary["status"])

    monkeypatch.setattr(loop, "prepare", short)
    in_threads(shared)
    assert failures == ["failed"]
    with pytest.warns(UserWarning, match="2 clients at once instead of 3"):
        assert run(tiny(), tmp_path / "alone")["status"] == "finished"


@pytest.fixture
def child(monkeypatch):
    """The inside of a process of two cells, what gives it cells, and all that it has told."""
    ours, theirs = multiprocessing.Pipe()
    monkeypatch.setattr(interrupt, "_of_threads", interrupt.Request())
    made = Child(theirs, "cpu", 2)
    with ours, theirs:
        yield made, ours


def told_by(pipe):
    found = []
    while pipe.poll():
        found.append(pipe.recv())
    return found


def worked(child, *jobs):
    """Have a process do some cells, as its threads do."""
    for job in (*jobs, None, None):
        child._inbox.put(job)
    threads = [threading.Thread(target=child._work_beside) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_a_cell_that_fails_leaves_its_neighbour_alone(child, tmp_path):
    made, pipe = child
    good, bad = tiny(rounds=3), tiny(model="mlp(hidden=(0,))")
    jobs = [CellJob(n, (c,), tmp_path, "test_accuracy") for n, c in ((4, good), (5, bad))]
    worked(made, *jobs)
    told = told_by(pipe)
    ended = {number: message for number, message in told if isinstance(message, Ended)}
    assert ended[5].runs == [] and ended[5].reason
    assert ended[4].reason is None
    assert [m.done for n, m in told if n == 4 and isinstance(m, RoundsDone)] == [
        {0: 1},
        {0: 2},
        {0: 3},
    ]
    straight = RunStore(tmp_path / "straight").run(good)
    assert bits([straight]) == bits([load_run(tmp_path / ended[4].runs[0])])


def test_cells_that_share_a_process_stop_after_their_rounds(child, tmp_path, monkeypatch):
    made, pipe = child
    configs = [tiny(algorithm=name, rounds=30) for name in ("fedavg", "gcfed")]
    real = RunStore.run_together

    def stopping(store, configs, observe):
        def observed(found):
            observe(found)
            if found[0]["round"] == 2:
                interrupt.ask_threads()

        return real(store, configs, observed)

    monkeypatch.setattr(RunStore, "run_together", stopping)
    worked(made, *(CellJob(i, (c,), tmp_path, "test_accuracy") for i, c in enumerate(configs, 1)))
    ended = [message for _, message in told_by(pipe) if isinstance(message, Ended)]
    runs = [load_run(tmp_path / name) for message in ended for name in message.runs]
    assert [run.summary["status"] for run in runs] == ["stopped"] * 2
    assert all(2 <= len(lines(run.path)) < 6 for run in runs)


def test_a_device_named_several_times_has_one_process_unless_it_is_a_cpu():
    found = make_slots(["cuda:0", "cpu", "cuda:1", "cuda:0", "cpu"], Allotment(1, 1))
    assert [(slot.device, slot._num_cells) for slot in found] == [
        ("cuda:0", 2),
        ("cuda:1", 1),
        ("cpu", 1),
        ("cpu", 1),
    ]
    assert find_devices("cpu", "auto", 3) == ["cpu"] * 3
    with pytest.raises(InputError, match="a positive count; not 0"):
        find_devices("cpu", "auto", 0)


class Alive:
    """A process that lives, or has died."""

    exitcode = -9

    def __init__(self, is_alive=True):
        self._is_alive = is_alive

    def is_alive(self):
        return self._is_alive

    def join(self, seconds=None):
        pass


@pytest.mark.parametrize("dies", [True, False])
def test_what_fails_beside_others_is_tried_again_alone(dies, tmp_path):
    told, slot = [], Slot("cuda", [], 1, 3)
    slot._process, slot._is_ready = Alive(not dies), True
    slot.pipe, other = multiprocessing.Pipe()
    slot.jobs = {n: CellJob(n, (), tmp_path, "test_accuracy") for n in (1, 2)}
    third = CellJob(3, (), tmp_path, "test_accuracy")
    assert slot.has_room(third) and not slot.has_room(third._replace(alone=True))
    if dies:
        other.close()
    else:
        other.send((2, Ended([], "KeyError: 'w'", "Traceback")))
    again = slot.hear(lambda number, device, message: told.append((number, message)))
    assert [(job.number, job.alone) for job in again] == ([(1, True)] if dies else []) + [(2, True)]
    assert all(isinstance(message, Note) and "again alone" in message.text for _, message in told)
    if not dies:
        assert list(slot.jobs) == [1]
        assert not slot.has_room(third)  # what the error left of the process is not known
        other.send((1, Ended(["a"])))
        assert slot.hear(lambda *message: told.append(message)) == []
    assert slot._process is None and slot.has_room(third._replace(alone=True))
    slot._process, slot._is_ready = Alive(), True
    slot.pipe, other = multiprocessing.Pipe()
    slot.jobs = {2: again[-1]}
    assert not slot.has_room(third)
    other.send((2, Ended([], "KeyError: 'w'", "Traceback")))
    assert slot.hear(lambda number, device, message: told.append((number, message))) == []
    assert told[-1] == (2, Ended([], "KeyError: 'w'", "Traceback"))


@pytest.mark.slow
def test_a_sweep_whose_cells_share_a_process(folder, monkeypatch):
    """One of four cells kills the process: the others are done, with the bits they have alone."""
    monkeypatch.setattr(pool, "make_slots", lambda devices, allotment: [Slot("cpu", [], 1, 4)])
    algorithms = ["scaffold", "doomed", "talkative", "gcfed"]
    values = without("algorithm", rounds=4, seeds=[0, 1])
    (folder / "grid.toml").write_text(toml(values, grid={"algorithm": algorithms}))
    (folder / "broken").touch()
    made = Sweep("grid.toml", per_device=4)
    with pytest.warns(UserWarning) as warned:
        made.run()
    texts = [str(warning.message) for warning in warned]
    assert sum("is tried again alone: its process was ended by SIGKILL" in t for t in texts) == 4
    assert "cell 3: mind the gap" in texts
    assert [state.status for state in made.cells] == ["done", "failed", "done", "done"]
    assert json.loads(made.path.read_text())["devices"] == ["cpu"] * 4
    for state in made.of("done"):
        with warnings.catch_warnings(action="ignore"):
            straight = RunStore("straight").run_together(
                [config.model_copy(update={"device": "cpu"}) for config in state.cell.configs]
            )
        assert bits(state.runs) == bits(straight)
    (folder / "broken").unlink()
    again = package.sweep("grid.toml", per_device=4)
    assert [state.status for state in again.cells] == ["done"] * 4
