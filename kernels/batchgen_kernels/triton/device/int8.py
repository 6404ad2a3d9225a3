"""The int8 scheme of `ops.Precision`: rotated, quantised rows, and products with exact int32 sums."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _butterflies(x, ROWS: tl.constexpr, BLOCK: tl.constexpr, DISTANCE: tl.constexpr):
    """(a, b) -> (a + b, a - b) at one distance; x [ROWS, BLOCK]."""
    pairs = tl.reshape(x, (ROWS, BLOCK // (2 * DISTANCE), 2, DISTANCE))
    a, b = tl.split(tl.permute(pairs, (0, 1, 3, 2)))
    return tl.reshape(tl.permute(tl.join(a + b, a - b), (0, 1, 3, 2)), (ROWS, BLOCK))


@triton.jit
def rotated(x, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Step 1 of `ops.Precision` for x [ROWS, BLOCK] float32."""
    x = _butterflies(x, ROWS, BLOCK, 1)
    x = _butterflies(x, ROWS, BLOCK, 2)
    x = _butterflies(x, ROWS, BLOCK, 4)
    x = _butterflies(x, ROWS, BLOCK, 8)
    x = _butterflies(x, ROWS, BLOCK, 16)
    x = _butterflies(x, ROWS, BLOCK, 32)
    return x * 0.125


@triton.jit
def rounded(x):
    """Step 2 of `ops.Precision` for x [rows, columns] float32: whole numbers in float32, and scales [rows, 1]."""
    peak = tl.max(tl.abs(x), axis=1)[:, None]
    inverse = tl.where(peak > 0, tl.div_rn(127.0, tl.where(peak > 0, peak, 1.0)), 0.0)
    # Adding and taking away 3 * 2**22 rounds to nearest, halves to even: what is left has no fraction bits.
    return (x * inverse + 12582912.0) - 12582912.0, tl.div_rn(peak, 127.0)


@triton.jit
def quantize(x, out, scales, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """x [rows, WIDTH] -> out [rows, WIDTH] int8, scales [rows] float32. Grid (rows,), BLOCK >= WIDTH, both of 64s."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)[None, :]
    inside = column < WIDTH
    y = tl.load(x + row * WIDTH + column, mask=inside, other=0.0).to(tl.float32)
    q, scale = rounded(rotated(y, 1, BLOCK))
    tl.store(out + row * WIDTH + column, q.to(tl.int8), mask=inside)
    tl.store(scales + row + tl.arange(0, 1)[:, None], scale)


@triton.jit
def rotate(x, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Rotate x [rows, WIDTH] where it lies. Grid (rows, ceil(WIDTH / BLOCK)), both of 64s."""
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    inside = column < WIDTH
    place = x + tl.program_id(0).to(tl.int64) * WIDTH + column
    y = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    tl.store(place, rotated(y, 1, BLOCK).to(x.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows"])  # else it is compiled anew for one row and for multiples of 16
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
