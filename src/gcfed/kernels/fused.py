"""Layers of one client as functions with gradients, most of them by the operators.

Weights come in as they are kept, in float32, and their gradients leave so; what flows between
layers has the dtype the model computes in.
"""

from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from gcfed.kernels import norm_operators, operators, weight_operators
from gcfed.kernels.operands import both_halves, packed, padded, summed, turned, unpacked
from gcfed.kernels.tile_sizes import pads_itself


class Convolution(torch.autograd.Function):
    """A convolution of images with channels innermost, with bias, ReLU and max-pool if wanted."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor,
        w: Tensor,
        bias: Tensor | None,
        stride: int,
        padding: int,
        relu: bool,
        pool: bool,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        images, pad = _bordered(x, padding)
        kernels = packed(w, images.shape[3], x.dtype)
        y, code = operators.convolve(
            images[None],
            kernels[None],
            None if bias is None else bias[None],
            w.shape[2],
            stride,
            pad,
            relu,
            pool,
        )
        return y[0], code[0], x.new_empty(0) if images is x else images, kernels

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, w, bias, ctx.stride, ctx.padding, ctx.relu, ctx.pool = inputs
        y, code, images, kernels = output
        ctx.has_bias, ctx.images, ctx.weights = bias is not None, x.shape, w.shape
        ctx.mark_non_differentiable(code, images, kernels)
        ctx.save_for_backward(y, code, images if images.numel() else x, kernels)

    @staticmethod
    def backward(ctx: Any, dy: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        y, code, images, kernels = ctx.saved_tensors
        size, stride, padding, sides = ctx.weights[2], ctx.stride, ctx.padding, ctx.images[1:3]
        if ctx.relu:
            dy = torch.where(code < 4 if ctx.pool else y > 0, dy, 0)
        g = dy
        if ctx.pool:
            g = _unpooled(dy, code, *((n + 2 * padding - size) // stride + 1 for n in sides))
        g = g.contiguous()  # laid out by the step, which is compiled, and not by operators
        dx = None
        if ctx.needs_input_grad[0]:
            whole = padded(g, 0, -g.shape[3] % 16)
            if g.dtype == torch.float32:
                kernels = turned(kernels, ctx.weights, whole.shape[3])
            dx = operators.convolve_back(
                whole[None], kernels[None], size, stride, padding, *ctx.images[1:]
            )[0]
        pad = padding if images.shape[1:3] == sides else 0
        parts = weight_operators.convolution_weights(*both_halves(images, g), size, stride, pad)
        dw = unpacked(summed(parts)[0], ctx.weights)
        db = dy.sum((0, 1, 2), dtype=torch.float32) if ctx.has_bias else None
        return dx, dw, db, None, None, None, None


def _bordered(x: Tensor, padding: int) -> tuple[Tensor, int]:
    """Images as kernels read them, and the width of the border that is not in memory."""
    channels = x.shape[3]
    if pads_itself(channels):
        return x.contiguous(), padding
    p = padding
    return padded(x, 0, -channels % 4, p, p, p, p), 0  # four channels can be read at once


def _unpooled(dy: Tensor, code: Tensor, rows: int, columns: int) -> Tensor:
    """The gradient of what was pooled: at the largest of four pixels, and nothing elsewhere."""
    which = torch.arange(4, device=dy.device, dtype=torch.uint8).view(2, 1, 2, 1)
    chosen = code[:, :, None, :, None] == which
    g = torch.where(chosen, dy[:, :, None, :, None], 0)
    g = g.flatten(3, 4).flatten(1, 2)
    odd_row, odd_column = rows - g.shape[1], columns - g.shape[2]
    return padded(g, 0, 0, 0, odd_column, 0, odd_row)


class Product(torch.autograd.Function):
    """x w^T of a linear layer, in float32."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, w: Tensor) -> Tensor:
        return summed(operators.multiply(x[None], w[None]))[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:
        x, w = ctx.saved_tensors
        g = dy.to(x.dtype)
        dx = operators.multiply_back(g[None], w[None])[0]
        dw = weight_operators.linear_weights(*both_halves(x, g))[0]
        return dx, dw


class Normalization(torch.autograd.Function):
    """A group norm of images with channels innermost, plus a residual and with ReLU if wanted."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor,
        w: Tensor,
        bias: Tensor,
        residual: Tensor | None,
        groups: int,
        eps: float,
        relu: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        other = None if residual is None else residual[None]
        y, mean, rstd = norm_operators.normalize(
            x[None], w[None], bias[None], other, groups, eps, relu
        )
        return y[0], mean[0], rstd[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, w, bias, residual, ctx.groups, _, ctx.relu = inputs
        y, mean, rstd = output
        ctx.adds, ctx.decided = residual is not None, residual is not None and ctx.relu
        ctx.mark_non_differentiable(mean, rstd)
        ctx.save_for_backward(x, w, bias, mean, rstd, *([y] if ctx.decided else []))

    @staticmethod
    def backward(ctx: Any, dy: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        x, w, bias, mean, rstd, *made = (each[None] for each in ctx.saved_tensors)
        y = made[0] if made else None
        dy = dy.contiguous()  # laid out by the step, which is compiled, and not by the operator
        dx, masked, dw, dbias = norm_operators.normalize_back(
            dy[None], x, w, bias, y, mean, rstd, ctx.groups, ctx.relu
        )
        dresidual = (masked[0] if ctx.decided else dy) if ctx.adds else None
        return dx[0], dw[0].sum(0), dbias[0].sum(0), dresidual, None, None, None


LARGEST = 2**31
"""The kernels of convolutions count in 32 bits: one client's images must have fewer numbers."""


class FusedConv2d(nn.Module):
    """A plain `nn.Conv2d` with the ReLU and the 2x2 max-pool that follow it.

    Images too large to count are left to torch's own.
    """

    keeps_precision = True

    def __init__(self, convolution: nn.Conv2d, *, relu: bool = False, pool: bool = False) -> None:
        super().__init__()
        self.weight, self.bias = convolution.weight, convolution.bias
        self.stride, self.padding = convolution.stride[0], int(convolution.padding[0])
        self.relu, self.pool = relu, pool

    def forward(self, x: Tensor) -> Tensor:
        if self._most_numbers(x) >= LARGEST:
            return self._by_torch(x)
        images = x.permute(0, 2, 3, 1)
        y: Tensor = Convolution.apply(  # type: ignore[no-untyped-call]
            images, self.weight, self.bias, self.stride, self.padding, self.relu, self.pool
        )[0]
        return y.permute(0, 3, 1, 2)

    def _most_numbers(self, x: Tensor) -> int:
        """How many numbers the images with their border have, or the outputs if these have more."""
        out, channels, size, _ = self.weight.shape
        sides = [side + 2 * self.padding for side in x.shape[2:]]
        made = [(side - size) // self.stride + 1 for side in sides]
        read = prod(sides) * (channels + -channels % 4)
        return len(x) * max(read, prod(made) * (out + -out % 16))

    def _by_torch(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.to(x.dtype)
        y = functional.conv2d(x, self.weight.to(x.dtype), bias, self.stride, self.padding)
        y = functional.relu(y) if self.relu else y
        return functional.max_pool2d(y, 2) if self.pool else y


class FusedLinear(nn.Module):
    """A plain `nn.Linear`."""

    keeps_precision = True

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = Product.apply(  # type: ignore[no-untyped-call]
            x.reshape(-1, x.shape[-1]), self.weight
        )
        if self.bias is not None:
            y = y + self.bias
        return y.to(x.dtype).reshape(*x.shape[:-1], -1)


class FusedGroupNorm(nn.Module):
    """A plain `nn.GroupNorm` with what is added to it and the ReLU that follows; for images."""

    keeps_precision = True

    def __init__(self, norm: nn.GroupNorm, *, relu: bool = False) -> None:
        super().__init__()
        self.weight, self.bias = norm.weight, norm.bias
        self.num_groups, self.eps, self.relu = norm.num_groups, norm.eps, relu

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        if x.ndim != 4:
            y = functional.group_norm(x.float(), self.num_groups, self.weight, self.bias, self.eps)
            return self._followed(y.to(x.dtype), residual)
        if residual is None or _alike(x, residual):
            return self._normalized(x, residual, relu=self.relu)
        return self._followed(self._normalized(x, None, relu=False), residual)

    def _normalized(self, x: Tensor, residual: Tensor | None, *, relu: bool) -> Tensor:
        y: Tensor = Normalization.apply(  # type: ignore[no-untyped-call]
            x.permute(0, 2, 3, 1),
            self.weight,
            self.bias,
            None if residual is None else residual.permute(0, 2, 3, 1),
            self.num_groups,
            self.eps,
            relu,
        )[0]
        return y.permute(0, 3, 1, 2)

    def _followed(self, y: Tensor, residual: Tensor | None) -> Tensor:
        y = y if residual is None else y + residual
        return functional.relu(y) if self.relu else y


def _alike(x: Tensor, other: Any) -> bool:
    return isinstance(other, Tensor) and other.shape == x.shape and other.dtype == x.dtype
