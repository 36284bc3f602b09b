"""One place for the launch of a kernel, so that it can be noted before it takes place."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import Tensor

NAMESPACE = "gcfed"
"""Where torch has our operators."""

Launch = tuple[str, str, tuple[Any, ...], tuple[tuple[str, int], ...]]
"""All that Triton compiles a kernel by: its module and name, its arguments, each tensor by the name
of its dtype, and options such as the number of warps."""

_NOTES: ContextVar[list[Launch] | None] = ContextVar("launches that are noted", default=None)


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **options: int) -> None:
    """Run a kernel on a grid of programs."""
    notes = _NOTES.get()
    if notes is None:
        kernel[grid](*args, **options)
        return
    plain = tuple(str(a.dtype).split(".")[-1] if isinstance(a, Tensor) else a for a in args)
    function = kernel.fn
    notes.append((function.__module__, function.__name__, plain, tuple(options.items())))


@contextmanager
def noted_launches() -> Iterator[list[Launch]]:
    """Inside, kernels are not launched but noted in the list that is given."""
    notes: list[Launch] = []
    token = _NOTES.set(notes)
    try:
        yield notes
    finally:
        _NOTES.reset(token)
