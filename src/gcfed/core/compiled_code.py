"""What torch's compiler made of a step as plain data, and as a function again without the compiler.

Its code is a file of Python that allocates memory and launches kernels.  To import the compiler,
only so that this file finds the names it asks for, takes longer than anything else in a start.
"""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

PRODUCTS = frozenset({"mm", "bmm", "addmm", "baddbmm"})
"""What the code may ask of torch's own products; each is the function of that name in torch."""

ALIGNED = 16
"""Kernels are compiled for tensors that begin at a multiple of so many bytes."""


class KernelCode(NamedTuple):
    """A kernel in a file of machine code, and Python's code of a function ``run`` to launch it."""

    file: str
    name: str
    shared: int
    launcher: str


class StepCode(NamedTuple):
    """All that a compiled step is."""

    source: str
    kernels: dict[str, KernelCode]


class CompiledStep:
    """A step by torch's compiler, which can give out its code once it was run."""

    def __init__(self, compiled: Any) -> None:
        self._compiled = compiled

    def __call__(self, *tensors: Tensor) -> Any:
        return self._compiled(list(tensors))

    def code(self) -> StepCode:
        """Raises an error where the code needs more than its kernels and torch's products."""
        from torch._inductor.codecache import PyCodeCache

        source, more = self._compiled.source_code, self._compiled.constants
        if more or set(re.findall(r"extern_kernels\.(\w+)", source)) - PRODUCTS:
            raise ValueError("the code has constants, or functions that only the compiler knows")
        (module,) = (m for m in PyCodeCache.modules if inspect.getsource(m) == source)
        names = re.findall(r"^(\w+) = async_compile\.", source, flags=re.MULTILINE)
        return StepCode(source, {name: _kernel_code(getattr(module, name)) for name in names})


def _kernel_code(tuner: Any) -> KernelCode:
    """The kernel that the compiler settled on."""
    from torch._inductor.runtime.cache_dir_utils import triton_cache_dir
    from torch._inductor.runtime.triton_heuristics import GridExpr

    (chosen,) = tuner.launchers
    (made,) = (each for each in tuner.compile_results if each.config is chosen.config)
    kernel, grid = made.kernel, GridExpr.from_meta(made.inductor_meta, made.config)
    _, parameters, missing = made._get_arg_lists(kernel.arg_names, kernel.declared_constexprs)
    passed = [
        name
        for i, name in enumerate(kernel.arg_names)
        if i not in kernel.full_constexprs and name not in missing
    ]
    scratch = int(kernel.has_global_scratch) + int(kernel.has_profile_scratch)
    types = kernel.arg_tys + "O" * scratch
    given = "".join(f"{name}, " for name in passed + ["None"] * scratch)
    fixed = f"{kernel.num_warps}, {kernel.shared}, {types!r}"
    lines = [
        f"def run({', '.join(parameters)}, stream):",
        *grid.prefix,
        f"grid = {grid.x_grid}, {grid.y_grid}, {grid.z_grid}",
        f"launch(function, *grid, {fixed}, ({given}), stream)",
    ]
    device = made.compile_meta.get("device") or 0
    file = f"{triton_cache_dir(device)}/{chosen.cache_hash}/{kernel.name}.cubin"
    return KernelCode(file, kernel.name, kernel.shared, "\n    ".join(lines))


def loaded(code: StepCode, device: int) -> Callable[..., Any]:
    """A step as its compiler had it, its kernels loaded on a GPU."""
    kernels = {name: _Kernel(kernel, device) for name, kernel in code.kernels.items()}
    compiler = SimpleNamespace(triton=lambda name, *_, **__: kernels[name], wait=lambda _: None)
    scope: dict[str, Any] = {
        "__name__": "gcfed_kept_step",
        "AsyncCompile": lambda: compiler,
        "extern_kernels": SimpleNamespace(**{name: getattr(torch, name) for name in PRODUCTS}),
        "maybe_profile": _no_profile,
    }
    # those of the kernels' own sources go too, which nobody reads
    plain = re.sub(r"^from torch\._inductor.*$", "", code.source, flags=re.MULTILINE)
    exec(compile(plain, "<a kept step>", "exec"), scope)
    call = scope["call"]
    return lambda *tensors: call(list(tensors))


def _no_profile(*_: object) -> AbstractContextManager[None]:
    return nullcontext()


class _Kernel:
    """A kernel, loaded."""

    def __init__(self, code: KernelCode, device: int) -> None:
        cuda = cast(Any, torch._C)._StaticCudaLauncher
        *_, function, _, _ = cuda._load_kernel(code.file, code.name, code.shared, device)
        scope: dict[str, Any] = {"function": function, "launch": cuda._launch_kernel}
        exec(code.launcher, scope)
        self.run: Callable[..., None] = scope["run"]


def as_plain(code: StepCode) -> dict[str, Any]:
    """The code in a form that JSON has."""
    return {"source": code.source, "kernels": {k: v._asdict() for k, v in code.kernels.items()}}


def from_plain(plain: Mapping[str, Any]) -> StepCode:
    return StepCode(plain["source"], {k: KernelCode(**v) for k, v in plain["kernels"].items()})


def are_aligned(tensors: Sequence[Tensor]) -> bool:
    """Whether tensors begin at addresses that the kernels are compiled for."""
    return all(x.data_ptr() % ALIGNED == 0 for x in tensors)
