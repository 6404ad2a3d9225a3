"""Rotation of queries and keys, their norms, and the write to the KV cache."""

from __future__ import annotations

import triton
import triton.language as tl

from batchgen_kernels.triton.device.int8 import rotated, rounded


@triton.jit
def _turned(
    source,
    cos,
    sin,
    q_norm,
    k_norm,
    position,
    eps,
    inside,
    is_query,
    d,
    HALF: tl.constexpr,
    NORMED: tl.constexpr,
):
    """The halves of heads at `source` [heads, BLOCK] as they are, then normed and rotated, in float32."""
    raw_a = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    raw_b = tl.load(source + HALF, mask=inside, other=0.0).to(tl.float32)
    a, b = raw_a, raw_b
    if NORMED:
        inverse = 1.0 / tl.sqrt((tl.sum(a * a, axis=1) + tl.sum(b * b, axis=1)) / (2 * HALF) + eps)
        q_a = tl.load(q_norm + d, mask=d < HALF, other=0.0)
        q_b = tl.load(q_norm + HALF + d, mask=d < HALF, other=0.0)
        k_a = tl.load(k_norm + d, mask=d < HALF, other=0.0)
        k_b = tl.load(k_norm + HALF + d, mask=d < HALF, other=0.0)
        a = a * inverse[:, None] * tl.where(is_query[:, None], q_a[None, :], k_a[None, :])
        b = b * inverse[:, None] * tl.where(is_query[:, None], q_b[None, :], k_b[None, :])
    angle = position.to(tl.int64) * HALF + d
    c = tl.load(cos + angle, mask=d < HALF, other=0.0)[None, :]
    s = tl.load(sin + angle, mask=d < HALF, other=0.0)[None, :]
    return raw_a, raw_b, a * c - b * s, b * c + a * s


@triton.jit
def rotate_store(
    qkv,
    keys,
    values,
    cos,
    sin,
    q_norm,
    k_norm,
    positions,
    slots,
    eps,
    Q_HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK: tl.constexpr,
    HEADS: tl.constexpr,
    NORMED: tl.constexpr,
):
    """See `ops.Program.rotate_store`. Grid (tokens, ceil((Q_HEADS + 2 KV_HEADS) / HEADS)); BLOCK >= HALF = D / 2.

    qkv [T, (Q_HEADS + 2 KV_HEADS) D]; keys, values [slots, KV_HEADS, D]; a token with slot -1 is padding.
    """
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    d = tl.arange(0, BLOCK)
    WIDTH: tl.constexpr = 2 * HALF
    TOTAL: tl.constexpr = Q_HEADS + 2 * KV_HEADS
    is_query = head < Q_HEADS
    is_key = (head >= Q_HEADS) & (head < Q_HEADS + KV_HEADS)
    is_value = (head >= Q_HEADS + KV_HEADS) & (head < TOTAL)
    inside = (head < TOTAL)[:, None] & (d < HALF)[None, :]

    source = qkv + token * (TOTAL * WIDTH) + head[:, None] * WIDTH + d[None, :]
    position = tl.load(positions + token)
    raw_a, raw_b, a, b = _turned(source, cos, sin, q_norm, k_norm, position, eps, inside, is_query, d, HALF, NORMED)
    KIND: tl.constexpr = qkv.dtype.element_ty
    queries = inside & is_query[:, None]
    tl.store(source, a.to(KIND), mask=queries)
    tl.store(source + HALF, b.to(KIND), mask=queries)
    if slot >= 0:
        base = slot * (KV_HEADS * WIDTH) + d[None, :]
        key = base + (head - Q_HEADS)[:, None] * WIDTH
        stored = inside & is_key[:, None]
        tl.store(keys + key, a.to(KIND), mask=stored)
        tl.store(keys + key + HALF, b.to(KIND), mask=stored)
        value = base + (head - Q_HEADS - KV_HEADS)[:, None] * WIDTH
        stored = inside & is_value[:, None]
        tl.store(values + value, raw_a.to(KIND), mask=stored)
        tl.store(values + value + HALF, raw_b.to(KIND), mask=stored)


@triton.jit
def rotate_store_int8(
    qkv,
    keys,
    values,
    key_scales,
    value_scales,
    cos,
    sin,
    q_norm,
    k_norm,
    positions,
    slots,
    eps,
    Q_HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK: tl.constexpr,
    HEADS: tl.constexpr,
    NORMED: tl.constexpr,
    ROTATED: tl.constexpr,
):
    """`rotate_store` into an int8 cache: keys, values int8 [slots, KV_HEADS, D] with scales float32 [slots, KV_HEADS].

    Queries are rounded likewise; where ROTATED (D = 2 BLOCK, a multiple of 64) they are left rotated, as keys are.
    """
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    half = tl.arange(0, BLOCK)
    WIDTH: tl.constexpr = 2 * HALF
    TOTAL: tl.constexpr = Q_HEADS + 2 * KV_HEADS
    is_query = head < Q_HEADS
    inside = (head < TOTAL)[:, None] & (half < HALF)[None, :]

    source = qkv + token * (TOTAL * WIDTH) + head[:, None] * WIDTH + half[None, :]
    position = tl.load(positions + token)
    raw_a, raw_b, a, b = _turned(source, cos, sin, q_norm, k_norm, position, eps, inside, is_query, half, HALF, NORMED)
    is_value = (head >= Q_HEADS + KV_HEADS)[:, None]
    a, b = tl.where(is_value, raw_a, a), tl.where(is_value, raw_b, b)
    # [HEADS, 2 BLOCK]: one half behind the other, each padded to BLOCK.
    x = tl.reshape(tl.permute(tl.join(a, b), (0, 2, 1)), (HEADS, 2 * BLOCK))
    if ROTATED:
        x = rotated(x, HEADS, 2 * BLOCK)
    column = tl.arange(0, 2 * BLOCK)
    d = column % BLOCK + column // BLOCK * HALF
    inside = (head < TOTAL)[:, None] & (column % BLOCK < HALF)[None, :]
    # Each number depends on all that were loaded of its place: nothing is overwritten before it was read.
    target = qkv + token * (TOTAL * WIDTH) + head[:, None] * WIDTH + d[None, :]
    q, scale = rounded(x)
    tl.store(target, (q * scale).to(qkv.dtype.element_ty), mask=inside & is_query[:, None])
    if slot >= 0:
        numbers = q.to(tl.int8)
        first = tl.where(is_value, Q_HEADS + KV_HEADS, Q_HEADS)
        place = slot * KV_HEADS + head[:, None] - first
        stored = (head < TOTAL)[:, None] & (head >= Q_HEADS)[:, None]
        tl.store(keys + place * WIDTH + d[None, :], numbers, mask=inside & stored & ~is_value)
        tl.store(values + place * WIDTH + d[None, :], numbers, mask=inside & stored & is_value)
        tl.store(key_scales + place, scale, mask=stored & ~is_value)
        tl.store(value_scales + place, scale, mask=stored & is_value)
