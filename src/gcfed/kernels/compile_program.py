"""What a process does that compiles kernels for another; it imports Triton and not torch."""

import hashlib
import inspect
import warnings
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from types import SimpleNamespace
from typing import Any

Target = tuple[str, int | str, int]
"""A kind of device as Triton names it: its backend, its architecture, the threads of a warp."""

NOTED = "compiled"
"""The name of a note's file."""


def compile_all(target: Target, version: str, launches: Sequence[tuple[Any, ...]]) -> None:
    """Compile what launches will need, for another process to find in Triton's folder.

    The ``version`` of Triton is the hash of its files, which takes as long to make as a few kernels
    to compile.  What cannot be compiled here is left to the other process.
    """
    from triton.backends.compiler import GPUTarget
    from triton.runtime import cache, driver

    warnings.simplefilter("ignore")  # the other process gives them
    cache.triton_key = lambda: version
    device = GPUTarget(*target)
    driver.set_active(
        SimpleNamespace(
            get_current_target=lambda: device,
            get_current_device=lambda: 0,
            get_current_stream=lambda _: 0,
        )
    )
    for launch in launches:
        with suppress(Exception):
            _build_launcher(compiled(*launch))
            _note(target, version, launch).put("", NOTED, binary=False)


def is_noted(target: Target, version: str, launch: tuple[Any, ...]) -> bool:
    """Whether a process of `compile_all` has noted that it compiled what a launch needs."""
    return _note(target, version, launch).get_file(NOTED) is not None


def _note(target: Target, version: str, launch: tuple[Any, ...]) -> Any:
    """The place of a note in Triton's folder, so that both are deleted together."""
    from triton.runtime.cache import get_cache_manager

    source = inspect.getsource(import_module(launch[0]))
    known = repr((target, version, launch, source))
    return get_cache_manager(hashlib.sha256(known.encode()).hexdigest())


def compiled(
    module: str, name: str, args: Sequence[Any], options: Sequence[tuple[str, int]]
) -> Any:
    """A kernel as it will be launched on the device that is set, its tensors well aligned."""
    import triton.language as tl
    from triton.runtime.jit import MockTensor

    kernel = getattr(import_module(module), name)
    mocked = [MockTensor(getattr(tl, a)) if isinstance(a, str) else a for a in args]
    return kernel.warmup(*mocked, grid=(1,), **dict(options))


def _build_launcher(kernel: Any) -> None:
    """Compile the C code that launches a kernel, where Triton's version has such code."""
    with suppress(Exception):
        from triton.backends.nvidia.driver import CudaLauncher

        CudaLauncher(kernel.src, kernel.metadata)
