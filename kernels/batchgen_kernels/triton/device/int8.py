"""The int8 scheme of `ops.Precision`: rotated, quantised rows, and products with exact int32 sums."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _butterflies(x, BLOCK: tl.constexpr, DISTANCE: tl.constexpr):
    """(a, b) -> (a + b, a - b) at one distance; x [BLOCK]."""
    pairs = tl.reshape(x, (BLOCK // (2 * DISTANCE), 2, DISTANCE))
    a, b = tl.split(tl.permute(pairs, (0, 2, 1)))
    return tl.reshape(tl.permute(tl.join(a + b, a - b), (0, 2, 1)), (BLOCK,))


@triton.jit
def quantize(x, out, scales, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """x [rows, WIDTH] -> out [rows, WIDTH] int8, scales [rows] float32. Grid (rows,), BLOCK >= WIDTH, both of 64s."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    y = tl.load(x + row * WIDTH + column, mask=inside, other=0.0).to(tl.float32)
    y = _butterflies(y, BLOCK, 1)
    y = _butterflies(y, BLOCK, 2)
    y = _butterflies(y, BLOCK, 4)
    y = _butterflies(y, BLOCK, 8)
    y = _butterflies(y, BLOCK, 16)
    y = _butterflies(y, BLOCK, 32)
    y = y * 0.125
    peak = tl.max(tl.abs(y), axis=0)
    inverse = tl.where(peak > 0, tl.div_rn(127.0, tl.where(peak > 0, peak, 1.0)), 0.0)
    # Adding and taking away 3 * 2**22 rounds to nearest, halves to even: what is left has no fraction bits.
    scaled = y * inverse
    rounded = (scaled + 12582912.0) - 12582912.0
    tl.store(out + row * WIDTH + column, rounded.to(tl.int8), mask=inside)
    tl.store(scales + row, tl.div_rn(peak, 127.0))


@triton.jit
def linear_int8(
    x,
    x_scales,
    weight,
    weight_scales,
    bias,
    out,
    rows,
    K: tl.constexpr,
    N: tl.constexpr,
    BIASED: tl.constexpr,
    ADD: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """out = x @ weight.T + bias, or out += that where ADD. Grid (ceil(rows / BLOCK_M), ceil(N / BLOCK_N)).

    x [rows, K] int8 with x_scales [rows], weight [N, K] int8 with weight_scales [N], K a multiple of BLOCK_K. The sums
    are exact, so that bits don't depend on the tile's shape.
    """
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    left = x + m.to(tl.int64)[:, None] * K + k[None, :]
    right = weight + n.to(tl.int64)[None, :] * K + k[:, None]
    sums = tl.zeros([BLOCK_M, BLOCK_N], tl.int32)
    for start in range(0, K, BLOCK_K):
        a = tl.load(left + start, mask=(m < rows)[:, None], other=0)
        b = tl.load(right + start, mask=(n < N)[None, :], other=0)
        sums = tl.dot(a, b, sums, out_dtype=tl.int32)
    scale_m = tl.load(x_scales + m, mask=m < rows, other=0.0)
    scale_n = tl.load(weight_scales + n, mask=n < N, other=0.0)
    result = sums.to(tl.float32) * scale_m[:, None] * scale_n[None, :]
    if BIASED:
        result += tl.load(bias + n, mask=n < N, other=0.0)[None, :]
    target = out + m.to(tl.int64)[:, None] * N + n[None, :]
    inside = (m < rows)[:, None] & (n < N)[None, :]
    if ADD:
        result += tl.load(target, mask=inside, other=0.0).to(tl.float32)
    tl.store(target, result.to(out.dtype.element_ty), mask=inside)
