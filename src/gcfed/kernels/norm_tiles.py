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
def _pixels(at, start, PIXELS: tl.constexpr, C: tl.constexpr, BP: tl.constexpr):
    """BP pixels of an image's channels, in float32; zeros where there are none."""
    p = start + tl.arange(0, BP)[:, None]
    if PIXELS % BP == 0:
        return tl.load(at + p * C).to(tl.float32)
    else:
        return tl.load(at + p * C, mask=p < PIXELS, other=0.0).to(tl.float32)


@triton.jit
def _store(at, start, v, PIXELS: tl.constexpr, C: tl.constexpr, BP: tl.constexpr):
    """The inverse of `_pixels`."""
    p = start + tl.arange(0, BP)[:, None]
    tl.store(at + p * C, v.to(at.dtype.element_ty), mask=p < PIXELS)


@triton.jit
def normalize(
    X, W, BIAS, RESIDUAL, Y, MEAN, RSTD,
    IMAGES, EPS, PIXELS: tl.constexpr, C: tl.constexpr, SIZE: tl.constexpr, ADD: tl.constexpr,
    RELU: tl.constexpr, BC: tl.constexpr, BP: tl.constexpr,
):  # fmt: skip
    """Y: X less the mean of its image and group, over their deviation, times W plus BIAS; ReLU.

    With ADD the RESIDUAL is added before the ReLU.  MEAN and RSTD [clients, images, C] have the
    same for all SIZE channels of a group.  A program makes BC channels of an image, and reads them
    once where BP holds all PIXELS.
    """
    held: tl.constexpr = BP >= PIXELS
    image = (tl.program_id(0) // (C // BC)).to(tl.int64)
    c = tl.program_id(0) % (C // BC) * BC + tl.arange(0, BC)
    place = image * (PIXELS * C) + c[None, :]
    if held:
        v = _pixels(X + place, 0, PIXELS, C, BP)
    sums = tl.zeros((BC,), tl.float32)
    for start in range(0, PIXELS, BP):
        if not held:
            v = _pixels(X + place, start, PIXELS, C, BP)
        sums += tl.sum(v, 0)
    mean = _over_groups(sums, BC, SIZE) / (PIXELS * SIZE)
    squares = tl.zeros((BC,), tl.float32)
    for start in range(0, PIXELS, BP):  # another pass: the difference of two means cancels
        if not held:
            v = _pixels(X + place, start, PIXELS, C, BP)
        real = start + tl.arange(0, BP)[:, None] < PIXELS
        apart = tl.where(real, v - mean[None, :], 0.0)
        squares += tl.sum(apart * apart, 0)
    rstd = tl.rsqrt(_over_groups(squares, BC, SIZE) / (PIXELS * SIZE) + EPS)
    tl.store(MEAN + image * C + c, mean)
    tl.store(RSTD + image * C + c, rstd)
    k = image // IMAGES
    scale = tl.load(W + k * C + c) * rstd
    shift = tl.load(BIAS + k * C + c) - mean * scale
    for start in range(0, PIXELS, BP):
        if not held:
            v = _pixels(X + place, start, PIXELS, C, BP)
        out = v * scale[None, :] + shift[None, :]
        if ADD:
            out += _pixels(RESIDUAL + place, start, PIXELS, C, BP)
        if RELU:
            out = larger(out, 0.0)
        _store(Y + place, start, out, PIXELS, C, BP)


@triton.jit
def _gradient(
    G, Y, x, place, start, scale, shift,
    PIXELS: tl.constexpr, C: tl.constexpr, ADD: tl.constexpr, RELU: tl.constexpr, BP: tl.constexpr,
):  # fmt: skip
    """Some pixels of the gradient as it was before the ReLU."""
    g = _pixels(G + place, start, PIXELS, C, BP)
    if RELU:
        y = x * scale[None, :] + shift[None, :]
        if ADD:
            y = _pixels(Y + place, start, PIXELS, C, BP)
        g = tl.where(y > 0, g, 0.0)
    return g


@triton.jit
def normalize_back(
    G, X, W, BIAS, Y, MEAN, RSTD, DX, DRESIDUAL, DW, DBIAS,
    IMAGES, PIXELS: tl.constexpr, C: tl.constexpr, SIZE: tl.constexpr, ADD: tl.constexpr,
    RELU: tl.constexpr, BC: tl.constexpr, BP: tl.constexpr,
):  # fmt: skip
    """The gradients of X, and for each image those of W and BIAS [clients, images, C].

    With ADD and RELU also that of the residual, and Y is what was made.
    """
    held: tl.constexpr = BP >= PIXELS
    image = (tl.program_id(0) // (C // BC)).to(tl.int64)
    c = tl.program_id(0) % (C // BC) * BC + tl.arange(0, BC)
    place = image * (PIXELS * C) + c[None, :]
    k = image // IMAGES
    w = tl.load(W + k * C + c)
    bias = tl.load(BIAS + k * C + c)
    mean = tl.load(MEAN + image * C + c)
    rstd = tl.load(RSTD + image * C + c)
    scale = w * rstd
    shift = bias - mean * scale
    if held:
        x = _pixels(X + place, 0, PIXELS, C, BP)
        g = _gradient(G, Y, x, place, 0, scale, shift, PIXELS, C, ADD, RELU, BP)
    sums = tl.zeros((BC,), tl.float32)
    products = tl.zeros((BC,), tl.float32)
    for start in range(0, PIXELS, BP):
        if not held:
            x = _pixels(X + place, start, PIXELS, C, BP)
            g = _gradient(G, Y, x, place, start, scale, shift, PIXELS, C, ADD, RELU, BP)
        if ADD and RELU:
            _store(DRESIDUAL + place, start, g, PIXELS, C, BP)
        sums += tl.sum(g, 0)
        products += tl.sum(g * x, 0)
    tl.store(DW + image * C + c, (products - mean * sums) * rstd)
    tl.store(DBIAS + image * C + c, sums)
    total = _over_groups(sums * w, BC, SIZE)
    along = (total * mean - _over_groups(products * w, BC, SIZE)) * rstd * rstd * rstd
    along = along / (PIXELS * SIZE)
    offset = -along * mean - total * rstd / (PIXELS * SIZE)
    for start in range(0, PIXELS, BP):
        if not held:
            x = _pixels(X + place, start, PIXELS, C, BP)
            g = _gradient(G, Y, x, place, start, scale, shift, PIXELS, C, ADD, RELU, BP)
        dx = g * scale[None, :] + x * along[None, :] + offset[None, :]
        _store(DX + place, start, dx, PIXELS, C, BP)
