"""Rotation of queries and keys, their norms, and the write to the KV cache."""

from __future__ import annotations

import triton
import triton.language as tl


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
    raw_a = tl.load(source, mask=inside, other=0.0)
    raw_b = tl.load(source + HALF, mask=inside, other=0.0)
    a, b = raw_a.to(tl.float32), raw_b.to(tl.float32)
    if NORMED:
        inverse = 1.0 / tl.sqrt((tl.sum(a * a, axis=1) + tl.sum(b * b, axis=1)) / WIDTH + eps)
        q_a = tl.load(q_norm + d, mask=d < HALF, other=0.0)
        q_b = tl.load(q_norm + HALF + d, mask=d < HALF, other=0.0)
        k_a = tl.load(k_norm + d, mask=d < HALF, other=0.0)
        k_b = tl.load(k_norm + HALF + d, mask=d < HALF, other=0.0)
        a = a * inverse[:, None] * tl.where(is_query[:, None], q_a[None, :], k_a[None, :])
        b = b * inverse[:, None] * tl.where(is_query[:, None], q_b[None, :], k_b[None, :])
    angle = tl.load(positions + token).to(tl.int64) * HALF + d
    c = tl.load(cos + angle, mask=d < HALF, other=0.0)[None, :]
    s = tl.load(sin + angle, mask=d < HALF, other=0.0)[None, :]
    turned_a = (a * c - b * s).to(qkv.dtype.element_ty)
    turned_b = (b * c + a * s).to(qkv.dtype.element_ty)

    queries = inside & is_query[:, None]
    tl.store(source, turned_a, mask=queries)
    tl.store(source + HALF, turned_b, mask=queries)
    if slot >= 0:
        base = slot * (KV_HEADS * WIDTH) + d[None, :]
        key = base + (head - Q_HEADS)[:, None] * WIDTH
        stored = inside & is_key[:, None]
        tl.store(keys + key, turned_a, mask=stored)
        tl.store(keys + key + HALF, turned_b, mask=stored)
        value = base + (head - Q_HEADS - KV_HEADS)[:, None] * WIDTH
        stored = inside & is_value[:, None]
        tl.store(values + value, raw_a, mask=stored)
        tl.store(values + value + HALF, raw_b, mask=stored)
