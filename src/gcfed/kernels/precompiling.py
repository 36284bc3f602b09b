"""Kernels compiled by other processes, side by side, while the step around them is compiled.

Triton compiles a kernel when it is first launched, one after the other; what it then finds in its
folder on the disk it need not compile.  What was compiled so once is noted there, and no process is
started for it again; where a note is wrong, Triton compiles at the launch.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from threading import Thread
from typing import Any

from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from gcfed.core.torch_internals import is_operation
from gcfed.cpu import available_cores
from gcfed.kernels.compile_program import Target, is_noted
from gcfed.kernels.launching import NAMESPACE, Launch, noted_launches
from gcfed.processes import FreshProcess

CODE = """
from gcfed.kernels.compile_program import compile_all
compile_all({target}, {version!r}, {launches})
"""
PATIENCE = 120.0  # seconds; what is not compiled then is compiled when it is launched


@contextmanager
def kernels_compiled(trace: GraphModule) -> Iterator[None]:
    """Inside, processes compile the kernels that a trace will launch; afterwards all have ended."""
    processes: list[FreshProcess] = []
    try:
        with suppress(Exception):  # Triton's inner parts may change: then it compiles at a launch
            start_compiling(launches_of(trace), processes)
        yield
        until = time.monotonic() + PATIENCE
        for process in processes:
            process.join(max(0.0, until - time.monotonic()))
    finally:
        for process in processes:
            process.kill()
            process.join()


def current_target() -> Target:
    """The device in use, as Triton names it."""
    from triton.runtime import driver

    target = driver.active.get_current_target()
    return target.backend, target.arch, target.warp_size


def triton_version() -> str:
    """What Triton tells its versions apart by."""
    from triton.runtime.cache import triton_key

    hash_triton().join()
    return str(triton_key())


@cache
def hash_triton() -> Thread:
    """Begin to hash Triton's files, which takes half a second, beside what comes before."""
    from triton.runtime.cache import triton_key  # keeps what it gives

    thread = Thread(target=triton_key, daemon=True)
    thread.start()
    return thread


def start_compiling(launches: Sequence[Launch], processes: list[FreshProcess]) -> None:
    """Add to the list as many processes as there are cores, or launches to compile for."""
    if not launches:
        return
    target, version = current_target(), triton_version()
    new = [each for each in launches if not is_noted(target, version, each)]
    count = min(available_cores(), len(new))
    for i in range(count):
        share = new[i::count]
        code = CODE.format(target=target, version=version, launches=share)
        processes.append(FreshProcess(code))


def launches_of(trace: GraphModule) -> list[Launch]:
    """The kernels that the operators in a trace will launch, each once."""
    calls = [node for node in trace.graph.nodes if _is_ours(node)]
    if not calls:
        return []
    from gcfed.kernels.operators import IMPLEMENTATIONS  # needs Triton

    with noted_launches() as notes:
        for node in calls:
            IMPLEMENTATIONS[node.target](*map_arg(node.args, lambda n: n.meta["val"]))
    return list(dict.fromkeys(notes))


def _is_ours(node: Node) -> bool:
    target: Any = node.target
    return is_operation(target) and target.namespace == NAMESPACE
