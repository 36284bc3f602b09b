"""What torch's compiler makes of a step for an H200, on a machine that has none.

    python -m benchmarks.absent_card --models cnn,resnet18 --kernels 12

Torch is told of such a card, and its compiler writes a step's kernels in Triton, which nobody runs.
What is shown: for how many clients at once the code is right (it may count in 32 bits), of which
ours must be the smaller number; how often kernels are launched; and the bytes that those by torch
move, as time at the speed of a copy.  Our own operators are launched beside these, not shown.
"""

import argparse
import inspect
import re
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import sympy
import torch
import torch._inductor.config as settings
import triton
from torch._dynamo import device_interface
from torch._inductor import async_compile, codecache
from torch._inductor.fx_passes import joint_graph, post_grad
from torch.fx.node import map_aggregate
from triton.backends.compiler import GPUTarget

from benchmarks.workloads import Workload, load
from gcfed import start
from gcfed.core import torch_compiler
from gcfed.core.torch_compiler import compile_for_any_number, unknown_number
from gcfed.engines.any_number import USUAL, AnyNumber
from gcfed.engines.lineup import Lineup
from gcfed.engines.vectorized import VectorProgram, _with_operators
from gcfed.kernels import fitting
from gcfed.simulation.round import prepare

COPY = 4.3e9  # bytes a millisecond, as a copy on this card

CARD = SimpleNamespace(
    **{"name": "NVIDIA H200", "major": 9, "minor": 0, "multi_processor_count": 132},
    **{"total_memory": 141 << 30, "L2_cache_size": 50 << 20, "regs_per_multiprocessor": 65536},
    **{"max_threads_per_multi_processor": 2048, "max_threads_per_block": 1024, "warp_size": 32},
    **{"shared_memory_per_block": 48 << 10, "shared_memory_per_block_optin": 227 << 10},
)
TRITON = SimpleNamespace(
    get_current_target=lambda: GPUTarget("cuda", 90, 32), get_current_device=lambda: 0
)


class Recorder:
    """Records nothing: only the trace of a program is wanted."""

    compile = None

    def place(self, *_: object) -> None:
        return None


def pretend() -> dict[str, str]:
    """Tell torch of the card; what is given fills with the source of each kernel by its name."""
    answers: dict[str, Any] = {
        **{"is_available": True, "device_count": 1, "current_device": 0, "_lazy_init": None},
        **{"get_device_properties": CARD, "get_device_capability": (9, 0), "synchronize": None},
        **{"get_device_name": CARD.name, "get_rng_state": torch.zeros(16, dtype=torch.uint8)},
        **{"set_rng_state": None, "_exchange_device": 0, "_maybe_exchange_device": 0},
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, lambda *_, answer=answer, **__: answer)
    for interface in (device_interface.CudaInterface, device_interface.CudaInterface.Worker):
        interface.get_device_properties = staticmethod(lambda *_: CARD)
    torch._C._cuda_getCurrentRawStream = lambda *_: 0
    triton.runtime.driver.set_active(TRITON)
    for passes in (joint_graph, post_grad):  # patterns of which examples would be run on the card
        passes.lazy_init = lambda *_, **__: None
    joint_graph.constant_fold_uniform_value = lambda graph: None  # which runs on it, too
    fitting._may_stand_in = lambda task: True
    torch_compiler.suppress = lambda *_: nullcontext()  # what goes wrong is shown
    settings.compile_threads, settings.fx_graph_cache, settings.profile_bandwidth = 1, False, True
    sources: dict[str, str] = {}

    def note(_: object, name: str, source: str, **__: object) -> object:
        sources[name] = source
        return None

    async_compile.AsyncCompile.triton = note
    return sources


def traced(workload: Workload, algorithm: str, precision: str) -> AnyNumber:
    """The step of a workload, as it is given to the compiler."""
    setup = workload.setup(algorithm, load("noise"), "sequential", precision)
    setup = replace(setup, schedule=replace(setup.schedule, epochs=None, steps=1))
    at, plans = start(setup), setup.population.draw(0).plans
    job = prepare(setup, at.server, at.clients, 0, list(plans), list(plans.values()))
    found = VectorProgram(Lineup.of([job]).filled(), Recorder(), _with_operators)._any_number
    assert found is not None
    return found


def moved(value: Any) -> Any:
    return torch.device("cuda", 0) if value == torch.device("cpu") else value


def limit_of_compiled(step: AnyNumber) -> int:
    """Compile a step; what is given is the most clients that the compiler takes for granted."""
    for node in step._trace.graph.nodes:
        if node.target is not torch.ops.aten.scalar_tensor.default:
            node.args, node.kwargs = (
                map_aggregate(each, moved) for each in (node.args, node.kwargs)
            )
    step._trace.recompile()
    with unknown_number(USUAL) as clients:
        examples = [
            torch.empty((clients, *x.shape[1:]) if own else x.shape, dtype=x.dtype, device="cuda")
            for x, own in zip(step._leaves, step._mapped, strict=True)
        ]
    compile_for_any_number(step._trace, examples)
    guards = [guard.expr for guard in examples[0].fake_mode.shape_env.guards]
    low, high = USUAL, 2**31

    def holds(number: int) -> bool:
        return all(
            guard.subs(dict.fromkeys(guard.free_symbols, number)) == sympy.true for guard in guards
        )

    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def show_kernels(sources: dict[str, str], clients: int, count: int) -> None:
    """The kernels of the step compiled last, by the time that their bytes take."""
    wrapper = inspect.getsource(codecache.PyCodeCache.modules[-1])
    rows = []
    for name, source in sources.items():
        found = re.search(r"'kernel_num_gb': ([\d.e-]+)", source)
        size = float(found[1]) * 1e9 * clients / USUAL if found else 0.0
        rows.append((len(re.findall(rf"\b{name}\.run\(", wrapper)), size / COPY * 1e3, name))
    own = len(re.findall(r"torch\.ops\.gcfed\.\w+\.default\(", wrapper))
    total, launches = sum(n * us for n, us, _ in rows), sum(n for n, _, _ in rows)
    print(f"  {own} operators of ours; torch's: {launches} launches, {total:.0f} us by their bytes")
    for n, us, name in sorted(rows, key=lambda row: -row[0] * row[1])[:count]:
        *_, written = wrapper[: wrapper.index(f"{name} = ")].split("# Topologically")
        done = dict.fromkeys(re.findall(r"target=torch\.ops\.\w+\.(\w+)", written))
        print(f"  {n * us:7.1f} us = {n:2} x {us:6.1f}  {' '.join(done)[:80]}")


def main() -> None:
    raw = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--models", default="cnn")
    parser.add_argument("--algorithms", default="gcfed")
    parser.add_argument("--clients", type=int, default=5, help="for which times are shown")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--kernels", type=int, default=0, help="how many to show")
    options = parser.parse_args()
    sources = pretend()
    for model in options.models.split(","):
        for algorithm in options.algorithms.split(","):
            sources.clear()
            step = traced(
                Workload("step", model, "noise", 2, 2, 50, 1), algorithm, options.precision
            )
            ours, theirs = step._most, limit_of_compiled(step)
            print(f"{model} {algorithm}: ours {ours}, the compiler's {theirs} clients at once")
            if options.kernels:
                show_kernels(sources, options.clients, options.kernels)


if __name__ == "__main__":
    main()
