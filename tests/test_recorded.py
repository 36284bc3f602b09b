"""Engines that record a step and replay it, on a CPU: all but what CUDA itself does.

A stand-in runs a step where CUDA would record it; everything around it is the engines' own.
"""

import gc
import os
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from torch import nn

from gcfed import Streams, Vectorized, parse, run_round, simulate, simulate_together, start
from gcfed.caches import keep_compiled_code
from gcfed.core import tree
from gcfed.data import Lazy, dataset_from
from gcfed.engines.graphs import many_sizes
from gcfed.engines.lineup import Lineup
from gcfed.engines.recorder import CudaRecorder, Recorder
from gcfed.engines.streams import StreamProgram
from gcfed.engines.vectorized import few_sizes
from gcfed.kernels.products import ProductConv2d
from gcfed.simulation.round import prepare
from gcfed.simulation.side_stream import SideStream


@pytest.fixture(autouse=True)
def no_compiler(monkeypatch):
    """The compiler's processes are not started: a thread would keep the tests' own from forking."""
    monkeypatch.setattr("gcfed.engines.graphs.prepare_to_compile", lambda device: None)


class StandIn(Recorder):
    """Runs a step as often as CUDA does before it records, and replays it by running it."""

    def __init__(self, fails=()):
        self.fails, self.captures, self.compiled = fails, 0, 0

    def guard(self):
        return nullcontext()

    def compile(self, trace, examples):
        self.compiled += 1
        if "compile" in self.fails:
            raise RuntimeError("no such kernel\nand a long story")
        return trace

    def branches(self, count):
        def side_by_side(bodies):
            assert 0 < len(bodies) <= count
            for body in bodies:
                body()

        return side_by_side

    def capture(self, body):
        self.captures += 1
        if "capture" in self.fails:
            raise RuntimeError("operation not permitted\nwhen stream is capturing")
        if "memory" in self.fails:
            raise torch.OutOfMemoryError("out of memory")
        for _ in range(2):
            body()
        return body


def on_cpu(kind, *fails):
    """An engine of a GPU that works on a CPU by a stand-in, and remembers its programs."""

    class OnCpu(kind):
        needs_cuda = False
        recorder = StandIn(fails)
        programs = ()

        def recorder_on(self, device):
            return self.recorder

        def program(self, lineup, recorder):
            self.programs = (*self.programs, super().program(lineup, recorder))
            return self.programs[-1]

    return OnCpu()


class Dropping(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.drop, self.fc = nn.Conv2d(1, 4, 3), nn.Dropout(0.5), nn.Linear(16, 5)

    def forward(self, x):
        return self.fc(self.drop(torch.relu(self.conv(x)).flatten(1)))


@pytest.fixture(params=[Vectorized, Streams], ids=lambda kind: kind.name)
def kind(request):
    return request.param


@pytest.mark.slow
@pytest.mark.parametrize("text", ["gcfed", "scaffold", "moon", "fedlc(tau=0.1) + scaffold + gcfed"])
def test_replayed_rounds_agree_with_the_specification(text, kind, make_setup, close):
    """Clients of 3 to 40 examples, with memory, a teacher's weights, dropout and momentum."""
    torch.manual_seed(3)
    module, engine = Dropping(), on_cpu(kind)
    found, expected = (
        list(simulate(make_setup(parse(text), module=module, engine=e, cohort_size=5)))
        for e in (engine, "sequential")
    )
    for a, b in zip(found, expected, strict=True):
        close((a.server, a.uploads, a.losses), (b.server, b.uploads, b.losses))
    assert len(engine.programs) == 1 and engine.recorder.compiled > 0


def test_runs_trained_together_are_one_line(kind, make_setup, close):
    engine = on_cpu(kind)
    first = make_setup(parse("scaffold + gcfed"), engine=engine, rounds=2)
    setups = [first, replace(first, schedule=replace(first.schedule, seed=1, cohort_size=5))]
    *_, together = simulate_together(setups)
    assert len(engine.programs) == 1
    for setup, result in zip(setups, together.values(), strict=True):
        *_, alone = simulate(replace(setup, engine="sequential"))
        close((result.server, result.uploads), (alone.server, alone.uploads))


def test_examples_that_are_read_when_they_are_needed(kind, make_setup, data, close):
    pairs = list(zip(data.x, data.y.tolist(), strict=True))
    lazy = dataset_from(Lazy(pairs, processes=0), (data.x, data.y), dtype=torch.float64).train.x
    ours = make_setup(parse("gcfed"), engine=on_cpu(kind), data=replace(data, x=lazy), rounds=2)
    for found, expected in zip(
        simulate(ours), simulate(replace(ours, data=data, engine="sequential")), strict=True
    ):
        close(found.server, expected.server)


def test_fewer_clients_are_trained_by_the_same_program(kind, make_setup, close):
    engine = on_cpu(kind)
    ours = make_setup(parse("scaffold + gcfed"), engine=engine, cohort_size=4)
    reference = replace(ours, engine="sequential")
    for ids in ([2, 3, 7, 8], [9], [4, 3]):
        found = run_round(ours, *start(ours), 0, ids, engine=engine)
        expected = run_round(reference, *start(reference), 0, ids)
        close((found.server, found.uploads), (expected.server, expected.uploads))
    assert len(engine.programs) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "change", [{"cohort_size": 6}, {"batch_size": 5}, {"optimizer": None}, {"algorithm": "moon"}]
)
def test_other_work_needs_another_program(change, kind, make_setup, close):
    engine = on_cpu(kind)
    first = make_setup(parse("gcfed"), engine=engine, rounds=1)
    if "optimizer" in change:
        other = replace(first, optimizer=replace(first.optimizer, momentum=0.0))
    elif "algorithm" in change:
        other = replace(first, algorithm=parse(change["algorithm"]))
    else:
        other = replace(first, schedule=replace(first.schedule, **change))
    for setup in (first, other):
        ids = setup.population.draw(0).plans
        found = run_round(setup, *start(setup), 0, list(ids), engine=engine)
        alone = replace(setup, engine="sequential")
        close(found.server, run_round(alone, *start(alone), 0, list(ids)).server)
    assert len(engine.programs) == 2


def test_only_as_many_clients_as_needed_take_a_step(make_setup):
    """Of seven clients with 2 to 12 steps, few take the last: those graphs are small."""
    sizes = []

    class Watched(StreamProgram):
        def replay(self, n):
            sizes.append(n)
            return super().replay(n)

    setup = make_setup(parse("fedavg"), cohort_size=7, rounds=1)
    job = prepare(setup, *start(setup), 0, [0, 1, 2, 4, 5, 7, 9])
    lineup = Lineup.of([job])
    Watched(lineup, StandIn()).run(lineup)
    active = [lineup.active(t) for t in range(lineup.steps[0])]
    assert sizes == active and sizes[0] == 7 and sizes[-1] == 1


def test_sizes_are_few_where_each_is_a_compilation():
    for clients, sizes in ((1, [1]), (5, [1, 3, 5]), (20, [3, 10, 20]), (50, [7, 25, 50])):
        assert few_sizes(clients) == sizes
    assert many_sizes(3) == [1, 2, 3]
    assert many_sizes(40) == list(range(2, 41, 2))


def test_a_stream_has_memory_of_its_own_in_the_layout_of_convolutions(make_setup):
    setup = make_setup(parse("scaffold"), module=Dropping())
    lineup = Lineup.of([prepare(setup, *start(setup), 0, [3, 7, 8])])
    program = StreamProgram(lineup, StandIn())
    weights = [at.params["conv.weight"] for at in program._at]
    assert len({w.untyped_storage().data_ptr() for w in weights}) == 3
    assert all(w.is_contiguous(memory_format=torch.channels_last) for w in weights)
    moved = tree.map(lambda x: x + 1, program.progress())
    program.restore(moved)
    torch.testing.assert_close(program.progress(), moved)


@pytest.mark.parametrize(("batch_size", "products"), [(7, True), (17, False)])
def test_small_batches_turn_convolutions_into_products(batch_size, products, make_setup):
    setup = make_setup(parse("fedavg"), batch_size=batch_size, fill="repeat")
    lineup = Lineup.of([prepare(setup, *start(setup), 0, [3, 7, 8])])
    program = Vectorized().program(lineup, StandIn())
    assert program.mapped.model.replaced == (["conv"] if products else [])
    assert products == any(
        isinstance(m, ProductConv2d) for m in program.mapped.model._shells[True].modules()
    )


def test_what_cannot_be_compiled_is_recorded_as_it_is(kind, make_setup, close):
    engine = on_cpu(kind, "compile")
    setup = make_setup(parse("gcfed"), engine=engine)
    with pytest.warns(UserWarning, match="step is not compiled, .*RuntimeError: no such kernel$"):
        *_, found = simulate(setup)
    *_, expected = simulate(replace(setup, engine="sequential"))
    close(found.server, expected.server)
    (program,) = engine.programs
    assert not program.is_compiled
    # vectorized tries a step for any number of clients first, then one for a single number
    assert engine.recorder.compiled == (2 if kind is Vectorized else 1)


def test_what_cannot_be_recorded_runs_as_it_is_written(kind, make_setup, close):
    engine = on_cpu(kind, "capture")
    setup = make_setup(parse("gcfed"), engine=engine)
    with pytest.warns(UserWarning) as told:
        *_, found = simulate(setup)
    *_, expected = simulate(replace(setup, engine="sequential"))
    close(found.server, expected.server)
    # where clients begin, and a step, compiled and not; later rounds do not try again, but for the
    # server's half where what came happens to lie where it did
    assert engine.recorder.captures in (3, 4)
    reason = "RuntimeError: operation not permitted"
    assert [str(warning.message) for warning in told] == [
        f"the step is not compiled, so it is slower: {reason}",
        f"no CUDA graph, so rounds are slower: {reason}",
    ]


def test_too_little_memory_is_no_reason_to_fall_back(kind, make_setup):
    setup = make_setup(parse("gcfed"), engine=on_cpu(kind, "memory"), cohort_size=1)
    with pytest.raises(torch.OutOfMemoryError):
        next(simulate(setup))


def test_a_closed_engine_has_forgotten_its_program(kind, make_setup):
    engine = on_cpu(kind)
    rounds = simulate(make_setup(parse("gcfed"), engine=engine))
    next(rounds)
    assert engine._program is engine.programs[0]
    rounds.close()
    assert engine._program is None and engine._eager is None


def test_on_a_cpu_nothing_is_recorded(kind, make_setup, close):
    setup = make_setup(parse("gcfed"))
    job = prepare(setup, *start(setup), 0, [3, 7, 8])
    engine = kind()
    assert engine.recorder_on(torch.device("cpu")) is None
    assert isinstance(engine.recorder_on(torch.device("cuda")), CudaRecorder)
    (found,), (expected,) = engine([job]), Vectorized()([job])
    close(found, expected, 0)


class FakeCuda:
    """Says what is asked of `torch.cuda`, in order."""

    def __init__(self, monkeypatch):
        self.calls, self.count, self.pools, fake = [], 0, 0, self

        class Stream:
            def __init__(self, device=None, priority=0):
                fake.count, self.priority = fake.count + 1, priority
                self.name = f"s{fake.count}" if device is None else f"s{fake.count} of {device}"

            def __str__(self):
                return self.name

            def wait_stream(self, other):
                fake.calls.append(f"{self.name} waits for {other.name}")

        class Graph:
            def replay(self):
                fake.calls.append("replay")

        class Inside:
            def __init__(self, what, **options):
                self.what = what if isinstance(what, str) else getattr(what, "name", "graph")
                self.what += "".join(f" {k}={v}" for k, v in options.items())

            def __enter__(self):
                fake.calls.append(f"in {self.what}")

            def __exit__(self, *error):
                fake.calls.append(f"out {self.what}")

        root = Stream()
        root.name = "root"
        for name, value in {
            "Stream": Stream,
            "CUDAGraph": Graph,
            "current_stream": lambda: root,
            "stream": Inside,
            "graph": Inside,
            "graph_pool_handle": self.pool,
            "set_stream": lambda stream: fake.calls.append(f"set {stream}"),
            "device": lambda device: Inside(str(device)),
            "get_device_name": lambda device: "NVIDIA H200",
        }.items():
            monkeypatch.setattr(torch.cuda, name, value)

    def pool(self):
        self.pools += 1
        return "pool" * self.pools


def test_a_capture_that_fails_leaves_nothing_to_those_that_follow(monkeypatch):
    """Torch would keep its stream, and take the pool as one that is still being recorded to."""
    fake, recorder, calls = FakeCuda(monkeypatch), CudaRecorder(torch.device("cuda:1")), []

    def body():
        calls.append(1)
        if len(calls) == 3:  # the time that is recorded
            raise RuntimeError("operation not permitted when stream is capturing")

    with pytest.raises(RuntimeError, match="not permitted"):
        recorder.capture(body)
    assert fake.calls[-1] == "set root" and fake.pools == 1
    recorder.capture(body)
    assert fake.pools == 2 and "pool=poolpool" in fake.calls[-1]


def test_work_beside_is_recorded_on_a_stream_that_nothing_else_uses(monkeypatch):
    """On one that an engine records on too, products of both would share a workspace.

    And on that of the work itself, threads may let go of memory while it is recorded.
    """
    fake, side = FakeCuda(monkeypatch), SideStream(torch.device("cuda:1"))
    side._recorder.capture(lambda: None)
    used, own = side._stream, side._recorder._stream
    assert f"stream={own}" in fake.calls[-1]
    assert own is not used and own.priority == used.priority == -1  # of the pool of no engine


@pytest.fixture
def side(monkeypatch):
    """Work beside, recorded by a stand-in."""
    monkeypatch.setattr(SideStream, "_has_room", lambda self: True)

    def make(*fails):
        beside = SideStream()
        beside._recorder = StandIn(fails)
        return beside, beside._recorder

    return make


def test_what_is_repeated_is_recorded_the_second_time(side):
    beside, recorder = side()
    found = [
        beside.repeat("twice", lambda x: 2 * x, torch.tensor(float(k))).item() for k in (1, 2, 3)
    ]
    assert found == [2, 4, 6] and recorder.captures == 1


def test_what_cannot_be_recorded_is_not_tried_again(side):
    beside, recorder = side("capture")
    found = [
        beside.repeat("twice", lambda x: 2 * x, torch.tensor(float(k))).item() for k in (1, 2, 3)
    ]
    assert found == [2, 4, 6] and recorder.captures == 1


def test_no_garbage_is_searched_for_while_a_step_is_recorded(monkeypatch):
    """A graph that is found then, and ended, would spoil the recording."""
    FakeCuda(monkeypatch)
    searched = []
    CudaRecorder(torch.device("cuda:1")).capture(lambda: searched.append(gc.isenabled()))
    assert searched == [True, True, False] and gc.isenabled()


def test_what_is_asked_of_cuda(monkeypatch):
    keep_compiled_code.cache_clear()
    fake, own = FakeCuda(monkeypatch), "s5 of cuda:1"
    capture = f"graph pool=pool stream={own} capture_error_mode=thread_local"
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)
    monkeypatch.setenv("GCFED_CACHE", "/cache")
    recorder = CudaRecorder(torch.device("cuda:1"))
    with recorder.guard():
        side_by_side = recorder.branches(3)
        bodies = [lambda k=k: fake.calls.append(f"client {k}") for k in range(2)]
        replay = recorder.capture(lambda: side_by_side(bodies))
    step = [
        *("s2 waits for root", "in s2", "client 0", "out s2"),
        *("s3 waits for root", "in s3", "client 1", "out s3"),
        *("root waits for s2", "root waits for s3"),
    ]
    assert fake.calls == [
        "in cuda:1",
        *(
            f"{own} waits for root",
            f"in {own}",
            *step,
            *step,
            f"out {own}",
            f"root waits for {own}",
        ),
        f"in {capture}",
        *step,
        f"out {capture}",
        "out cuda:1",
    ]
    replay()
    assert fake.calls[-1] == "replay"
    kept = f"/cache/compiled/torch-{torch.__version__}-NVIDIA-H200"
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == f"{kept}/inductor"
    assert os.environ["TRITON_CACHE_DIR"] == f"{kept}/triton"
