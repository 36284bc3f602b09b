"""A run in three parts: the server's task, the clients' task and the population, each by itself."""

import ast
import copy
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import gcfed.core.server
from gcfed import InputError, parse, simulate, start
from gcfed.core import keys, tree
from gcfed.core.batches import Batches, DataHandle
from gcfed.core.client import Facts, Job, cohort_of
from gcfed.core.memory import HostStore
from gcfed.core.server import Arrived, NonFiniteUpdateError, ServerTask
from gcfed.core.types import Examples
from gcfed.simulation.round import prepare

ALGORITHMS = ("gcfed", "scaffold", "fedvarp + gcfed", "fedlc + fedadam", "feddyn", "moon")


def train_alone(setup, server, memory, t, client):
    """What a client of another machine does, which has its own examples and memory alone."""
    part, plan = setup.data.parts[client], setup.population.plan(t, client)
    own = Examples(setup.data.x[part], setup.data.y[part])
    where = {int(i): k for k, i in enumerate(part)}
    steps = [torch.tensor([where[int(i)] for i in step]) for step in plan]
    plan = type(plan).of(steps)
    anchor, message = setup.server_task.broadcast(server)
    cohort = cohort_of(
        anchor,
        message,
        lr=setup.lr(t),
        t=t,
        memory=memory.gather([client], lambda: setup.algorithm.init_client(anchor), setup.device),
        buffers=tree.expand(server.buffers, 1),
        facts=Facts.of(
            label_counts=own.y.bincount(minlength=5)[None],
            filled_counts=own.y.bincount(minlength=5)[None],  # fill is none
            num_examples=torch.tensor([len(own.y)]),
            plans=[plan],
            key=keys.of_clients(setup.schedule.seed, t, [client]),
            like=anchor["fc2.weight"],
        ),
    )
    job = Job(setup.client_task, cohort, Batches(DataHandle(own), [plan]), 1)
    (trained,) = setup.chosen.make()([job])
    return trained, memory.scatter([client], trained.upload.memory)


@pytest.mark.parametrize("text", ALGORITHMS)
def test_server_and_clients_apart_are_the_simulation(text, make_setup, close):
    setup = make_setup(parse(text), engine="sequential")
    task = ServerTask(setup.algorithm, setup.schedule, num_clients=10)
    server, memory, rows = task.start(setup.model.params, {}), HostStore(), HostStore()
    for t, result in enumerate(simulate(setup)):
        trained = []
        for client in setup.population.sample(t):
            one, memory = train_alone(setup, server, memory, t, client)
            trained.append(one)
        stacked = tree.concat(trained)
        ids = setup.population.sample(t)
        arrived = Arrived(
            ids,
            torch.tensor([len(setup.data.parts[i]) for i in ids]),
            keys.of_clients(setup.schedule.seed, t, ids),
            stacked.upload.delta,
            stacked.upload.message,
            stacked.buffers,
        )
        mean, rows = task.receive(server, rows, t, arrived)
        server = task.update(server, t, [mean])
        close(server, result.server, tolerance=1e-12)


def test_the_server_needs_neither_data_nor_faults_nor_engines():
    """By its imports: whatever it imports of gcfed lies in core or below."""
    seen, todo = set(), [Path(gcfed.core.server.__file__)]
    root = Path(gcfed.__file__).parent
    while todo:
        for node in ast.walk(ast.parse(todo.pop().read_text())):
            if not (isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gcfed")):
                continue
            for name in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names)):
                path = root.joinpath(*name.split(".")[1:]).with_suffix(".py")
                if path.is_file() and path not in seen:
                    seen.add(path)
                    todo.append(path)
    rooms = {path.relative_to(root).parts[0] for path in seen}
    assert rooms <= {"core", "display.py", "errors.py", "registry.py", "values.py"}


def test_an_update_that_is_not_finite_is_left_out_or_an_error(make_setup):
    setup = make_setup(parse("fedavg"))
    (result,) = (next(simulate(setup)),)
    delta = tree.map(torch.clone, result.uploads.delta)
    delta["fc2.bias"][1, 0] = torch.nan
    arrived = Arrived(result.ids, torch.ones(4), keys.of_clients(0, 0, result.ids), delta, {}, {})
    with pytest.raises(NonFiniteUpdateError) as error:
        setup.server_task.accept(0, arrived)
    assert error.value.clients == [result.ids[1]]
    drop = replace(setup.server_task, schedule=replace(setup.schedule, on_nonfinite="drop"))
    kept = drop.accept(0, arrived)
    assert kept == [0, 2, 3]
    assert arrived.take(kept).ids == [result.ids[k] for k in kept]


def test_a_pickled_job_does_not_carry_the_data(make_setup, data):
    big = replace(data, x=data.x.repeat(1, 1, 50, 1)[:, :, :4].contiguous())
    setup = make_setup(parse("scaffold + gcfed"), data=big)
    job = prepare(setup, *start(setup), 0, [1, 2, 3])
    carried = pickle.dumps(job)
    assert job.batches.data.examples.x.nbytes > 20_000
    weights = sum(x.nbytes for x in setup.model.params.values())
    assert len(carried) < 20 * weights + 20_000
    again = pickle.loads(carried)
    assert again.batches.data is job.batches.data


def test_a_handle_is_a_name(data):
    handle = DataHandle(Examples(data.x, data.y), "mine")
    text = pickle.dumps(handle)
    assert len(text) < 200 and pickle.loads(text) is handle
    del handle
    with pytest.raises(InputError, match="does not hold the examples mine"):
        pickle.loads(text)


def test_another_process_resolves_a_handle(data):
    handle = DataHandle(Examples(data.x, data.y), "theirs")
    code = f"""
import pickle, torch
from gcfed.core.batches import DataHandle
from gcfed.core.types import Examples
kept = DataHandle(Examples(torch.arange(3.0), torch.arange(3)), "theirs")
print(pickle.loads({pickle.dumps(handle)!r}).examples.x.tolist())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[0.0, 1.0, 2.0]", done.stderr


def test_a_copy_of_data_has_a_handle_of_its_own(data):
    used = replace(data)
    name, text, twin = used.handle.name, pickle.dumps(used), copy.deepcopy(used)
    assert twin.handle.examples.x is twin.x and twin.handle is not used.handle
    del used, twin  # as in a process that never had them
    again = pickle.loads(text)
    assert again.handle.name != name and torch.equal(again.handle.examples.x, data.x)


def test_models_are_kept_only_where_asked(make_setup, close):
    setup = make_setup(parse("gcfed"), keep=frozenset({"models", "uploads"}))
    before = setup.model.params
    for result in simulate(setup):
        moved = tree.map(lambda w, p: w - p, result.models.params, tree.expand(before, 4))
        close(moved, result.uploads.delta, tolerance=1e-12)
        before = result.server.params
    assert next(simulate(make_setup(parse("gcfed")))).models is None
