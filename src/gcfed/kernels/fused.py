"""Layers of one client as functions with gradients, most of them by the operators.

Weights come in as they are kept, in float32, and their gradients leave so; what flows between
layers has the dtype the model computes in.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from gcfed.kernels import norm_operators, operators


def packed(w: Tensor, channels: int, dtype: torch.dtype) -> Tensor:
    """Kernels [outputs, inputs, rows, columns] as rows of places, each of so many channels."""
    rows = functional.pad(w.permute(0, 2, 3, 1), (0, channels - w.shape[1]))
    return rows.to(dtype).flatten(1, 3)


def unpacked(rows: Tensor, shape: torch.Size) -> Tensor:
    """The inverse of `packed`."""
    out, inputs, *size = shape
    return rows.reshape(out, *size, -1)[..., :inputs].permute(0, 3, 1, 2)


def _sum(parts: Tensor) -> Tensor:
    """The sum over the first axis, in order; a few terms are compiled better one by one."""
    if len(parts) > 16:
        return parts.sum(0)
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def _widened(g: Tensor, stride: int, border: int, rows: int, columns: int) -> Tensor:
    """Pixels ``stride`` apart with zeros between, a border before and what is missing after."""
    if stride > 1:
        g = functional.pad(g[:, :, None, :, None], (0, 0, 0, stride - 1, 0, 0, 0, stride - 1))
        g = g.flatten(3, 4).flatten(1, 2)
    below, right = rows - border - g.shape[1], columns - border - g.shape[2]
    return functional.pad(g, (0, 0, border, right, border, below))


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
        channels = -(-x.shape[3] // 4) * 4  # so that four can be read at once
        p = padding
        bordered = functional.pad(x, (0, channels - x.shape[3], p, p, p, p))
        kernels = packed(w, channels, x.dtype)
        y, code = operators.convolve(
            bordered[None],
            kernels[None],
            None if bias is None else bias[None],
            w.shape[2],
            stride,
            relu,
            pool,
        )
        return y[0], code[0], bordered, kernels

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, w, bias, ctx.stride, ctx.padding, ctx.relu, ctx.pool = inputs
        y, code, bordered, kernels = output
        ctx.has_bias, ctx.images, ctx.weights = bias is not None, x.shape, w.shape
        ctx.mark_non_differentiable(code, bordered, kernels)
        ctx.save_for_backward(y, code, bordered, kernels)

    @staticmethod
    def backward(ctx: Any, dy: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        y, code, bordered, kernels = ctx.saved_tensors
        size, stride = ctx.weights[2], ctx.stride
        if ctx.pool:
            g = _unpooled(dy, code, *((n - size) // stride + 1 for n in bordered.shape[1:3]))
        else:
            g = torch.where(y > 0, dy, 0) if ctx.relu else dy
        dx, seen, border = None, g, 0
        if ctx.needs_input_grad[0]:
            border = size - 1 - ctx.padding
            reach = [
                side + size - 1 for side in ctx.images[1:3]
            ]  # so that dx has the images' sides
            wide = _widened(g, stride, border, *reach)
            dx = operators.convolve_back(wide[None], kernels[None], size, ctx.images[3])[0]
            seen, border = (wide, border) if stride == 1 else (g, 0)
        parts, biases = operators.convolution_weights(
            bordered[None], seen[None], size, stride, border
        )
        dw = unpacked(_sum(parts)[0], ctx.weights)
        db = _sum(biases)[0] if ctx.has_bias else None
        return dx, dw, db, None, None, None, None


def _unpooled(dy: Tensor, code: Tensor, rows: int, columns: int) -> Tensor:
    """The gradient of what was pooled: at the largest of four pixels, and nothing elsewhere."""
    which = torch.arange(4, device=dy.device, dtype=torch.uint8).view(2, 1, 2, 1)
    chosen = code[:, :, None, :, None] == which
    g = torch.where(chosen, dy[:, :, None, :, None], 0)
    g = g.flatten(3, 4).flatten(1, 2)
    odd_row, odd_column = rows - g.shape[1], columns - g.shape[2]
    return functional.pad(g, (0, 0, 0, odd_column, 0, odd_row)) if odd_row or odd_column else g


class Product(torch.autograd.Function):
    """x w^T of a linear layer, in float32."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, w: Tensor) -> Tensor:
        return _sum(operators.multiply(x[None], w[None]))[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:
        x, w = ctx.saved_tensors
        g = dy.to(x.dtype)
        dx = operators.multiply_back(g[None], w[None])[0]
        dw = operators.linear_weights(x[None], g[None])[0]
        return dx, dw


class Normalization(torch.autograd.Function):
    """A group norm of images with channels innermost, with ReLU if wanted."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor, w: Tensor, bias: Tensor, groups: int, eps: float, relu: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        y, mean, rstd = norm_operators.normalize(x[None], w[None], bias[None], groups, eps, relu)
        return y[0], mean[0], rstd[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, w, bias, ctx.groups, _, ctx.relu = inputs
        _, mean, rstd = output
        ctx.mark_non_differentiable(mean, rstd)
        ctx.save_for_backward(x, w, bias, mean, rstd)

    @staticmethod
    def backward(ctx: Any, dy: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        kept = (each[None] for each in ctx.saved_tensors)
        dx, dw, dbias = norm_operators.normalize_back(dy[None], *kept, ctx.groups, ctx.relu)
        return dx[0], dw[0].sum(0), dbias[0].sum(0), None, None, None


class FusedConv2d(nn.Module):
    """A plain `nn.Conv2d` with the ReLU and the 2x2 max-pool that follow it."""

    keeps_precision = True

    def __init__(self, convolution: nn.Conv2d, *, relu: bool = False, pool: bool = False) -> None:
        super().__init__()
        self.weight, self.bias = convolution.weight, convolution.bias
        self.stride, self.padding = convolution.stride[0], int(convolution.padding[0])
        self.relu, self.pool = relu, pool

    def forward(self, x: Tensor) -> Tensor:
        images = x.permute(0, 2, 3, 1)
        y: Tensor = Convolution.apply(  # type: ignore[no-untyped-call]
            images, self.weight, self.bias, self.stride, self.padding, self.relu, self.pool
        )[0]
        return y.permute(0, 3, 1, 2)


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
    """A plain `nn.GroupNorm` with the ReLU that follows it; fast for images."""

    keeps_precision = True

    def __init__(self, norm: nn.GroupNorm, *, relu: bool = False) -> None:
        super().__init__()
        self.weight, self.bias = norm.weight, norm.bias
        self.num_groups, self.eps, self.relu = norm.num_groups, norm.eps, relu

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim != 4:
            plain = functional.group_norm(
                x.float(), self.num_groups, self.weight, self.bias, self.eps
            )
            return (functional.relu(plain) if self.relu else plain).to(x.dtype)
        images = x.permute(0, 2, 3, 1)
        y: Tensor = Normalization.apply(  # type: ignore[no-untyped-call]
            images, self.weight, self.bias, self.num_groups, self.eps, self.relu
        )[0]
        return y.permute(0, 3, 1, 2)
