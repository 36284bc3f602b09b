"""How numbers are multiplied: precision, and the same bits every time."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, cast

import torch

# Read by cuBLAS and by torch when they first need them.  Without the first, sums may be split by
# chance; the second lets cuDNN choose its kernels by a better model of the GPU, still without
# timing them.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
os.environ.setdefault("TORCH_CUDNN_USE_HEURISTIC_MODE_B", "1")

Precision = Literal["auto", "float32", "tf32", "bf16"]


def resolve(precision: Precision, device: torch.device) -> Precision:
    """``auto`` is TF32 on a GPU, and float32 elsewhere."""
    if precision == "auto":
        return "tf32" if device.type == "cuda" else "float32"
    return precision


@contextmanager
def arithmetic(precision: Precision) -> Iterator[None]:
    """Inside, products are as precise as asked, and no kernel is chosen by time or sums by chance.

    Models in another dtype than float32 are left as they are.
    """
    fast = precision != "float32"
    matmul = torch.get_float32_matmul_precision()
    strict = torch.are_deterministic_algorithms_enabled()
    memory = cast(Any, torch.utils.deterministic)  # a module whose type hides its attribute
    fill = memory.fill_uninitialized_memory
    torch.set_float32_matmul_precision("high" if fast else "highest")
    torch.use_deterministic_algorithms(True)
    memory.fill_uninitialized_memory = False  # nothing reads it
    cudnn = torch.backends.cudnn.flags(
        enabled=True, benchmark=False, deterministic=True, allow_tf32=fast
    )
    try:
        with cudnn:
            yield
    finally:
        torch.set_float32_matmul_precision(matmul)
        torch.use_deterministic_algorithms(strict)
        memory.fill_uninitialized_memory = fill
