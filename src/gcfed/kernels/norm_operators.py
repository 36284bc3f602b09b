"""Group norms with a client axis as operators of torch, as `operators` makes them."""

import torch
from torch import Tensor

from gcfed.kernels import norm_tiles
from gcfed.kernels.operators import operator
from gcfed.kernels.tile_sizes import channel_block, power


def _normalize_shapes(x: Tensor, *_: object) -> tuple[Tensor, Tensor, Tensor]:
    kept = (*x.shape[:2], x.shape[4])
    mean, rstd = (x.new_empty(kept, dtype=torch.float32) for _ in range(2))
    return torch.empty_like(x, memory_format=torch.contiguous_format), mean, rstd


@operator(_normalize_shapes, (0, 0, 0))
def normalize(
    x: Tensor, w: Tensor, bias: Tensor, groups: int, eps: float, relu: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """A group norm, and ReLU; means and inverse deviations [clients, images, channels]."""
    x, w, bias = x.contiguous(), w.contiguous(), bias.contiguous()
    y, mean, rstd = _normalize_shapes(x)
    pixels, channels, size, bc, bp = _norm_tile(x, groups)
    norm_tiles.normalize[(channels // bc, x.shape[0] * x.shape[1])](
        x, w, bias, y, mean, rstd, x.shape[1], eps, pixels, channels, size, relu, bc, bp,
        num_warps=4,
    )  # fmt: skip
    return y, mean, rstd


def _normalize_back_shapes(
    g: Tensor, x: Tensor, w: Tensor, bias: Tensor, mean: Tensor, *_: object
) -> tuple[Tensor, Tensor, Tensor]:
    dx = torch.empty_like(x, memory_format=torch.contiguous_format)
    return dx, torch.empty_like(mean), torch.empty_like(mean)


@operator(_normalize_back_shapes, (0, 0, 0))
def normalize_back(
    g: Tensor,
    x: Tensor,
    w: Tensor,
    bias: Tensor,
    mean: Tensor,
    rstd: Tensor,
    groups: int,
    relu: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of what `normalize` read; those of weights and biases by image."""
    g, x, w, bias = g.contiguous(), x.contiguous(), w.contiguous(), bias.contiguous()
    mean, rstd = mean.contiguous(), rstd.contiguous()
    dx, dw, dbias = _normalize_back_shapes(g, x, w, bias, mean)
    pixels, channels, size, bc, bp = _norm_tile(x, groups)
    norm_tiles.normalize_back[(channels // bc, x.shape[0] * x.shape[1])](
        g, x, w, bias, mean, rstd, dx, dw, dbias, x.shape[1], pixels, channels, size, relu, bc, bp,
        num_warps=4,
    )  # fmt: skip
    return dx, dw, dbias


def _norm_tile(x: Tensor, groups: int) -> tuple[int, int, int, int, int]:
    """Pixels, channels and channels of a group; channels and pixels of a tile."""
    pixels, channels = x.shape[2] * x.shape[3], x.shape[4]
    size = channels // groups
    bc = max(size, channel_block(channels))
    return pixels, channels, size, bc, power(pixels, 16, 4096 // min(bc, 128))
