"""Attention over the paged cache: one kernel for chunks of prompts, single queries and shared prefixes.

A context is cut at fixed positions into splits of SPLIT. Each split of a query gives (max, sum, output), computed the
same way whoever asks, and splits are folded from left to right by the same three operations, in one program
(`attend`) or over partial results (`merge`). So a query's bits depend neither on its tile nor on how work was shared
out. What a query doesn't see adds zeros: it has no effect on its bits either.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _fold(maximum, total, output, split_maximum, split_total, split_output):
    """Add a split on the right. Fused where it says so: no compiler may do otherwise in one of the two kernels."""
    new = tl.maximum(maximum, split_maximum)
    # Where nothing was seen yet both are -inf; their difference would be NaN.
    anchor = tl.where(new == float("-inf"), 0.0, new)
    kept, added = tl.exp2(maximum - anchor), tl.exp2(split_maximum - anchor)
    total = tl.fma(total, kept, split_total * added)
    output = tl.fma(output, kept[:, None], split_output * added[:, None])
    return new, total, output


@triton.jit
def attend(
    qkv,
    keys,
    values,
    key_scales,
    value_scales,
    out,
    partials,
    partial_stats,
    items,
    positions,
    tables,
    partial_base,
    table_stride,
    scale_log2,
    window,
    QKV_WIDTH: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    SPLIT: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    ITEM: tl.constexpr,
    WINDOWED: tl.constexpr,
    SCALED: tl.constexpr,
    DOT: tl.constexpr,
    WEIGHT: tl.constexpr,
    VALUE_DOT: tl.constexpr,
):
    """The splits of one item for the query heads of one key head. Grid (items, KV_HEADS).

    items [I, ITEM] int32: block table's row, first split, last split + 1, then ROWS // GROUP tokens, -1 for none. A
    token with partial_base[token] >= 0 leaves its split's result at row partial_base[token] + split; any other token's
    output is whole. positions, partial_base [T]; tables [S, table_stride]; partials [P, Hq, D] float32 and
    partial_stats [P, Hq, 2] float32 (max, sum). scale_log2: the scale of scores times log2(e).

    Where SCALED, keys and values are int8 with float32 scales [slots, KV_HEADS], and the output is rotated as they are.
    Products of queries and keys are in the type DOT; weights are rounded to WEIGHT and multiplied in VALUE_DOT.
    """
    item = items + tl.program_id(0).to(tl.int64) * ITEM
    kv_head = tl.program_id(1)
    table = tables + tl.load(item).to(tl.int64) * table_stride
    first, last = tl.load(item + 1), tl.load(item + 2)

    row = tl.arange(0, ROWS)
    d = tl.arange(0, BLOCK_D)
    place = row // GROUP
    token = tl.load(item + 3 + place, mask=place < ROWS // GROUP, other=-1).to(tl.int64)
    live = token >= 0
    head = kv_head * GROUP + row % GROUP
    position = tl.load(positions + token, mask=live, other=-1)
    end = tl.max(position, axis=0) + 1
    in_head = live[:, None] & (d < D)[None, :]
    q = tl.load(qkv + token[:, None] * QKV_WIDTH + head[:, None] * D + d[None, :], mask=in_head, other=0.0)

    maximum = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    output = tl.zeros([ROWS, BLOCK_D], tl.float32)
    for split in range(first, last):
        split_maximum = tl.full([ROWS], float("-inf"), tl.float32)
        split_total = tl.zeros([ROWS], tl.float32)
        split_output = tl.zeros([ROWS, BLOCK_D], tl.float32)
        for start in range(split * SPLIT, tl.minimum(split * SPLIT + SPLIT, end), TILE):
            seen = start + tl.arange(0, TILE)
            written = seen < end
            block = tl.load(table + seen // BLOCK_SIZE, mask=written, other=0).to(tl.int64)
            entry = (block * BLOCK_SIZE + seen % BLOCK_SIZE) * KV_HEADS + kv_head
            # Beyond the last query the cache may hold anything, NaN too.
            loaded = written[:, None] & (d < D)[None, :]
            k = tl.load(keys + entry[:, None] * D + d[None, :], mask=loaded, other=0.0)
            v = tl.load(values + entry[:, None] * D + d[None, :], mask=loaded, other=0.0)
            scores = tl.dot(q.to(DOT), tl.trans(k.to(DOT)), input_precision="ieee") * scale_log2
            if SCALED:
                scores = scores * tl.load(key_scales + entry, mask=written, other=0.0)[None, :]
            visible = seen[None, :] <= position[:, None]
            if WINDOWED:
                visible = visible & (seen[None, :] > position[:, None] - window)
            scores = tl.where(visible, scores, float("-inf"))
            new = tl.maximum(split_maximum, tl.max(scores, axis=1))
            anchor = tl.where(new == float("-inf"), 0.0, new)
            weights = tl.exp2(scores - anchor[:, None])
            kept = tl.exp2(split_maximum - anchor)
            split_total = split_total * kept + tl.sum(weights, axis=1)
            if SCALED:
                weights = weights * tl.load(value_scales + entry, mask=written, other=0.0)[None, :]
            weights = weights.to(WEIGHT)
            weighed = split_output * kept[:, None]
            split_output = tl.dot(weights.to(VALUE_DOT), v.to(VALUE_DOT), weighed, input_precision="ieee")
            split_maximum = new
        maximum, total, output = _fold(maximum, total, output, split_maximum, split_total, split_output)

    base = tl.load(partial_base + token, mask=live, other=-1)
    whole = live & (base < 0)
    HEADS: tl.constexpr = KV_HEADS * GROUP
    result = output / tl.where(whole, total, 1.0)[:, None]
    target = out + (token * HEADS + head)[:, None] * D + d[None, :]
    tl.store(target, result.to(out.dtype.element_ty), mask=in_head & whole[:, None])
    partial = live & (base >= 0)
    at = (base + first).to(tl.int64) * HEADS + head
    tl.store(partials + at[:, None] * D + d[None, :], output, mask=in_head & partial[:, None])
    tl.store(partial_stats + at * 2, maximum, mask=partial)
    tl.store(partial_stats + at * 2 + 1, total, mask=partial)


@triton.jit
def merge(
    partials,
    partial_stats,
    out,
    merges,
    HEADS: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Fold the partial results of one token and head. Grid (merges, HEADS).

    merges [M, 3] int32: token (-1 for none), the row of its first partial result, how many there are.
    """
    entry = merges + tl.program_id(0).to(tl.int64) * 3
    head = tl.program_id(1)
    token = tl.load(entry).to(tl.int64)
    first, count = tl.load(entry + 1).to(tl.int64), tl.load(entry + 2)
    d = tl.arange(0, BLOCK_D)
    inside = (d < D)[None, :]
    maximum = tl.full([1], float("-inf"), tl.float32)
    total = tl.zeros([1], tl.float32)
    output = tl.zeros([1, BLOCK_D], tl.float32)
    one = tl.arange(0, 1)
    for split in range(count):
        at = (first + split) * HEADS + head
        split_maximum = tl.load(partial_stats + at * 2 + one)
        split_total = tl.load(partial_stats + at * 2 + 1 + one)
        split_output = tl.load(partials + at * D + d[None, :], mask=inside, other=0.0)
        maximum, total, output = _fold(maximum, total, output, split_maximum, split_total, split_output)
    if count > 0:
        target = out + (token * HEADS + head) * D + d[None, :]
        tl.store(target, (output / total[:, None]).to(out.dtype.element_ty), mask=inside)
