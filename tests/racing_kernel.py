"""A kernel as ours must not be: it reads what a product reads beside it, in the same loop."""

import triton
import triton.language as tl


@triton.jit
def multiply_and_sum(X, G, OUT, SUMS, M, B: tl.constexpr):
    """OUT = X^T G and the sums of G's columns."""
    b = tl.arange(0, B)
    total = tl.zeros((B, B), tl.float32)
    sums = tl.zeros((B,), tl.float32)
    for m0 in range(0, M, B):
        at = (m0 + b)[:, None] * B + b[None, :]
        right = tl.load(G + at, mask=(m0 + b < M)[:, None], other=0.0)
        left = tl.load(X + at, mask=(m0 + b < M)[:, None], other=0.0)
        total = tl.dot(tl.trans(left), right, total)
        sums += tl.sum(right.to(tl.float32), 0)
    tl.store(OUT + b[:, None] * B + b[None, :], total)
    tl.store(SUMS + b, sums)
