"""Kernels compiled ahead by other processes, for a kind of GPU that need not be there."""

import functools
import subprocess
import sys
import threading
import time

import pytest
import torch
from leftovers import children, nothing_left
from running import tiny
from torch import nn
from torch.func import functional_call, grad, vmap

pytest.importorskip("triton")

from gcfed import Fused, Sequential
from gcfed.caches import CompiledNote, nothing_is_compiled
from gcfed.config.build import build
from gcfed.core.torch_internals import make_fx, without_memory
from gcfed.engines.any_number import PRIME, InParts
from gcfed.engines.recorder import CudaRecorder, prepare_to_compile
from gcfed.kernels import precompiling
from gcfed.kernels.fusing import fuse_layers
from gcfed.kernels.launching import noted_launches
from gcfed.kernels.operators import multiply
from gcfed.kernels.precompiling import kernels_compiled, launches_of, start_compiling

FINDER = """
import sys
import torch
import triton
from gcfed.kernels import norm_tiles, tiles, weight_tiles
from gcfed.kernels.compile_program import compile_all

compile_all(("cuda", 90, 32), triton.runtime.cache.triton_key(), [])
found = []
triton.knobs.compilation.listener = lambda *, cache_hit, **_: found.append(cache_hit)
for module, name, args, options in {launches}:
    tensors = [torch.empty(64, dtype=getattr(torch, a)) if type(a) is str else a for a in args]
    getattr(sys.modules[module], name).warmup(*tensors, grid=(1,), **dict(options))
print(found)
"""
"""What a launch does before it runs a kernel, on real tensors: was the kernel found on the disk?"""


class Small(nn.Module):
    """A layer of each kind."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(4, 8)
        self.fc = nn.Linear(32, 5)

    def forward(self, x):
        x = nn.functional.max_pool2d(torch.relu(self.conv(x)), 2)
        return self.fc(torch.relu(self.norm(x)).flatten(1))


@pytest.fixture(autouse=True)
def compiler(monkeypatch, tmp_path):
    """In new processes Triton's compiler in place of its interpreter, and a folder of its own."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(precompiling, "current_target", lambda: ("cuda", 90, 32))


def gradients(clients):
    """The gradients of clients' networks, as a function and its arguments."""
    net, _ = fuse_layers(Small())
    x = torch.zeros(clients, 6, 3, 4, 4, dtype=torch.bfloat16)
    weights = {
        n: torch.zeros(clients, *p.shape, dtype=torch.float32) for n, p in net.named_parameters()
    }
    return vmap(grad(lambda p, x: functional_call(net, p, (x,)).float().sum())), (weights, x)


@pytest.fixture
def trace():
    with without_memory():
        fn, (weights, x) = gradients(PRIME)
        return make_fx(fn)(weights, x)


@pytest.fixture
def started():
    """The processes that were started since, by whoever; other tests may have left some."""
    before = set(children())
    return lambda: set(children()) - before


def with_clients(launches, clients):
    return [
        (module, name, tuple(clients if a == PRIME else a for a in args), options)
        for module, name, args, options in launches
    ]


@pytest.mark.parametrize("clients", [2, 7])
def test_launches_are_known_from_a_trace(trace, clients):
    """Those of any number of clients, but for the number itself, which no kernel depends on."""
    fn, arguments = gradients(clients)
    with noted_launches() as notes:
        fn(*arguments)
    expected = with_clients(launches_of(trace), clients)
    assert set(notes) == set(expected) and len(expected) == 7
    assert {name for _, name, *_ in notes} == {
        "convolve", "convolution_weights", "normalize", "normalize_back",
        "multiply", "multiply_back", "linear_weights",
    }  # fmt: skip


def found(launches):
    code = FINDER.format(launches=launches)
    command = [sys.executable, "-W", "ignore", "-c", code]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


@pytest.mark.slow
def test_a_launch_finds_what_processes_compiled(trace, tmp_path):
    with nothing_left(), kernels_compiled(trace):
        assert not any(tmp_path.glob("*/*.cubin"))
    launches = with_clients(launches_of(trace), 16)
    module, name, args, options = launches[0]
    other = (module, name, args, (("num_warps", 2), *options[1:]))
    assert found([*launches, other]) == str([True] * 7 + [False])


@pytest.mark.slow
def test_evaluation_finds_the_products_of_training():
    """Batches are larger there, and there is one model."""

    def launched(clients, batch):
        x = torch.zeros(clients, batch, 48, dtype=torch.bfloat16)
        w = torch.zeros(clients, 5, 48, dtype=torch.float32)
        with noted_launches() as notes:
            multiply(x, w)
        return notes

    start_compiling(launched(3, 50), processes := [])
    for process in processes:
        process.join()
    assert found(launched(1, 2000)) == "[True]"


@pytest.mark.slow
def test_what_was_compiled_once_is_left_to_triton(trace, started, monkeypatch, tmp_path):
    """A second time no process is started, but for another device, other kernels or no files."""
    with nothing_left(), kernels_compiled(trace):
        assert started()
    files = sorted(tmp_path.rglob("*"))
    assert not list(tmp_path.rglob("*tmp*"))
    with nothing_left(), kernels_compiled(trace):
        assert not started()
    assert sorted(tmp_path.rglob("*")) == files
    monkeypatch.setattr(precompiling, "CODE", "")
    with monkeypatch.context() as changed, kernels_compiled(trace):
        assert not started()
        changed.setattr(precompiling, "current_target", lambda: ("cuda", 80, 32))
        with kernels_compiled(trace):
            assert started()
    with monkeypatch.context() as changed:
        changed.setattr("inspect.getsource", lambda module: "of kernels that are new")
        with kernels_compiled(trace):
            assert started()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "another"))
    with kernels_compiled(trace):
        assert started()


@pytest.mark.parametrize(
    "code",
    [
        "import os; os._exit(3)",
        "import os; os.kill(os.getpid(), 9)",
        precompiling.CODE.replace("{target}", "('no such kind', 0, 0)"),
    ],
)
def test_a_process_that_fails_is_no_matter(trace, monkeypatch, code, capfd):
    monkeypatch.setattr(precompiling, "CODE", code)
    with nothing_left(), kernels_compiled(trace):
        pass
    assert capfd.readouterr() == ("", "")


def test_a_triton_that_is_not_as_expected_is_no_matter(trace, started, monkeypatch):
    monkeypatch.setattr(precompiling, "current_target", lambda: 1 / 0)
    with nothing_left(), kernels_compiled(trace):
        assert not started()
    monkeypatch.setattr(precompiling, "launches_of", lambda trace: 1 / 0)
    with nothing_left(), kernels_compiled(trace):
        assert not started()


def test_triton_is_hashed_once_and_beside(monkeypatch):
    from triton.runtime import cache

    made = []

    def slow():
        made.append(threading.current_thread())
        time.sleep(0.3)
        return "hash"

    monkeypatch.setattr(cache, "triton_key", functools.cache(slow))
    precompiling.hash_triton.cache_clear()
    assert precompiling.hash_triton().is_alive()
    assert precompiling.triton_version() == "hash"
    assert len(made) == 1 and made[0] is not threading.current_thread()
    precompiling.hash_triton.cache_clear()


def test_compiling_is_prepared_before_the_first_round(monkeypatch):
    began, asked = [], []
    monkeypatch.setattr("gcfed.engines.graphs.hash_triton", lambda: began.append("triton"))
    monkeypatch.setattr("gcfed.engines.graphs.prepare_to_compile", began.append)
    cuda = torch.device("cuda")
    for engine, device in ((Fused(), "cpu"), (Sequential(), "cuda"), (Fused(), "cuda")):
        assert not began
        engine.prepare(torch.device(device))
    assert began == ["triton", cuda]
    monkeypatch.setattr(Sequential, "prepare", lambda engine, device: asked.append(device))
    build(tiny())
    assert asked == [torch.device("cpu")]


@pytest.mark.parametrize("patience", [60.0, 0.1])
def test_nobody_waits_for_ever(trace, started, monkeypatch, patience):
    """Processes are ended when the compilation beside them fails, and when they take too long."""
    monkeypatch.setattr(precompiling, "CODE", "import time; time.sleep(60)")
    monkeypatch.setattr(precompiling, "PATIENCE", patience)
    began = time.monotonic()
    try:
        with nothing_left(), kernels_compiled(trace):
            assert started()
            if patience > 1:
                raise InterruptedError
    except InterruptedError:
        assert not started()
    assert time.monotonic() - began < 30


@pytest.fixture
def compiled_code(tmp_path, monkeypatch):
    """An empty folder for what torch compiles."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))


def test_torchs_processes_are_started_ahead_where_nothing_was_compiled(compiled_code, monkeypatch):
    began = []
    monkeypatch.setattr("gcfed.engines.recorder.start_compiler", lambda: began.append(1))
    monkeypatch.setattr("gcfed.engines.recorder._keep_compiled_code", lambda _: None)
    prepare = prepare_to_compile.__wrapped__  # which does so once in a process
    prepare(torch.device("cuda"))
    assert began == [1]
    CompiledNote("a step").write()
    prepare(torch.device("cuda"))
    assert began == [1]


def test_torchs_processes_are_started_where_a_step_is_new(compiled_code, monkeypatch):
    from torch._inductor import config

    said = []

    def inductor(trace, examples):
        said.append("alone" if config.compile_threads == 1 else "by processes")
        if fails:
            raise ZeroDivisionError
        return trace

    monkeypatch.setattr(config, "compile_threads", 2)
    monkeypatch.setattr("gcfed.engines.recorder.start_compiler", lambda: said.append("start"))
    monkeypatch.setattr("gcfed.engines.recorder.inductor", inductor)
    recorder = CudaRecorder(torch.device("cuda"))
    sine, cosine, tangent = (make_fx(fn)(torch.ones(2)) for fn in (torch.sin, torch.cos, torch.tan))
    new, known, fails = ["start", "by processes"], ["alone"], False
    for each, expected in ((sine, new), (sine, known), (cosine, new), (sine, known)):
        assert recorder.compile(each, [torch.ones(2)]) is each
        assert said == expected and config.compile_threads == 2
        said.clear()
    fails = True
    for _ in range(2):  # what failed was not compiled
        with pytest.raises(ZeroDivisionError):
            recorder.compile(tangent, [torch.ones(2)])
        assert said == new
        said.clear()


def test_torchs_processes_are_started_before_a_new_step_is_traced(compiled_code, monkeypatch):
    began, x = [], torch.ones(2, 3)
    monkeypatch.setattr("gcfed.engines.recorder.start_compiler", lambda: began.append(1))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a card")
    recorder = CudaRecorder(torch.device("cuda"))

    def place():
        return recorder.place(lambda x: x.mul_(2), (x,), [True])

    for count in (1, 2):
        found = place()
        assert len(began) == count and found.is_new
    found.kept(InParts(abs, [True], 8))  # which torch's compiler cannot give out
    assert not place().is_new and len(began) == 2
    assert recorder.place(lambda x: 1 / 0, (x,), [True]) is None and len(began) == 2


def test_what_torch_compiles_when_it_is_first_called_is_not_noted(compiled_code, monkeypatch):
    began = []
    monkeypatch.setattr("gcfed.engines.recorder.start_compiler", lambda: began.append(1))
    monkeypatch.setattr("gcfed.engines.recorder.inductor", lambda trace, examples: trace)
    sine = make_fx(torch.sin)(torch.ones(2))
    for count in (1, 2):
        CudaRecorder(torch.device("cuda")).compile(sine, None)
        assert len(began) == count and nothing_is_compiled()


def test_kernels_are_compiled_beside_the_step(trace, started, compiled_code, monkeypatch):
    during = []

    def inductor(trace, examples):
        during.append(started())
        return trace

    monkeypatch.setattr("gcfed.engines.recorder.start_compiler", lambda: None)
    monkeypatch.setattr("gcfed.engines.recorder.inductor", inductor)
    monkeypatch.setattr(precompiling, "CODE", "import time; time.sleep(0.1)")
    plain = make_fx(torch.sin)(torch.ones(2))
    recorder = CudaRecorder(torch.device("cuda"))
    precompiling.hash_triton().join()
    for each in (trace, plain):
        with nothing_left():
            recorder.compile(each, None)
    assert len(during[0]) > 0 and not during[1]
