"""How numbers are multiplied: precision, and the same bits every time."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, NamedTuple

import torch

from gcfed.core.torch_compiler import be_deterministic
from gcfed.core.torch_internals import fills_new_memory, set_fills_new_memory

Precision = Literal["auto", "float32", "tf32", "bf16"]

FOR_CUDA = {
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # without it cuBLAS may split sums by chance
    "TORCH_CUDNN_USE_HEURISTIC_MODE_B": "1",  # cuDNN models the GPU better, still without timing
}
"""Variables of the environment that CUDA's libraries read when they are first used."""


def resolve(precision: Precision, device: torch.device) -> Precision:
    """``auto`` is TF32 on a GPU, and float32 elsewhere."""
    if precision == "auto":
        return "tf32" if device.type == "cuda" else "float32"
    return precision


class TorchSettings(NamedTuple):
    """The global settings of torch that change bits on a CPU."""

    matmul: str
    deterministic: int  # torch's debug mode: 1 warns of what is not, 2 refuses it
    fills_new_memory: bool
    dtype: torch.dtype

    @classmethod
    def current(cls) -> "TorchSettings":
        return cls(
            torch.get_float32_matmul_precision(),
            torch.get_deterministic_debug_mode(),
            fills_new_memory(),
            torch.get_default_dtype(),
        )

    @property
    def precision(self) -> Precision:
        """The argument with which `arithmetic` is as precise in another process."""
        return "float32" if self.matmul == "highest" else "tf32"

    def apply(self) -> None:
        torch.set_float32_matmul_precision(self.matmul)
        deterministic, warn_only = self.deterministic > 0, self.deterministic == 1
        be_deterministic(deterministic, warn_only=warn_only)
        set_fills_new_memory(self.fills_new_memory)
        torch.set_default_dtype(self.dtype)


@contextmanager
def arithmetic(precision: Precision) -> Iterator[None]:
    """Inside, products are as precise as asked, and no kernel is chosen by time or sums by chance.

    Models in another dtype than float32 are left as they are.
    """
    fast, before = precision != "float32", TorchSettings.current()
    inside = TorchSettings(
        matmul="high" if fast else "highest",
        deterministic=2,
        fills_new_memory=False,  # nothing reads it
        dtype=before.dtype,
    )
    cudnn = torch.backends.cudnn.flags(
        enabled=True, benchmark=False, deterministic=True, allow_tf32=fast
    )
    try:
        inside.apply()
        with _environment(), cudnn:
            yield
    finally:
        before.apply()


@contextmanager
def _environment() -> Iterator[None]:
    """Where this process uses CUDA, set what its libraries read and the user has not set."""
    used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    missing = FOR_CUDA.keys() - os.environ.keys() if used else set()
    os.environ.update({name: FOR_CUDA[name] for name in missing})
    try:
        yield
    finally:
        for name in missing:
            os.environ.pop(name, None)
