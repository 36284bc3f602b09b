"""Triton kernels for the layers of many clients, each with weights of its own.

Every tensor has a client axis first.  Images lie with their channels innermost, so that the inputs
of an output pixel are a few contiguous pieces.  Their border of zeros is not in memory where a
tile's inputs are all of one pixel (PAD): whether that one lies outside is asked once.  Operands are
bfloat16, or float32 rounded to TF32; sums are float32, in an order that depends on one client's
shapes alone: no atomics, and the same bits whoever trains beside.  For TF32, operands must have
the axis that is summed over innermost (TURNED), or be cut into two of bfloat16 as in
`weight_tiles`, which has the gradients of weights.
"""

import triton
import triton.language as tl


@triton.jit
def larger(a, b):
    """The larger of two, or NaN."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _masked(at, a, b, RAGGED_A: tl.constexpr, RAGGED_B: tl.constexpr):
    """What lies at ``at`` where a and b hold, else zero; masks of full tiles are left out."""
    if RAGGED_A > 0:
        if RAGGED_B > 0:
            return tl.load(at, mask=a & b, other=0.0)
        else:
            return tl.load(at, mask=a, other=0.0)
    elif RAGGED_B > 0:
        return tl.load(at, mask=b, other=0.0)
    else:
        return tl.load(at)


@triton.jit
def read_inputs(
    at, row, column, real,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, PAD: tl.constexpr, RAGGED: tl.constexpr,
):  # fmt: skip
    """Inputs of some outputs: with PAD zero where a row and a column lie outside the image."""
    if PAD > 0:
        inside = (row >= 0) & (row < HEIGHT) & (column >= 0) & (column < WIDTH)
        return tl.load(at, mask=inside[:, None], other=0.0)
    else:
        return _masked(at, real[None, :], True, RAGGED, 0)


@triton.jit
def convolve(
    X, W, BIAS, Y, CODE, client_w,
    M, ROWS: tl.constexpr, COLUMNS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    CI: tl.constexpr, CO: tl.constexpr, KW: tl.constexpr, E: tl.constexpr, STRIDE: tl.constexpr,
    PAD: tl.constexpr, HAS_BIAS: tl.constexpr, RELU: tl.constexpr, POOL: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BE: tl.constexpr,
):  # fmt: skip
    """Y = X * W + BIAS, then ReLU, then the largest of 2x2 with CODE saying which (4: none).

    X is [clients, images, HEIGHT, WIDTH, CI] with PAD zeros thought of around images (BE divides CI
    then); W [clients, CO, E] has the weights of the E inputs of an output, row by row of kernels;
    a program makes BM pixels of BN channels.
    """
    k = tl.program_id(2).to(tl.int64)
    m = tl.minimum(tl.program_id(0) * BM + tl.arange(0, BM), M - 1)
    co = tl.program_id(1) * BN + tl.arange(0, BN)
    e = tl.arange(0, BE)
    image = m // (ROWS * COLUMNS)
    step: tl.constexpr = STRIDE * (2 if POOL else 1)
    i = m // COLUMNS % ROWS * step - PAD
    j = m % COLUMNS * step - PAD
    x = X + k * (M // (ROWS * COLUMNS)) * (HEIGHT * WIDTH * CI)
    x += ((image * HEIGHT + i) * WIDTH + j)[:, None] * CI
    w = W + k * client_w
    a0 = tl.zeros((BM, BN), tl.float32)
    if POOL:
        a1 = tl.zeros((BM, BN), tl.float32)
        a2 = tl.zeros((BM, BN), tl.float32)
        a3 = tl.zeros((BM, BN), tl.float32)
    for e0 in range(0, E, BE):
        f = e0 + e
        at = x + (f // (KW * CI) * (WIDTH * CI) + f % (KW * CI))[None, :]
        weights = w + co[None, :] * E + f[:, None]
        right = _masked(weights, (f < E)[:, None], (co < CO)[None, :], E % BE, CO % BN)
        row = i + e0 // (KW * CI)
        column = j + e0 % (KW * CI) // CI
        a0 = tl.dot(read_inputs(at, row, column, f < E, HEIGHT, WIDTH, PAD, E % BE), right, a0)
        if POOL:
            near = read_inputs(
                at + STRIDE * CI, row, column + STRIDE, f < E, HEIGHT, WIDTH, PAD, E % BE
            )
            a1 = tl.dot(near, right, a1)
            at += STRIDE * WIDTH * CI
            row += STRIDE
            below = read_inputs(at, row, column, f < E, HEIGHT, WIDTH, PAD, E % BE)
            a2 = tl.dot(below, right, a2)
            both = read_inputs(
                at + STRIDE * CI, row, column + STRIDE, f < E, HEIGHT, WIDTH, PAD, E % BE
            )
            a3 = tl.dot(both, right, a3)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    out = (k * M + m)[:, None] * CO + co[None, :]
    kept = (m < M)[:, None] & (co < CO)[None, :]
    y = a0
    if POOL:
        y = larger(larger(a0, a1), larger(a2, a3))
        code = tl.where(a0 == y, 0, tl.where(a1 == y, 1, tl.where(a2 == y, 2, 3)))
    if HAS_BIAS:
        y += tl.load(BIAS + k * CO + co, mask=co < CO, other=0.0).to(tl.float32)[None, :]
    if POOL:
        if RELU:
            code = tl.where(y <= 0, 4, code)
        tl.store(CODE + out, code.to(tl.uint8), mask=kept)
    if RELU:
        y = larger(y, 0.0)
    tl.store(Y + out, y.to(Y.dtype.element_ty), mask=kept)


@triton.jit
def convolve_back(
    G, W, DX, client_w,
    M, ROWS: tl.constexpr, COLUMNS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    CI: tl.constexpr, CO: tl.constexpr, KW: tl.constexpr, E: tl.constexpr, OUT: tl.constexpr,
    STRIDE: tl.constexpr, PAD: tl.constexpr, TURNED: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BE: tl.constexpr,
):  # fmt: skip
    """DX [clients, images, ROWS, COLUMNS, CO]: at a pixel, the sum over the outputs it went into.

    G [clients, images, HEIGHT, WIDTH, CI] is the gradient of what `convolve` made with W, STRIDE
    and PAD; it has OUT channels and zeros (BE divides CI).  TURNED, W is [clients, places of a
    kernel, CO, CI], with the same zeros.  Row ``a`` went into row (a + PAD - r) /
    STRIDE by the kernel's row ``r``, for those ``r`` that leave no remainder.  Pixels that have the
    same such rows and columns are of one kind, M of each; a program makes BM of a kind, for BN
    channels.
    """
    tall: tl.constexpr = (ROWS + STRIDE - 1) // STRIDE
    wide: tl.constexpr = (COLUMNS + STRIDE - 1) // STRIDE
    tiles = tl.cdiv(M, BM)
    kind = STRIDE * STRIDE - 1 - tl.program_id(0) // tiles
    k = tl.program_id(2).to(tl.int64)
    m = tl.program_id(0) % tiles * BM + tl.arange(0, BM)
    co = tl.program_id(1) * BN + tl.arange(0, BN)
    e = tl.arange(0, BE)
    image = tl.minimum(m, M - 1) // (tall * wide)
    a = m // wide % tall
    b = m % wide
    first_row = (kind // STRIDE + PAD) % STRIDE
    first_column = (kind % STRIDE + PAD) % STRIDE
    rows = (KW - first_row + STRIDE - 1) // STRIDE
    columns = (KW - first_column + STRIDE - 1) // STRIDE
    i = (
        a + (kind // STRIDE + PAD) // STRIDE
    )  # where the first of these rows of the kernel comes from
    j = b + (kind % STRIDE + PAD) // STRIDE
    images = M // (tall * wide)
    g = G + k * images * (HEIGHT * WIDTH * CI)
    g += ((image * HEIGHT + i) * WIDTH + j)[:, None] * CI
    w = W + k * client_w
    total = tl.zeros((BM, BN), tl.float32)
    for e0 in range(0, rows * columns * CI, BE):
        place = rows * columns - 1 - e0 // CI
        up = place // columns
        left = place % columns
        f = tl.multiple_of(e0 % CI, BE) + e
        inside = (i >= up) & (i < HEIGHT + up) & (j >= left) & (j < WIDTH + left)
        seen = tl.load(g + (f - (up * WIDTH + left) * CI)[None, :], mask=inside[:, None], other=0.0)
        at = (first_row + up * STRIDE) * KW + first_column + left * STRIDE
        if TURNED:
            weights = w + f[:, None] + (at * CO + co)[None, :] * CI
        else:
            weights = w + f[:, None] * E + at * (E // (KW * KW)) + co[None, :]
        right = _masked(weights, (f < OUT)[:, None], (co < CO)[None, :], CI - OUT, CO % BN)
        total = tl.dot(seen, right, total)
    a = a * STRIDE + kind // STRIDE
    b = b * STRIDE + kind % STRIDE
    out = ((k * images + image) * ROWS + a) * COLUMNS + b
    kept = ((m < M) & (a < ROWS) & (b < COLUMNS))[:, None] & (co < CO)[None, :]
    tl.store(DX + out[:, None] * CO + co[None, :], total.to(DX.dtype.element_ty), mask=kept)


@triton.jit(do_not_specialize=["CLIENTS", "B"])
def multiply(
    X, W, PARTS, client_w,
    CLIENTS, B, IN: tl.constexpr, OUT: tl.constexpr, PER: tl.constexpr,
    BB: tl.constexpr, BO: tl.constexpr, BI: tl.constexpr,
):  # fmt: skip
    """PARTS [parts, clients, B, OUT]: X W^T over each PER of the IN; W [clients, OUT, IN]."""
    o = tl.program_id(0) * BO + tl.arange(0, BO)
    part = tl.program_id(1) % tl.cdiv(IN, PER)
    b = tl.program_id(1) // tl.cdiv(IN, PER) * BB + tl.arange(0, BB)
    k = tl.program_id(2).to(tl.int64)
    total = tl.zeros((BB, BO), tl.float32)
    rows = (b < B)[:, None]
    outputs = (o < OUT)[:, None]
    for i0 in range(part * PER, min((part + 1) * PER, IN), BI):
        i = i0 + tl.arange(0, BI)
        real = (i < min((part + 1) * PER, IN))[None, :]
        x = tl.load(X + (k * B + b)[:, None] * IN + i[None, :], mask=rows & real, other=0.0)
        w = tl.load(W + k * client_w + o[:, None] * IN + i[None, :], mask=outputs & real, other=0.0)
        total = tl.dot(x, tl.trans(w.to(X.dtype.element_ty)), total)
    out = ((part * CLIENTS + k) * B + b)[:, None] * OUT + o[None, :]
    tl.store(PARTS + out, total, mask=rows & (o < OUT)[None, :])


@triton.jit
def multiply_back(
    G, W, DX, client_w,
    B, IN: tl.constexpr, OUT: tl.constexpr,
    BB: tl.constexpr, BI: tl.constexpr, BO: tl.constexpr,
):  # fmt: skip
    """DX = G W: the gradient of a linear layer's input; of float32 as in `weight_tiles`."""
    i = tl.program_id(0) * BI + tl.arange(0, BI)
    b = tl.program_id(1) * BB + tl.arange(0, BB)
    k = tl.program_id(2).to(tl.int64)
    total = tl.zeros((BB, BI), tl.float32)
    rows = (b < B)[:, None]
    inputs = (i < IN)[None, :]
    for o0 in range(0, OUT, BO):
        o = o0 + tl.arange(0, BO)
        g = tl.load(
            G + (k * B + b)[:, None] * OUT + o[None, :], mask=rows & (o < OUT)[None, :], other=0.0
        )
        w = tl.load(
            W + k * client_w + o[:, None] * IN + i[None, :],
            mask=(o < OUT)[:, None] & inputs,
            other=0.0,
        )
        high = g.to(tl.bfloat16)
        right = w.to(tl.bfloat16)
        if G.dtype.element_ty == tl.float32:
            total = tl.dot((g - high.to(tl.float32)).to(tl.bfloat16), right, total)
            total = tl.dot(high, (w - right.to(tl.float32)).to(tl.bfloat16), total)
        total = tl.dot(high, right, total)
    out = (k * B + b)[:, None] * IN + i[None, :]
    tl.store(DX + out, total.to(DX.dtype.element_ty), mask=rows & inputs)
