"""The draw of the next token, as `ops.Program.sample` defines it. One program a row."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _load(row, start, V, BLOCK: tl.constexpr):
    """Token ids, their logits and the order of those as integers; -inf and the lowest integer past the end."""
    ids = start + tl.arange(0, BLOCK)
    x = tl.load(row + ids, mask=ids < V, other=float("-inf")).to(tl.float32)
    x = tl.where(x == 0, 0.0, x)  # one zero
    bits = x.to(tl.int32, bitcast=True)
    key = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64)
    return ids, x, tl.where(ids < V, key, -(1 << 40))


@triton.jit
def _weight(x, peak, temperature):
    """exp(z) in float32: what sums over many tokens need."""
    return tl.exp(((x.to(tl.float64) - peak) / temperature).to(tl.float32))


@triton.jit
def _arg_max(row, V, BLOCK: tl.constexpr):
    """The largest logit and its lowest id."""
    best, best_id = float("-inf"), 0
    for start in range(0, V, BLOCK):
        ids, x, _ = _load(row, start, V, BLOCK)
        top = tl.max(x, axis=0)
        at = tl.min(tl.where((x == top) & (ids < V), ids, V), axis=0)
        best_id = tl.where((top > best) | (start == 0), at, best_id)
        best = tl.maximum(best, top)
    return best, best_id


@triton.jit
def _mass(row, V, bound, floor, edge, peak, temperature, BLOCK: tl.constexpr):
    """Sum of exp(z) over kept tokens with key >= bound; kept: key > floor, or key == floor and id <= edge."""
    mass = tl.zeros([], tl.float64)
    for start in range(0, V, BLOCK):
        ids, x, key = _load(row, start, V, BLOCK)
        kept = (key >= bound) & ((key > floor) | ((key == floor) & (ids <= edge)))
        mass += tl.sum(tl.where(kept, _weight(x, peak, temperature), 0.0).to(tl.float64), axis=0)
    return mass


@triton.jit
def _count(row, V, bound, BLOCK: tl.constexpr):
    """How many tokens have key >= bound."""
    count = 0
    for start in range(0, V, BLOCK):
        _, _, key = _load(row, start, V, BLOCK)
        count += tl.sum((key >= bound).to(tl.int32), axis=0)
    return count


@triton.jit
def _nth_equal(row, V, floor, n, BLOCK: tl.constexpr):
    """The id of the n-th token, from 1, with key == floor."""
    before, found = 0, V
    for start in range(0, V, BLOCK):
        ids, _, key = _load(row, start, V, BLOCK)
        equal = (key == floor).to(tl.int32)
        rank = before + tl.cumsum(equal, axis=0)
        found = tl.minimum(found, tl.min(tl.where((equal == 1) & (rank == n), ids, V), axis=0))
        before += tl.sum(equal, axis=0)
    return found


@triton.jit
def _gumbel(start, words, BLOCK: tl.constexpr):
    """-log(-log(u)) of the ids from `start`, a multiple of 4. words: position low, high, seed low, high."""
    counter = (start // 4 + tl.arange(0, BLOCK // 4)).to(tl.uint32)
    low = tl.load(words).to(tl.uint32, bitcast=True)
    high = tl.load(words + 1).to(tl.uint32, bitcast=True)
    zero = counter * 0
    w0, w1, w2, w3 = tl.philox_impl(
        counter,
        zero,
        zero + low,
        zero + high,
        tl.load(words + 2).to(tl.uint32, bitcast=True),
        tl.load(words + 3).to(tl.uint32, bitcast=True),
    )
    word = tl.reshape(tl.join(tl.join(w0, w2), tl.join(w1, w3)), (BLOCK,))
    uniform = (word.to(tl.float64) + 0.5) * (1.0 / 4294967296.0)
    return -tl.log(-tl.log(uniform))


@triton.jit
def choose(logits, settings, top_ks, words, chosen, V, BLOCK: tl.constexpr):
    """Grid (rows,). logits [R, V]; settings [R, 3] float32: temperature, top_p, min_p; top_ks [R] int32; words [R, 4]
    int32: position low, high, seed low, high; chosen [R] int32."""
    index = tl.program_id(0)
    row = logits + index.to(tl.int64) * V
    temperature = tl.load(settings + index * 3).to(tl.float64)
    peak, winner = _arg_max(row, V, BLOCK)
    if temperature > 0:
        top_p = tl.load(settings + index * 3 + 1)
        min_p = tl.load(settings + index * 3 + 2).to(tl.float64)
        top_k = tl.load(top_ks + index)
        peak = peak.to(tl.float64)
        # Kept are the tokens with key > floor, and of those with key == floor the ids up to edge.
        floor, edge = tl.full([], -(1 << 33), tl.int64), V
        highest = tl.full([], 0x7FFFFFFF, tl.int64)
        lowest = tl.full([], -0x80000000, tl.int64)
        if top_k < V:
            low, high = lowest, highest
            while low < high:
                middle = (low + high + 1) >> 1
                enough = _count(row, V, middle, BLOCK) >= top_k
                low, high = tl.where(enough, middle, low), tl.where(enough, high, middle - 1)
            floor = low
            edge = _nth_equal(row, V, floor, top_k - _count(row, V, floor + 1, BLOCK), BLOCK)
        if top_p < 1:
            wanted = top_p.to(tl.float64) * _mass(row, V, lowest, floor, edge, peak, temperature, BLOCK)
            low, high = tl.maximum(floor, lowest), highest
            while low < high:
                middle = (low + high + 1) >> 1
                enough = _mass(row, V, middle, floor, edge, peak, temperature, BLOCK) >= wanted
                low, high = tl.where(enough, middle, low), tl.where(enough, high, middle - 1)
            above = _mass(row, V, low + 1, floor, edge, peak, temperature, BLOCK)
            bits = tl.where(low < 0, low.to(tl.int32) ^ 0x7FFFFFFF, low.to(tl.int32))
            each = _weight(bits.to(tl.float32, bitcast=True), peak, temperature).to(tl.float64)
            more = tl.maximum(tl.ceil((wanted - above) / each), 1.0)
            last = _nth_equal(row, V, low, tl.minimum(more, 1073741824.0).to(tl.int32), BLOCK)
            edge = tl.where(low == floor, tl.minimum(edge, last), last)
            floor = low
        best = tl.full([], float("-inf"), tl.float64)
        for start in range(0, V, BLOCK):
            ids, x, key = _load(row, start, V, BLOCK)
            z = (x.to(tl.float64) - peak) / temperature
            kept = (key > floor) | ((key == floor) & (ids <= edge))
            # The best token has z = 0 and is always kept, so exp(z) is p / max p.
            kept = kept & (ids < V) & (tl.exp(z) >= min_p)
            score = tl.where(kept, z + _gumbel(start, words + index * 4, BLOCK), float("-inf"))
            top = tl.max(score, axis=0)
            at = tl.min(tl.where(score == top, ids, V), axis=0)
            winner = tl.where(top > best, at, winner)
            best = tl.maximum(best, top)
    tl.store(chosen + index, winner)
