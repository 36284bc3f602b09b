"""The gradients of weights as operators of torch, in the ways of `operators`, on `weight_tiles`.

Operands are bfloat16, or two of bfloat16 for one of float32: with ``x_rest`` and ``g_rest``, what
bfloat16 leaves of ``x`` and ``g``, both or none.
"""

import torch
from torch import Tensor

from gcfed.kernels import weight_tiles
from gcfed.kernels.launching import launch
from gcfed.kernels.operators import operator, stages_held
from gcfed.kernels.tile_sizes import power, weights_tile


def _pixels(g: Tensor) -> int:
    return int(g.shape[1] * g.shape[2] * g.shape[3])


def _halves(rest: Tensor | None) -> int:
    """How many numbers of bfloat16 stand for one number of an operand."""
    return 1 if rest is None else 2


def _or(rest: Tensor | None, x: Tensor) -> Tensor:
    """A rest as kernels read it; where there is none, any tensor that they will not read."""
    return x if rest is None else rest.contiguous()


def _weights_shape(
    x: Tensor, g: Tensor, x_rest: Tensor | None, g_rest: Tensor | None,
    size: int, stride: int, pad: int,
) -> Tensor:  # fmt: skip
    m, e, out = _pixels(g), size * size * x.shape[4], g.shape[4]
    parts = -(-m // weights_tile(m, e, out, _halves(x_rest), x.shape[4] if pad else 0)[-1])
    clients = x.shape[0]  # which may be a symbol, and `len` would make it a number
    return x.new_empty(parts, clients, out, e, dtype=torch.float32)


@operator(_weights_shape, (1,))
def convolution_weights(
    x: Tensor, g: Tensor, x_rest: Tensor | None, g_rest: Tensor | None,
    size: int, stride: int, pad: int,
) -> Tensor:  # fmt: skip
    """The gradient of kernels, in parts [parts, clients, outputs, inputs] to be summed.

    ``x`` and ``pad`` are as in `operators.convolve`, and ``g`` is the gradient of the outputs.
    """
    x, g = x.contiguous(), g.contiguous()
    parts = _weights_shape(x, g, x_rest, g_rest, size, stride, pad)
    rows, columns = g.shape[2:4]
    m, out, e = _pixels(g), parts.shape[2], parts.shape[3]
    be, bn, bm, warps, stages, per = weights_tile(
        m, e, out, _halves(x_rest), x.shape[4] if pad else 0
    )
    stages = stages_held(x, stages, (be + bn) * bm * _halves(x_rest))
    launch(
        weight_tiles.convolution_weights, (-(-e // be) * -(-out // bn), len(x), len(parts)),
        x, g, _or(x_rest, x), _or(g_rest, g), parts,
        len(x), m, per, rows, columns, x.shape[2], x.shape[3], x.shape[4], out,
        size, e, stride, pad, x_rest is not None, be, bn, bm,
        num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return parts


def _linear_weights_shape(
    x: Tensor, g: Tensor, x_rest: Tensor | None, g_rest: Tensor | None
) -> Tensor:
    return x.new_empty(x.shape[0], g.shape[2], x.shape[2], dtype=torch.float32)


@operator(_linear_weights_shape, (0,))
def linear_weights(x: Tensor, g: Tensor, x_rest: Tensor | None, g_rest: Tensor | None) -> Tensor:
    """g^T x: the gradient of a linear layer's weights."""
    x, g = x.contiguous(), g.contiguous()
    dw = _linear_weights_shape(x, g, x_rest, g_rest)
    clients, b, inputs = x.shape
    out = g.shape[2]
    bb, bi, bo = power(b, 16, 64), power(inputs, 16, 128), power(out, 16, 64)
    launch(
        weight_tiles.linear_weights, (-(-inputs // bi), -(-out // bo), clients),
        x, g, _or(x_rest, x), _or(g_rest, g), dw,
        b, inputs, out, x_rest is not None, bo, bi, bb, num_warps=4, num_stages=2,
    )  # fmt: skip
    return dw
