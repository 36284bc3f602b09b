"""Triton kernels for the gradients of weights, in the ways of `tiles`: sums over what was seen.

What is summed over is not innermost in memory.  The tensor cores of a Hopper take such operands in
bfloat16 but not in TF32, for which a tile would be turned around number by number.  So float32
operands come as two of bfloat16 each, a number and its REST, and their product is three: all but
that of the rests.  That keeps 16 bits of a number, where TF32 keeps 11.

Nothing else in a loop may read the operands of its product.  Triton (3.6 to 3.9) would keep one
copy fewer of them in shared memory, and overwrite it while the product is still under way.
"""

import triton
import triton.language as tl

from gcfed.kernels.tiles import read_inputs


@triton.jit(do_not_specialize=["CLIENTS"])
def convolution_weights(
    X, G, X_REST, G_REST, PARTS,
    CLIENTS, M, PER, ROWS: tl.constexpr, COLUMNS: tl.constexpr, HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr, CI: tl.constexpr, CO: tl.constexpr, KW: tl.constexpr, E: tl.constexpr,
    STRIDE: tl.constexpr, PAD: tl.constexpr, RESTS: tl.constexpr,
    BE: tl.constexpr, BN: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """PARTS [parts, clients, CO, E]: for each client, G^T X over each PER output pixels.

    X is as in `tiles.convolve`, and G [clients, pixels, CO].
    """
    e_tiles = tl.cdiv(E, BE)
    tile = tl.program_id(0)
    e0 = tile % e_tiles * BE
    f = e0 + tl.arange(0, BE)
    co = tile // e_tiles * BN + tl.arange(0, BN)
    k = tl.program_id(1).to(tl.int64)
    part = tl.program_id(2)
    images = M // (ROWS * COLUMNS)
    client = k * images * (HEIGHT * WIDTH * CI)
    places = (f // (KW * CI) * (WIDTH * CI) + f % (KW * CI))[None, :]
    x = X + client + places
    x_rest = X_REST + client + places
    g = G + k * M * CO + co[None, :]
    g_rest = G_REST + k * M * CO + co[None, :]
    total = tl.zeros((BE, BN), tl.float32)
    for m0 in range(part * PER, min((part + 1) * PER, M), BM):
        m = m0 + tl.arange(0, BM)
        live = m < min((part + 1) * PER, M)
        m = tl.minimum(m, M - 1)
        image = m // (ROWS * COLUMNS)
        i = m // COLUMNS % ROWS * STRIDE - PAD
        j = m % COLUMNS * STRIDE - PAD
        at = ((image * HEIGHT + i) * WIDTH + j)[:, None] * CI
        row = i + e0 // (KW * CI)
        column = j + e0 % (KW * CI) // CI
        real = live[:, None] & (co < CO)[None, :]
        left = read_inputs(x + at, row, column, f < E, HEIGHT, WIDTH, PAD, E % BE)
        right = tl.load(g + m[:, None] * CO, mask=real, other=0.0)
        if RESTS:
            left_rest = read_inputs(x_rest + at, row, column, f < E, HEIGHT, WIDTH, PAD, E % BE)
            right_rest = tl.load(g_rest + m[:, None] * CO, mask=real, other=0.0)
            total = tl.dot(tl.trans(left_rest), right, total)
            total = tl.dot(tl.trans(left), right_rest, total)
        total = tl.dot(tl.trans(left), right, total)
    out = (part * CLIENTS + k) * E * CO + f[:, None] + co[None, :] * E
    tl.store(PARTS + out, total, mask=(f < E)[:, None] & (co < CO)[None, :])


@triton.jit
def linear_weights(
    X, G, X_REST, G_REST, DW,
    B, IN: tl.constexpr, OUT: tl.constexpr, RESTS: tl.constexpr,
    BO: tl.constexpr, BI: tl.constexpr, BB: tl.constexpr,
):  # fmt: skip
    """DW = G^T X: the gradient of a linear layer's weights, in one pass over them."""
    i = tl.program_id(0) * BI + tl.arange(0, BI)
    o = tl.program_id(1) * BO + tl.arange(0, BO)
    k = tl.program_id(2).to(tl.int64)
    total = tl.zeros((BO, BI), tl.float32)
    for b0 in range(0, B, BB):
        b = b0 + tl.arange(0, BB)
        rows = (b < B)[:, None]
        inputs = rows & (i < IN)[None, :]
        outputs = rows & (o < OUT)[None, :]
        at_x = (k * B + b)[:, None] * IN + i[None, :]
        at_g = (k * B + b)[:, None] * OUT + o[None, :]
        x = tl.load(X + at_x, mask=inputs, other=0.0)
        g = tl.load(G + at_g, mask=outputs, other=0.0)
        if RESTS:
            x_rest = tl.load(X_REST + at_x, mask=inputs, other=0.0)
            g_rest = tl.load(G_REST + at_g, mask=outputs, other=0.0)
            total = tl.dot(tl.trans(g), x_rest, total)
            total = tl.dot(tl.trans(g_rest), x, total)
        total = tl.dot(tl.trans(g), x, total)
    out = (k * OUT + o)[:, None] * IN + i[None, :]
    tl.store(DW + out, total, mask=(o < OUT)[:, None] & (i < IN)[None, :])
