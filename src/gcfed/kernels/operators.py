"""Layers with a client axis as operators of torch, on the Triton kernels of `tiles`.

Each takes tensors whose first axis is the client's.  Mapped by ``vmap``, the mapped axis and that
one become one, so that a layer written for one client runs for all of them at once.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from triton.runtime import driver

from gcfed.kernels import tiles
from gcfed.kernels.launching import NAMESPACE, launch
from gcfed.kernels.tile_sizes import back_tile, convolve_tile, power

IMPLEMENTATIONS: dict[Any, Callable[..., Any]] = {}
"""The function that does each operator."""


def operator(fake: Callable[..., Any], out_axes: tuple[int, ...]) -> Callable[..., Any]:
    """Make an operator of a function of client-first tensors.

    ``fake`` says the shapes of what it gives, and ``out_axes`` where their client axis is.
    """

    def make(fn: Callable[..., Any]) -> Any:
        name = f"{NAMESPACE}::{fn.__name__}"
        torch.library.define(name, torch.library.infer_schema(fn, mutates_args=()))
        for device in ("CPU", "CUDA"):
            torch.library.impl(name, device, _where_it_lies(fn))
        torch.library.register_fake(name, fake)
        call = getattr(getattr(torch.ops, NAMESPACE), fn.__name__).default
        torch.library.register_vmap(name, _over_clients(call, out_axes))
        IMPLEMENTATIONS[call] = fn
        return call

    return make


def _where_it_lies(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function on the device of its first argument, which Triton does not look at."""

    def guarded(*args: Any) -> Any:
        with torch.cuda.device_of(args[0]):  # type: ignore[no-untyped-call]
            return fn(*args)

    return guarded


def _over_clients(call: Callable[..., Any], out_axes: tuple[int, ...]) -> Callable[..., Any]:
    def mapped(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> Any:
        n = info.batch_size
        folded = [_fold(x, axis, n) for x, axis in zip(args, in_dims, strict=True)]
        out = call(*folded)
        several = isinstance(out, tuple)
        parts = [
            x.unflatten(axis, (n, -1))
            for x, axis in zip(out if several else (out,), out_axes, strict=True)
        ]
        return (tuple(parts), tuple(out_axes)) if several else (parts[0], out_axes[0])

    return mapped


def _fold(x: Any, axis: int | None, n: int) -> Any:
    """The mapped axis and the client's as one; what is not mapped is repeated without a copy."""
    if not isinstance(x, Tensor):
        return x
    x = x.expand(n, *x.shape) if axis is None else x.movedim(axis, 0)
    return x.flatten(0, 1)


def _client_stride(w: Tensor) -> int:
    """From one client's weights to the next's; 0 where all share them."""
    return w.stride(0) if w.shape[0] > 1 else 0


def _inside(w: Tensor) -> Tensor:
    """A tensor each of whose clients is contiguous; the clients may be the same memory."""
    return w if w[0].is_contiguous() else w.contiguous()


def stages_held(x: Tensor, wanted: int, numbers: int) -> int:
    """How many of the wanted stages of a loop, each of so many numbers, shared memory holds."""
    if not x.is_cuda:
        return wanted
    return max(1, min(wanted, _shared_memory(x.device.index) // (numbers * x.element_size())))


@cache
def _shared_memory(device: int) -> int:
    return int(driver.active.utils.get_device_properties(device)["max_shared_mem"])


# ------------------------------------------------------------------------------- convolution


def _convolve_shapes(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    size: int,
    stride: int,
    pad: int,
    relu: bool,
    pool: bool,
) -> tuple[Tensor, Tensor]:
    rows, columns = ((side + 2 * pad - size) // stride + 1 for side in x.shape[2:4])
    if pool:
        rows, columns = rows // 2, columns // 2
    shape = (*x.shape[:2], rows, columns, w.shape[1])
    return x.new_empty(shape), x.new_empty(shape if pool else (x.shape[0], 0), dtype=torch.uint8)


@operator(_convolve_shapes, (0, 0))
def convolve(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    size: int,
    stride: int,
    pad: int,
    relu: bool,
    pool: bool,
) -> tuple[Tensor, Tensor]:
    """Convolve images with kernels of ``size``, then bias, ReLU and 2x2 max-pool.

    ``x`` is [clients, images, rows, columns, channels] and ``w`` [clients, outputs, inputs of an
    output], both of one dtype.  A border of ``pad`` zeros is thought of around images whose
    channels allow it (`pads_itself`).  The second result says which of four pixels was the largest,
    4 where ReLU let none through.
    """
    y, code = _convolve_shapes(x, w, bias, size, stride, pad, relu, pool)
    x, w = x.contiguous(), _inside(w)
    clients, images, rows, columns, out = y.shape
    m, e = images * rows * columns, size * size * x.shape[4]
    bm, bn, be, warps, stages = convolve_tile(m, e, out, pool, x.element_size())
    stages = stages_held(x, stages, ((4 if pool else 1) * bm + bn) * be)
    launch(
        tiles.convolve, (-(-m // bm), -(-out // bn), clients),
        x, w, x if bias is None else bias.contiguous(), y, code, _client_stride(w),
        m, rows, columns, x.shape[2], x.shape[3], x.shape[4], out, size, e, stride,
        pad, bias is not None, relu, pool, bm, bn, be, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return y, code


def _convolve_back_shape(
    g: Tensor, w: Tensor, size: int, stride: int, pad: int, rows: int, columns: int, channels: int
) -> Tensor:
    return g.new_empty(*g.shape[:2], rows, columns, channels)


@operator(_convolve_back_shape, (0,))
def convolve_back(
    g: Tensor, w: Tensor, size: int, stride: int, pad: int, rows: int, columns: int, channels: int
) -> Tensor:
    """The gradient of the images that `convolve` read, from the gradient ``g`` of its outputs.

    The images have so many rows, columns and channels, with a border of ``pad`` in memory or not.
    ``g`` may be padded to a multiple of 16 channels, and ``w`` may have more than are wanted.
    In float32 the channels of ``g`` are innermost in ``w`` (`operands.turned`), as TF32 wants it.
    """
    g, w = g.contiguous(), _inside(w)
    dx = _convolve_back_shape(g, w, size, stride, pad, rows, columns, channels)
    clients, images, height, width, inputs = g.shape
    m = images * -(-rows // stride) * -(-columns // stride)
    bm, bn, be, warps, stages = back_tile(m, inputs, channels, g.element_size())
    stages = stages_held(g, stages, (bm + bn) * be)
    turned = g.dtype == torch.float32
    out = inputs if turned else w.shape[1]
    launch(
        tiles.convolve_back, (-(-m // bm) * stride**2, -(-channels // bn), clients),
        g, w, dx, _client_stride(w),
        m, rows, columns, height, width, inputs, channels, size, w.shape[2], out,
        stride, pad, turned, bm, bn, be, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return dx


# ------------------------------------------------------------------------------------ linear

SPLIT = 512
"""How many inputs of a linear layer one program sums over."""


def _multiply_shape(x: Tensor, w: Tensor) -> Tensor:
    parts = -(-x.shape[2] // SPLIT)
    return x.new_empty(parts, *x.shape[:2], w.shape[1], dtype=torch.float32)


@operator(_multiply_shape, (1,))
def multiply(x: Tensor, w: Tensor) -> Tensor:
    """x w^T, in parts [parts, clients, examples, outputs] to be summed."""
    x, w = x.contiguous(), _inside(w)
    parts = _multiply_shape(x, w)
    clients, b, inputs = x.shape
    out = w.shape[1]
    bb, bo, bi = power(b, 16, 64), power(out, 16, 128), power(inputs, 16, 64)
    launch(
        tiles.multiply, (-(-out // bo), len(parts) * -(-b // bb), clients),
        x, w, parts, _client_stride(w), clients, b, inputs, out, SPLIT, bb, bo, bi,
        num_warps=4, num_stages=3,
    )  # fmt: skip
    return parts


def _multiply_back_shape(g: Tensor, w: Tensor) -> Tensor:
    return g.new_empty(*g.shape[:2], w.shape[2])


@operator(_multiply_back_shape, (0,))
def multiply_back(g: Tensor, w: Tensor) -> Tensor:
    """g w: the gradient of a linear layer's inputs."""
    g, w = g.contiguous(), _inside(w)
    dx = _multiply_back_shape(g, w)
    clients, b, out = g.shape
    inputs = w.shape[2]
    bb, bi, bo = power(b, 16, 64), power(inputs, 16, 64), power(out, 16, 32)
    launch(
        tiles.multiply_back, (-(-inputs // bi), -(-b // bb), clients),
        g, w, dx, _client_stride(w), b, inputs, out, bb, bi, bo, num_warps=4, num_stages=4,
    )  # fmt: skip
    return dx
