"""Steps as traces: what is frozen, what is written, and that compilation takes place."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from test_recorded import on_cpu
from torch import nn
from torch.func import vmap
from torch.nn import functional

from gcfed import Vectorized, parse, simulate, start
from gcfed.core import keys, tree
from gcfed.core.precision import arithmetic, resolve
from gcfed.core.torch_internals import make_fx
from gcfed.engines import any_number
from gcfed.engines.any_number import AnyNumber
from gcfed.engines.lineup import Lineup, advance, copy, over_clients
from gcfed.engines.tracing import Traced, inductor, keep_hashes
from gcfed.kernels.inplace import IN_PLACE, reuse_memory
from gcfed.simulation.round import prepare

ROOT = Path(__file__).parents[1]


@pytest.fixture
def lineup(make_setup):
    setup = make_setup(parse("fedavg"))
    return Lineup.of([prepare(setup, *start(setup), 0, [3, 7, 8])])


def test_two_arguments_that_are_one_tensor_stay_two():
    x = torch.ones(3)
    traced = Traced(lambda a, b: (a + 2 * b,), x, x)
    assert torch.equal(traced(torch.zeros(3), x)[0], 2 * x)


def test_a_trace_writes_what_its_function_writes(lineup, close):
    client, batch = tree.take(lineup.cohort, 0), tree.take(next(lineup.batches()), 0)
    at = tree.take(lineup.begin(), 0)
    expected = advance(lineup.task, at, batch, client)

    def step(at, batch, client):
        copy(at, advance(lineup.task, at, batch, client))
        return ()

    mine = tree.map(torch.clone, at)
    assert Traced(step, mine, batch, client)(mine, batch, client) == ()
    close(mine, expected, 1e-13)


@pytest.mark.slow
@pytest.mark.filterwarnings("default::DeprecationWarning")  # of what torch imports
def test_compilation_takes_place(lineup, close):
    """`torch.compile` on a step itself compiles nothing and does not say so."""
    torch._dynamo.utils.counters.clear()
    client, batch = tree.take(lineup.cohort, 0), tree.take(next(lineup.batches()), 0)
    at = tree.take(lineup.begin(), 0)
    compiled = Traced(lineup.task.step, at, batch, client, compiler=inductor)
    close(compiled(at, batch, client), lineup.task.step(at, batch, client), 1e-12)
    made = torch._dynamo.utils.counters
    assert made["stats"]["unique_graphs"] == 1 and not made["graph_break"]
    assert sum(made["inductor"].values()) > 0


def drawn(key, steps):
    return keys.uniform(keys.fold(keys.fold(key, steps), 7), (3,))


@cache
def written_out(node):
    """How many operations a result takes if every use of an operand is written down anew."""
    if node.target is torch.ops.aten.as_strided.default:
        return 1
    return 1 + sum(map(written_out, node.all_input_nodes))


def test_hashes_are_kept_in_between():
    arguments = keys.of_clients(0, 0, range(4)), torch.arange(4)
    trace = make_fx(vmap(drawn))(*arguments)
    (result,) = trace.graph.output_node().all_input_nodes
    keep_hashes(trace.graph)
    trace.recompile()
    assert torch.equal(trace(*arguments), vmap(drawn)(*arguments))
    views = trace.graph.find_nodes(op="call_function", target=torch.ops.aten.as_strided.default)
    assert max(written_out(n) for n in [result, *(view.args[0] for view in views)]) < 200


def draw(a, b):
    a.copy_(vmap(drawn)(b[:, 1:].long(), b[:, 0].long()))


def exchange(a, b):
    a_was = a * CONSTANT
    a.copy_(b)
    b.copy_(a_was)


def add(a, b):
    a.add_(b)


def read_what_was_written(a, b):
    b.copy_(a * 2)
    a.copy_(b + 1)


CONSTANT = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float32)


@pytest.fixture
def in_one_folder(monkeypatch, tmp_path):
    """What torch compiles is kept and found here alone."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))


def compiled_for_any_number(step):
    return AnyNumber(step, two_tensors(5), [True, True]).compiled(inductor)


def two_tensors(n):
    a = torch.arange(3.0 * n, dtype=torch.float32).view(n, 3)
    return a + 1, a * 3


@pytest.mark.slow
@pytest.mark.usefixtures("in_one_folder")
@pytest.mark.filterwarnings("default::DeprecationWarning")  # of what torch imports
@pytest.mark.parametrize(
    ("step", "at_once"),
    [(draw, True), (exchange, True), (add, False), (read_what_was_written, False)],
)
def test_one_compilation_serves_any_number_of_clients(step, at_once, monkeypatch):
    """Without AOTAutograd where a step writes at its end alone; a second time it is found."""
    from torch._inductor import compile_fx

    if at_once:
        monkeypatch.setattr(compile_fx, "compile_fx", lambda *_: pytest.fail("the longer way"))
    counters = torch._dynamo.utils.counters
    counters.clear()
    for _ in range(2):
        run = compiled_for_any_number(step)
        for n in (5, 1, 8):
            found, expected = two_tensors(n), two_tensors(n)
            with torch.no_grad():
                run(*found)
            step(*expected)
            assert all(map(torch.equal, found, expected))
    assert counters["inductor"]["fxgraph_cache_hit"] == 1


class TestNumbersThatCodeCanCount:
    """A step is compiled as for eight clients, and may then count in 32 bits."""

    @pytest.fixture
    def few(self, monkeypatch):
        monkeypatch.setattr(any_number, "MOST_NUMBERS", 50)

    @pytest.mark.usefixtures("few")
    def test_more_clients_are_done_in_parts(self):
        """The largest tensor has six numbers of a client; every fourth row begins at 16 bytes."""

        def step(a, b):
            seen.append(len(a))
            a.copy_(torch.cat([a, b], 1)[:, 1:4])

        seen = []
        traced = AnyNumber(step, two_tensors(5), [True, True])
        run = traced.compiled(None)
        assert run.most == 8 and seen == [any_number.PRIME]
        for n in (1, 8, 9, 40):
            found, expected = two_tensors(n), two_tensors(n)
            run(*found)
            step(*expected)
            assert all(map(torch.equal, found, expected))
        lengths = []
        replace(run, step=lambda a, b: lengths.append((len(a), len(b))))(*two_tensors(20))
        assert lengths == [(8, 8), (8, 8), (4, 4)]

    @pytest.mark.usefixtures("few")
    def test_what_all_share_is_not_divided(self):
        a, shared = two_tensors(9)
        step = AnyNumber(lambda a, shared: a.add_(shared.sum()), (a, shared), [True, False])
        expected = a + shared.sum()
        step.compiled(None)(a, shared)
        assert torch.equal(a, expected)

    def test_a_client_too_large_to_be_one_of_any_number(self, monkeypatch):
        monkeypatch.setattr(any_number, "MOST_NUMBERS", 11)
        with pytest.raises(ValueError, match="too many numbers"):
            AnyNumber(add, two_tensors(5), [True, True])

    @pytest.mark.slow
    @pytest.mark.skipif(torch.cuda.is_available(), reason="it tells torch of another card")
    def test_what_is_compiled_counts_as_far(self):
        """Of the paper's CNN, whose largest tensor are the weights of its first linear layer."""
        pytest.importorskip("triton")
        command = [sys.executable, "-m", "benchmarks.absent_card"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        ours, theirs = map(int, re.findall(r"(?:ours|compiler's) (\d+)", done.stdout))
        assert theirs == (2**31 - 1) // (4096 * 512) and theirs * 0.9 < ours <= theirs

    def test_a_round_in_parts_has_the_bits_of_one_at_once(self, make_setup, monkeypatch, close):
        def last(most):
            monkeypatch.setattr(any_number, "MOST_NUMBERS", most)
            changes = {"engine": on_cpu(Vectorized), "cohort_size": 5, "batch_size": 8}
            *_, result = simulate(make_setup(parse("gcfed"), **changes))
            (program,) = changes["engine"].programs
            return result.server, [step.most for step in program._steps.values()]

        (whole, (at_once,)), (parts, (few,)) = last(2**31), last(4_000)
        assert at_once > 5 and few == 2
        close(parts, whole, tolerance=0)


@pytest.mark.filterwarnings("default::DeprecationWarning")  # of what torch imports
@pytest.mark.parametrize("inner", ["compile_fx_inner", "compile_fx"])
def test_no_order_of_sums_is_chosen_by_time(inner, monkeypatch):
    """For any number of clients at once, or the usual way."""
    from torch._inductor import compile_fx, config

    seen = []
    for name in ("compile_fx_inner", "compile_fx"):
        monkeypatch.setattr(
            compile_fx,
            name,
            lambda *_, n=name, **__: seen.append((n, config.dynamic_scale_rblock)),
        )
    compiled_for_any_number(draw if inner == "compile_fx_inner" else add)
    assert (inner, False) in seen and config.dynamic_scale_rblock


def test_nor_for_one_number(monkeypatch):
    given = {}
    monkeypatch.setattr(torch, "compile", lambda trace, **options: given.update(options))
    inductor(torch.fx.symbolic_trace(nn.Identity()))
    assert given["options"] == {"dynamic_scale_rblock": False} and given["dynamic"] is False


@pytest.mark.slow
@pytest.mark.usefixtures("in_one_folder")
@pytest.mark.filterwarnings("default::DeprecationWarning")  # of what torch imports
def test_what_holds_for_one_number_alone_is_refused_each_time():
    torch.library.define("gcfed_tests::frozen", "(Tensor x) -> Tensor")
    torch.library.impl("gcfed_tests::frozen", "CPU", torch.clone)
    torch.library.register_fake("gcfed_tests::frozen", lambda x: x.new_empty(int(x.shape[0]), 3))

    def step(a, b):
        a.copy_(torch.ops.gcfed_tests.frozen(a) + b)

    for _ in range(2):
        with pytest.raises(RuntimeError, match="for one number of clients alone"):
            compiled_for_any_number(step)


@pytest.mark.slow
@pytest.mark.usefixtures("in_one_folder")
@pytest.mark.filterwarnings("default::DeprecationWarning")  # of what torch imports
def test_operators_are_described_by_their_names(monkeypatch):
    """Their arguments are twice as long with each level of a network whose layers read twice."""
    from torch._inductor import graph
    from torch._inductor.exc import OperatorIssue

    for name in ("level", "last"):
        torch.library.define(f"gcfed_tests::{name}", "(Tensor x, Tensor y) -> Tensor")
        torch.library.impl(f"gcfed_tests::{name}", "CPU", torch.add)
        torch.library.register_fake(f"gcfed_tests::{name}", lambda x, y: torch.empty_like(x))

    def step(a, b):
        for _ in range(5):
            b = torch.ops.gcfed_tests.level(b, b)
        a.copy_(torch.ops.gcfed_tests.last(b, b))

    said, in_full = [], OperatorIssue.operator_str
    monkeypatch.setattr(graph.log, "info", lambda text, *args: said.append(text % args))
    compiled_for_any_number(step)
    told = [text.splitlines() for text in said if "gcfed_tests" in text]
    assert [lines[-1].split(".")[1] for lines in told] == ["level", "last"]
    assert all(len(lines) == 2 for lines in told)
    assert OperatorIssue.operator_str is in_full


def test_what_vmap_does_one_by_one_is_not_traced_for_any_number_of_clients():
    """It would be a million times, one after the other."""

    def step(table, words):
        table.copy_(vmap(one)(words, table))

    def one(words, table):
        return functional.embedding_bag(words, table)

    tables, words = torch.zeros(2, 3, 4), torch.zeros(2, 3, 2, dtype=torch.int64)
    with pytest.raises(RuntimeError, match="fallback"):
        AnyNumber(step, (tables, words), [True, True])


IN_A_NEW_PROCESS = """
import torch
from torch.func import vmap
from torch.nn.functional import conv2d, max_pool2d
from gcfed.engines.any_number import AnyNumber

def pool(a, b):
    a.copy_(vmap(lambda x: max_pool2d(x, 2))(b))

def convolve(a, b):
    a.copy_(vmap(lambda x, w: conv2d(x, w))(b, a))

weights, images = torch.zeros(3, 1, 1, 2, 2), torch.zeros(3, 1, 1, 3, 3)
made = AnyNumber(convolve, (weights, images), [True, True])
made.compiled(None)
try:
    made.compiled(lambda *_: print("compiled"))
except RuntimeError as error:
    print(error)
made = AnyNumber(pool, (weights, torch.zeros(3, 1, 1, 4, 4)), [True, True])
made.compiled(lambda *_: print("compiled"))
"""


def test_convolutions_and_pooling_for_any_number():
    """Torch compiles no convolution for an unknown number of groups; it would say so at its end."""
    command = [sys.executable, "-W", "ignore", "-c", IN_A_NEW_PROCESS]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout.splitlines() == [
        "torch compiles a convolution for one number of channels alone",
        "compiled",
    ]


def test_active_clients_are_a_prefix(make_setup):
    setup = make_setup(parse("fedavg"))
    lineup = Lineup.of([prepare(setup, *start(setup), 0, [0, 7, 4])])
    steps = [len(setup.population.plan(0, i)) for i in (0, 7, 4)]
    assert lineup.steps == sorted(steps, reverse=True)
    assert [lineup.active(t) for t in range(lineup.steps[0] + 1)] == [
        sum(n > t for n in steps) for t in range(lineup.steps[0] + 1)
    ]


def test_a_finished_client_costs_no_step(make_setup, monkeypatch):
    """The vectorized engine maps over as many clients as still have a step to take."""
    sizes = []

    def watch(fn, cohort, *args):
        if len(args) == 2:
            sizes.append(len(cohort.key))
        return over_clients(fn, cohort, *args)

    monkeypatch.setattr("gcfed.engines.graphs.over_clients", watch)
    setup = make_setup(parse("fedavg"), rounds=1, cohort_size=3)
    job = prepare(setup, *start(setup), 0, [0, 7, 4])
    setup.chosen.make()([job])
    assert sum(sizes) == sum(len(plan) for plan in job.batches.plans)


def test_arithmetic_leaves_no_trace():
    def settings():
        return (
            torch.get_float32_matmul_precision(),
            torch.are_deterministic_algorithms_enabled(),
            torch.backends.cudnn.deterministic,
            torch.backends.cudnn.benchmark,
        )

    before = settings()
    with pytest.raises(KeyError), arithmetic("tf32"):
        assert settings() == ("high", True, True, False)
        raise KeyError
    assert settings() == before
    with arithmetic("float32"):
        assert settings()[0] == "highest"


def test_auto_is_tf32_on_a_gpu_alone():
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert (resolve("auto", cpu), resolve("auto", gpu)) == ("float32", "tf32")
    assert resolve("bf16", cpu) == "bf16"


def test_bf16_computes_in_bf16_and_keeps_the_weights(make_setup, run):
    exact = run(parse("fedntd + gcfed"), engine="sequential")
    rough = run(parse("fedntd + gcfed"), engine="sequential", precision="bf16")
    gap = max((exact.server.params[n] - w).abs().max() for n, w in rough.server.params.items())
    assert 1e-6 < gap < 0.1
    assert {w.dtype for w in rough.server.params.values()} == {torch.float64}
    with pytest.raises(ValueError, match="precision is one of auto, float32, tf32, bf16"):
        make_setup(parse("fedavg"), precision="float16")


unsafe_view = torch.ops.aten._unsafe_view


def in_place(traced):
    """The operations of a trace that overwrite what they read."""
    return [str(n.target) for n in traced._run.graph.nodes if n.target in IN_PLACE.values()]


@pytest.mark.parametrize(
    ("fn", "count"),
    [
        (lambda x: (x * 2 - 1) / 3, 2),
        (lambda x: x + 1, 0),  # an argument is the caller's
        (lambda x: [a := x * 2, a - 1][1] * a, 1),  # the product is needed for the difference
        (lambda x: [a := (x * 2).t(), a - a.mean(1, keepdim=True)][1], 1),  # through a view
        (lambda x: [a := x * 2, v := a[0], (a + 1, v * 3)][2], 1),  # the view is read last
        (lambda x: [a := x * 2, (a, a + 1)][1], 0),  # it is a result itself
        (lambda x: [a := x * 2, p := a.split(1)[0], (p + 1, a.sum())][2], 0),  # a piece of it
        (lambda x: [a := x * 2, p := a.chunk(2, 1)[1], (p + 1) * 2][2], 2),  # the last of it
        (lambda x: [a := x * 2, p := a.unbind(0), (p[0] - p[1]) * p[0]][2], 1),
        (lambda x: [a := x * 2, p := a.unsafe_chunk(2)[0], (p + 1, a.sum())][2], 0),
        (lambda x: [a := x * 2, p := a.unsafe_split(1)[0], (p + 1, a.sum())][2], 0),
        (lambda x: [a := x * 2, v := unsafe_view(a, [12]), (v + 1, a.sum())][2], 0),
        (lambda x: x.sum(0).expand(3, 4) - 1, 0),  # one memory for three rows
        (lambda x: [a := x * 2, a - a][1], 0),
        (lambda x: (x > 0) * x, 0),  # of another dtype
        (lambda x: [i := x.long() & 255, i ^ (i >> 4)][1], 2),  # as keys are hashed
        (lambda x: [i := x.long() & 255, (i ^ (i >> 4), i.sum())][1], 1),
        (lambda x: (x > 0) & 3, 0),
    ],
)
def test_what_is_needed_no_more_is_overwritten(fn, count):
    x = torch.arange(12.0).view(3, 4) - 5
    traced = Traced(fn, x, change=reuse_memory)
    for given in (x, x.flip(0) * 7):
        before = given.clone()
        for found, expected in zip(as_tuple(traced(given)), as_tuple(fn(given)), strict=True):
            assert torch.equal(found, expected)
        assert torch.equal(given, before)
    assert len(in_place(traced)) == count


class Gated(nn.Module):
    """Takes its features apart, which backward passes need whole."""

    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(16, 12), nn.Linear(6, 5)

    def forward(self, x):
        p, q = torch.relu(self.fc1(x.flatten(1))).chunk(2, 1)
        return self.fc2((p - 0.5) * q)


def test_every_engine_trains_what_is_taken_apart(on_every_engine):
    on_every_engine(parse("fedavg"), module=Gated(), rounds=2)


def as_tuple(value):
    return value if isinstance(value, tuple) else (value,)


@pytest.mark.parametrize("initialised", [True, False])
def test_the_environment_is_set_while_cuda_computes(initialised, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: initialised)
    monkeypatch.setenv("TORCH_CUDNN_USE_HEURISTIC_MODE_B", "0")  # the user's own stays
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    before = dict(os.environ)
    with pytest.raises(KeyError), arithmetic("tf32"):
        inside = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"} if initialised else {}
        assert dict(os.environ) == before | inside
        raise KeyError
    assert dict(os.environ) == before
