"""Triton kernels for the group norms of many clients, in the ways of `tiles`."""

import triton
import triton.language as tl

from gcfed.kernels.tiles import larger


@triton.jit
def _over_groups(v, BC: tl.constexpr, SIZE: tl.constexpr):
    """For each channel the sum over its group of SIZE channels."""
    sums = tl.sum(tl.reshape(v, (BC // SIZE, SIZE)), 1)
    return tl.reshape(tl.broadcast_to(sums[:, None], (BC // SIZE, SIZE)), (BC,))


@triton.jit
def normalize(
    X, W, BIAS, Y, MEAN, RSTD,
    IMAGES, EPS, PIXELS: tl.constexpr, C: tl.constexpr, SIZE: tl.constexpr, RELU: tl.constexpr,
    BC: tl.constexpr, BP: tl.constexpr,
):  # fmt: skip
    """Y: X less the mean of its image and group, over their deviation, times W plus BIAS; ReLU.

    MEAN and RSTD [clients, images, C] have the same for all SIZE channels of a group; a program
    makes BC channels of an image.
    """
    image = tl.program_id(1).to(tl.int64)
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    x = X + image * (PIXELS * C) + c[None, :]
    y = Y + image * (PIXELS * C) + c[None, :]
    sums = tl.zeros((BC,), tl.float32)
    for start in range(0, PIXELS, BP):
        p = start + tl.arange(0, BP)[:, None]
        v = tl.load(x + p * C, mask=p < PIXELS, other=0.0).to(tl.float32)
        sums += tl.sum(v, 0)
    mean = _over_groups(sums, BC, SIZE) / (PIXELS * SIZE)
    squares = tl.zeros((BC,), tl.float32)
    for start in range(0, PIXELS, BP):  # again, from a cache: the difference of two means cancels
        p = start + tl.arange(0, BP)[:, None]
        v = tl.load(x + p * C, mask=p < PIXELS, other=0.0).to(tl.float32)
        apart = tl.where(p < PIXELS, v - mean[None, :], 0.0)
        squares += tl.sum(apart * apart, 0)
    rstd = tl.rsqrt(_over_groups(squares, BC, SIZE) / (PIXELS * SIZE) + EPS)
    tl.store(MEAN + image * C + c, mean)
    tl.store(RSTD + image * C + c, rstd)
    k = image // IMAGES
    scale = tl.load(W + k * C + c) * rstd
    shift = tl.load(BIAS + k * C + c) - mean * scale
    for start in range(0, PIXELS, BP):
        p = start + tl.arange(0, BP)[:, None]
        v = tl.load(x + p * C, mask=p < PIXELS, other=0.0).to(tl.float32)
        out = v * scale[None, :] + shift[None, :]
        if RELU:
            out = larger(out, 0.0)
        tl.store(y + p * C, out.to(Y.dtype.element_ty), mask=p < PIXELS)


@triton.jit
def _input_and_gradient(
    X, G, place, p, scale, shift, C: tl.constexpr, PIXELS: tl.constexpr, RELU: tl.constexpr
):
    """Some pixels of the input, and of the gradient as it was before the ReLU."""
    x = tl.load(X + place + p * C, mask=p < PIXELS, other=0.0).to(tl.float32)
    g = tl.load(G + place + p * C, mask=p < PIXELS, other=0.0).to(tl.float32)
    if RELU:
        g = tl.where(x * scale[None, :] + shift[None, :] > 0, g, 0.0)
    return x, g


@triton.jit
def normalize_back(
    G, X, W, BIAS, MEAN, RSTD, DX, DW, DBIAS,
    IMAGES, PIXELS: tl.constexpr, C: tl.constexpr, SIZE: tl.constexpr, RELU: tl.constexpr,
    BC: tl.constexpr, BP: tl.constexpr,
):  # fmt: skip
    """The gradients of X, and for each image those of W and BIAS [clients, images, C]."""
    image = tl.program_id(1).to(tl.int64)
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    place = image * (PIXELS * C) + c[None, :]
    k = image // IMAGES
    w = tl.load(W + k * C + c)
    bias = tl.load(BIAS + k * C + c)
    mean = tl.load(MEAN + image * C + c)
    rstd = tl.load(RSTD + image * C + c)
    scale = w * rstd
    shift = bias - mean * scale
    sums = tl.zeros((BC,), tl.float32)
    products = tl.zeros((BC,), tl.float32)
    for start in range(0, PIXELS, BP):
        p = start + tl.arange(0, BP)[:, None]
        x, g = _input_and_gradient(X, G, place, p, scale, shift, C, PIXELS, RELU)
        sums += tl.sum(g, 0)
        products += tl.sum(g * x, 0)
    tl.store(DW + image * C + c, (products - mean * sums) * rstd)
    tl.store(DBIAS + image * C + c, sums)
    total = _over_groups(sums * w, BC, SIZE)
    along = (total * mean - _over_groups(products * w, BC, SIZE)) * rstd * rstd * rstd
    along = along / (PIXELS * SIZE)
    offset = -along * mean - total * rstd / (PIXELS * SIZE)
    for start in range(0, PIXELS, BP):
        p = start + tl.arange(0, BP)[:, None]
        x, g = _input_and_gradient(X, G, place, p, scale, shift, C, PIXELS, RELU)
        dx = g * scale[None, :] + x * along[None, :] + offset[None, :]
        tl.store(DX + place + p * C, dx.to(DX.dtype.element_ty), mask=p < PIXELS)
