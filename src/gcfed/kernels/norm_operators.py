"""Group norms with a client axis as operators of torch, as `operators` makes them."""

import torch
from torch import Tensor

from gcfed.kernels import norm_tiles
from gcfed.kernels.launching import launch
from gcfed.kernels.operators import operator
from gcfed.kernels.tile_sizes import norm_tile


def _normalize_shapes(x: Tensor, *_: object) -> tuple[Tensor, Tensor, Tensor]:
    kept = (*x.shape[:2], x.shape[4])
    mean, rstd = (x.new_empty(kept, dtype=torch.float32) for _ in range(2))
    return torch.empty_like(x, memory_format=torch.contiguous_format), mean, rstd


@operator(_normalize_shapes, (0, 0, 0))
def normalize(
    x: Tensor,
    w: Tensor,
    bias: Tensor,
    residual: Tensor | None,
    groups: int,
    eps: float,
    relu: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """A group norm, plus a residual, and ReLU; means and inverse deviations by channel.

    ``x`` and ``residual`` are [clients, images, rows, columns, channels], the two others [clients,
    images, channels].
    """
    x, w, bias = x.contiguous(), w.contiguous(), bias.contiguous()
    y, mean, rstd = _normalize_shapes(x)
    pixels, channels, size, bc, bp, warps = _sizes(x, groups)
    launch(
        norm_tiles.normalize, (channels // bc * x.shape[0] * x.shape[1],),
        x, w, bias, x if residual is None else residual.contiguous(), y, mean, rstd, x.shape[1],
        eps, pixels, channels, size, residual is not None, relu, bc, bp, num_warps=warps,
    )  # fmt: skip
    return y, mean, rstd


def _normalize_back_shapes(
    g: Tensor,
    x: Tensor,
    w: Tensor,
    bias: Tensor,
    y: Tensor | None,
    mean: Tensor,
    *_: object,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dx = torch.empty_like(x, memory_format=torch.contiguous_format)
    dresidual = x.new_empty(x.shape[0], 0) if y is None else torch.empty_like(dx)
    return dx, dresidual, torch.empty_like(mean), torch.empty_like(mean)


@operator(_normalize_back_shapes, (0, 0, 0, 0))
def normalize_back(
    g: Tensor,
    x: Tensor,
    w: Tensor,
    bias: Tensor,
    y: Tensor | None,
    mean: Tensor,
    rstd: Tensor,
    groups: int,
    relu: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of what `normalize` read; those of weights and biases by image.

    ``y`` is what it made, where a residual went into a ReLU; only then the residual's gradient,
    the second result, is another than ``g``.
    """
    g, x, w, bias = g.contiguous(), x.contiguous(), w.contiguous(), bias.contiguous()
    mean, rstd = mean.contiguous(), rstd.contiguous()
    dx, dresidual, dw, dbias = _normalize_back_shapes(g, x, w, bias, y, mean)
    pixels, channels, size, bc, bp, warps = _sizes(x, groups)
    launch(
        norm_tiles.normalize_back, (channels // bc * x.shape[0] * x.shape[1],),
        g, x, w, bias, x if y is None else y.contiguous(), mean, rstd, dx, dresidual, dw, dbias,
        x.shape[1], pixels, channels, size, y is not None, relu, bc, bp, num_warps=warps,
    )  # fmt: skip
    return dx, dresidual, dw, dbias


def _sizes(x: Tensor, groups: int) -> tuple[int, int, int, int, int, int]:
    """Pixels, channels and channels of a group; channels, pixels and warps of a tile."""
    pixels, channels = x.shape[2] * x.shape[3], x.shape[4]
    size = channels // groups
    return pixels, channels, size, *norm_tile(pixels, channels, size)
