"""The draw of the next token and log-probabilities, as `ops.Program` defines them. One program a row."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _load(row, start, V, BLOCK: tl.constexpr):
    """Token ids, their logits and the order of those as integers; -inf and the lowest integer past the end."""
    ids = start + tl.arange(0, BLOCK)
    x = tl.load(row + ids, mask=ids < V, other=float("-inf")).to(tl.float32)
    x = tl.where(x == x, x, float("-inf"))  # a NaN is no candidate
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
def choose(logits, settings, top_ks, words, fallbacks, chosen, V, BLOCK: tl.constexpr):
    """Grid (rows,). logits [R, V]; settings [R, 3] float32: temperature, top_p, min_p; top_ks [R] int32; words [R, 4]
    int32: position low, high, seed low, high; fallbacks [R] int32, for rows of minus infinity; chosen [R] int32."""
    index = tl.program_id(0)
    row = logits + index.to(tl.int64) * V
    temperature = tl.load(settings + index * 3).to(tl.float64)
    peak, winner = _arg_max(row, V, BLOCK)
    if peak == float("-inf"):
        winner = tl.load(fallbacks + index)
    elif temperature > 0:
        top_p = tl.load(settings + index * 3 + 1)
        min_p = tl.load(settings + index * 3 + 2).to(tl.float64)
        top_k = tl.load(top_ks + index)
        top = peak.to(tl.float64)
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
            wanted = top_p.to(tl.float64) * _mass(row, V, lowest, floor, edge, top, temperature, BLOCK)
            low, high = tl.maximum(floor, lowest), highest
            while low < high:
                middle = (low + high + 1) >> 1
                mass = _mass(row, V, middle, floor, edge, top, temperature, BLOCK)
                enough = (mass >= wanted) & (mass > 0)
                low, high = tl.where(enough, middle, low), tl.where(enough, high, middle - 1)
            above = _mass(row, V, low + 1, floor, edge, top, temperature, BLOCK)
            bits = tl.where(low < 0, low.to(tl.int32) ^ 0x7FFFFFFF, low.to(tl.int32))
            each = _weight(bits.to(tl.float32, bitcast=True), top, temperature).to(tl.float64)
            more = tl.maximum(tl.ceil((wanted - above) / each), 1.0)
            last = _nth_equal(row, V, low, tl.minimum(more, 1073741824.0).to(tl.int32), BLOCK)
            edge = tl.where(low == floor, tl.minimum(edge, last), last)
            floor = low
        best = tl.full([], float("-inf"), tl.float64)
        for start in range(0, V, BLOCK):
            ids, x, key = _load(row, start, V, BLOCK)
            z = (x.to(tl.float64) - top) / temperature
            kept = (key > floor) | ((key == floor) & (ids <= edge))
            # The best token has z = 0 and is always kept, so exp(z) is p / max p.
            kept = kept & (ids < V) & (tl.exp(z) >= min_p)
            score = tl.where(kept, z + _gumbel(start, words + index * 4, BLOCK), float("-inf"))
            largest = tl.max(score, axis=0)
            at = tl.min(tl.where(score == largest, ids, V), axis=0)
            winner = tl.where(largest > best, at, winner)
            best = tl.maximum(best, largest)
    tl.store(chosen + index, winner)


@triton.jit
def mask_rows(logits, mask_of, masks, out, V, WORDS, BLOCK: tl.constexpr):
    """out [R, V] float32 = logits, -inf where a row's mask has no bit. Grid (rows, ceil(V / BLOCK))."""
    index = tl.program_id(0)
    ids = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = ids < V
    x = tl.load(logits + index.to(tl.int64) * V + ids, mask=inside, other=0.0).to(tl.float32)
    which = tl.load(mask_of + index)
    if which >= 0:
        word = tl.load(masks + which.to(tl.int64) * WORDS + ids // 32, mask=inside, other=0)
        x = tl.where(((word >> (ids % 32)) & 1) == 1, x, float("-inf"))
    tl.store(out + index.to(tl.int64) * V + ids, x, mask=inside)


@triton.jit
def add_bias(x, starts, tokens, bias, V, BLOCK: tl.constexpr):
    """x[r, tokens] += bias over row r's entries [starts[r], starts[r + 1]). Grid (rows,)."""
    index = tl.program_id(0)
    end = tl.load(starts + index + 1)
    for start in range(tl.load(starts + index), end, BLOCK):
        entry = start + tl.arange(0, BLOCK)
        inside = entry < end
        target = x + index.to(tl.int64) * V + tl.load(tokens + entry, mask=inside, other=0)
        value = tl.load(target, mask=inside, other=0.0) + tl.load(bias + entry, mask=inside, other=0.0)
        tl.store(target, value, mask=inside)


@triton.jit
def penalise(x, starts, tokens, counts, penalties, V, BLOCK: tl.constexpr):
    """Steps c and d over row r's context. penalties [R, 3]: repetition, frequency, presence. Grid (rows,)."""
    index = tl.program_id(0)
    repetition = tl.load(penalties + index * 3)
    frequency = tl.load(penalties + index * 3 + 1)
    presence = tl.load(penalties + index * 3 + 2)
    end = tl.load(starts + index + 1)
    for start in range(tl.load(starts + index), end, BLOCK):
        entry = start + tl.arange(0, BLOCK)
        inside = entry < end
        target = x + index.to(tl.int64) * V + tl.load(tokens + entry, mask=inside, other=0)
        count = tl.load(counts + entry, mask=inside, other=0)
        value = tl.load(target, mask=inside, other=0.0)
        value = tl.where(value > 0, tl.div_rn(value, tl.zeros([BLOCK], tl.float32) + repetition), value * repetition)
        generated = (value - frequency * count.to(tl.float32)) - presence
        tl.store(target, tl.where(count > 0, generated, value), mask=inside)


@triton.jit
def logprobs(logits, rows, tokens, out, ids_out, count, V, BLOCK: tl.constexpr):
    """Grid (queries,). out [Q, 1 + count] float32: log-probability of the token, then of the most probable ones;
    ids_out [Q, 1 + count] int32: rank of the token, then the ids of those."""
    query = tl.program_id(0)
    row = logits + tl.load(rows + query).to(tl.int64) * V
    token = tl.load(tokens + query)
    largest, best_id = _arg_max(row, V, BLOCK)
    peak = largest.to(tl.float64)
    own = tl.load(row + token).to(tl.float32)
    mass = tl.zeros([], tl.float64)
    before = 0
    for start in range(0, V, BLOCK):
        ids, x, _ = _load(row, start, V, BLOCK)
        mass += tl.sum(tl.exp(x.to(tl.float64) - peak), axis=0)
        before += tl.sum(((x > own) | ((x == own) & (ids < token))).to(tl.int32), axis=0)
    base = peak + tl.log(mass)
    tl.store(out + query * (count + 1), (own.to(tl.float64) - base).to(tl.float32))
    tl.store(ids_out + query * (count + 1), before + 1)
    last_key, last_id = tl.full([], 1 << 40, tl.int64), -1
    for place in range(count):
        best_key, best_id = tl.full([], -(1 << 41), tl.int64), V
        best = tl.full([], float("-inf"), tl.float32)
        for start in range(0, V, BLOCK):
            ids, x, key = _load(row, start, V, BLOCK)
            left = (ids < V) & ((key < last_key) | ((key == last_key) & (ids > last_id)))
            top = tl.max(tl.where(left, key, -(1 << 41)), axis=0)
            at = tl.min(tl.where(left & (key == top), ids, V), axis=0)
            value = tl.max(tl.where(left & (ids == at), x, float("-inf")), axis=0)
            best = tl.where(top > best_key, value, best)
            best_id = tl.where(top > best_key, at, best_id)
            best_key = tl.maximum(best_key, top)
        tl.store(out + query * (count + 1) + 1 + place, (best.to(tl.float64) - base).to(tl.float32))
        tl.store(ids_out + query * (count + 1) + 1 + place, best_id)
        last_key, last_id = best_key, best_id
