"""Native attention: close to a float64 reading of its definition, and the same bits however the work is cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchgen_kernels import _native, ops
from batchgen_kernels.cpu import NativeProgram, instruction_sets
from tests.kernels.ragged import Floats, Segment, make_batch, rounded, shape_for, turned


@dataclass(frozen=True)
class Heads:
    """Geometry of one attention op."""

    query: int
    kv: int
    dim: int
    window: int | None = None
    cache: ops.Precision = "float32"

    @property
    def width(self) -> int:
        return (self.query + 2 * self.kv) * self.dim


@dataclass(frozen=True)
class History:
    """All of one sequence: rotated queries [P, Hq, D], keys and values [P, Hk, D]."""

    queries: Floats
    keys: Floats
    values: Floats

    @classmethod
    def random(cls, length: int, heads: Heads, rng: np.random.Generator) -> History:
        def draw(count: int) -> Floats:
            return rng.standard_normal((length, count, heads.dim)).astype(np.float32)

        return cls(draw(heads.query) * 2, draw(heads.kv), draw(heads.kv))

    def arrays(self) -> tuple[Floats, Floats, Floats]:
        return self.queries, self.keys, self.values


@dataclass(frozen=True)
class Machine:
    """What must not change a bit, except the first, which may."""

    instruction_set: str
    threads: int = 1
    block_size: int = 16


def attend(
    histories: list[History],
    segments: list[Segment],
    heads: Heads,
    machine: Machine,
    rng: np.random.Generator,
    common: Sequence[int] = (),
) -> Floats:
    """The op over these segments [T, Hq D]; whatever nobody may read is NaN.

    `common[s]`: the first blocks that sequence s has in common with the one before it.
    """
    block_size = sixteens(machine.block_size, heads.cache)
    shape = shape_for(segments, block_size)
    program = NativeProgram(shape, machine.threads, machine.instruction_set)
    qkv = program.buffer(heads.width, ops.Extent.TOKENS)
    cache = cast("_native.Cache", program.kv_cache(heads.kv, heads.dim, heads.cache))
    out = cast("_native.Operand", program.operand(heads.query * heads.dim, ops.Extent.TOKENS, "float32"))
    program.attention(qkv, cache, heads.dim**-0.5, heads.window, out)
    batch = make_batch(segments, shape, rng, common=common)
    stored = cache.numpy()
    for array in (*stored, qkv.numpy(shape.max_tokens), out.numpy(shape.max_tokens)):
        array.fill(np.nan if array.dtype == np.float32 else 127)
    for s, (history, (start, count)) in enumerate(zip(histories, segments, strict=True)):
        first = 0 if heads.window is None else max(0, start - heads.window + 1)
        seen = np.arange(first, start + count)
        blocks, offsets = batch.block_tables[s, seen // block_size], seen % block_size
        kept = [history.keys[seen], history.values[seen]]
        if len(stored) == 4:
            (keys, key_scales), (values, value_scales) = map(rounded, kept)
            stored[2][blocks, :, offsets], stored[3][blocks, :, offsets] = key_scales, value_scales
            fours = (keys.astype(np.int16) + 128).astype(np.uint8).reshape(len(seen), heads.kv, -1, 4)
            stored[0][blocks, :, :, offsets] = fours
            stored[1][blocks, :, offsets // 4, :, offsets % 4] = values
        else:
            stored[0][blocks, :, :, offsets], stored[1][blocks, :, offsets] = kept
        own = slice(batch.query_start[s], batch.query_start[s + 1])
        queries = history.queries[start : start + count]
        queries = queries if heads.cache == "float32" else turned(queries)
        qkv.numpy(shape.max_tokens)[own, : heads.query * heads.dim] = queries.reshape(count, -1)
    program.run(batch)
    return out.numpy(shape.max_tokens).copy()


def attended_slowly(history: History, position: int, heads: Heads) -> npt.NDArray[np.float64]:
    """One token's attention [Hq D]."""
    first = 0 if heads.window is None else max(0, position - heads.window + 1)
    group = heads.query // heads.kv
    read = [history.queries[position : position + 1], *(part[first : position + 1] for part in history.arrays()[1:])]
    if heads.cache == "int8":
        read = [turned(numbers * scales[..., None]) for numbers, scales in map(rounded, read)]
    query = read[0][0].astype(np.float64)
    keys, values = (np.repeat(part.astype(np.float64), group, axis=1) for part in read[1:])
    scores = np.einsum("hd,phd->hp", query, keys) * heads.dim**-0.5
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    return np.asarray(np.einsum("hp,phd->hd", weights, values)).reshape(-1)


def sixteens(size: int, cache: ops.Precision) -> int:
    """The least size of heads or blocks from this one up that such a cache can have."""
    return size if cache == "float32" else -(-size // 16) * 16


HEADS = st.builds(
    lambda kv, group, dim, window, cache: Heads(kv * group, kv, sixteens(dim, cache), window, cache),
    st.integers(1, 3),
    st.sampled_from([1, 2, 3, 4, 7, 9]),
    st.sampled_from([8, 16, 24, 64, 80]),
    st.sampled_from([None, None, 1, 5, 40, 300]),
    st.sampled_from(["float32", "int8"]),
)
SEGMENTS = st.lists(
    st.tuples(st.one_of(st.integers(0, 40), st.integers(240, 600)), st.one_of(st.just(1), st.integers(1, 30))),
    min_size=1,
    max_size=5,
)
BLOCK_SIZES = st.sampled_from([1, 4, 8, 16, 24, 32, 64])


@pytest.mark.parametrize("instruction_set", instruction_sets())
@settings(max_examples=40, deadline=None)
@given(
    heads=HEADS, segments=SEGMENTS, block_size=BLOCK_SIZES, threads=st.integers(1, 2), seed=st.integers(0, 2**32 - 1)
)
def test_attention_follows_its_definition(
    instruction_set: str, heads: Heads, segments: list[Segment], block_size: int, threads: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    histories = [History.random(start + count, heads, rng) for start, count in segments]
    out = attend(histories, segments, heads, Machine(instruction_set, threads, block_size), rng)
    expected = [
        attended_slowly(history, position, heads)
        for history, (start, count) in zip(histories, segments, strict=True)
        for position in range(start, start + count)
    ]
    tolerance = 2e-5 if heads.cache == "float32" else 5e-4  # weights of 16 bits
    np.testing.assert_allclose(out, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("instruction_set", instruction_sets())
@settings(max_examples=40, deadline=None)
@given(
    heads=HEADS,
    segments=SEGMENTS,
    block_sizes=st.tuples(BLOCK_SIZES, BLOCK_SIZES),
    seed=st.integers(0, 2**32 - 1),
    data=st.data(),
)
def test_a_token_has_the_same_bits_in_any_batch(
    instruction_set: str,
    heads: Heads,
    segments: list[Segment],
    block_sizes: tuple[int, int],
    seed: int,
    data: st.DataObject,
) -> None:
    """All segments at once with two threads, against steps that compute one chunk of one sequence each."""
    rng = np.random.default_rng(seed)
    histories = [History.random(start + count, heads, rng) for start, count in segments]
    together = attend(histories, segments, heads, Machine(instruction_set, 2, block_sizes[0]), rng)
    chunk = data.draw(st.integers(1, 9), label="chunk")
    alone = [
        attend(
            [history], [(at, min(chunk, start + count - at))], heads, Machine(instruction_set, 1, block_sizes[1]), rng
        )
        for history, (start, count) in zip(histories, segments, strict=True)
        for at in range(start, start + count, chunk)
    ]
    np.testing.assert_array_equal(together.view(np.uint32), np.concatenate(alone).view(np.uint32))


FAMILIES = st.lists(
    st.tuples(st.integers(0, 80), st.integers(1, 30), st.sampled_from([1, 1, 1, 3, 12])), min_size=2, max_size=24
)
"""Of each sequence: the blocks that it has in common with the one before it, its further blocks, its tokens."""


@pytest.mark.parametrize("instruction_set", instruction_sets())
@settings(max_examples=25, deadline=None)
@given(heads=HEADS, family=FAMILIES, blocks=st.sampled_from([8, 16, 24]), seed=st.integers(0, 2**32 - 1))
def test_a_shared_prefix_is_read_together_to_the_same_bits(
    instruction_set: str, heads: Heads, family: list[tuple[int, int, int]], blocks: int, seed: int
) -> None:
    """A tree of prefixes, some of them several splits long, against each sequence by itself."""
    block_size = sixteens(blocks, heads.cache)
    rng = np.random.default_rng(seed)
    histories: list[History] = []
    segments: list[Segment] = []
    common: list[int] = []
    for shared, further, count in family:
        parent = segments[-1][0] // block_size if segments else 0  # blocks that nobody writes to any more
        common.append(min(shared, parent))
        length = (common[-1] + further) * block_size + count
        history = History.random(length, heads, rng)
        for mine, before in zip(
            history.arrays(), histories[-1].arrays() if histories else history.arrays(), strict=True
        ):
            mine[: common[-1] * block_size] = before[: common[-1] * block_size]
        histories.append(history)
        segments.append((length - count, count))
    together = attend(histories, segments, heads, Machine(instruction_set, 2, block_size), rng, common)
    alone = [
        attend([history], [segment], heads, Machine(instruction_set, 1, block_size), rng)
        for history, segment in zip(histories, segments, strict=True)
    ]
    np.testing.assert_array_equal(together.view(np.uint32), np.concatenate(alone).view(np.uint32))


@pytest.mark.parametrize("instruction_set", instruction_sets())
@pytest.mark.parametrize("dim", [64, 96, 128, 256])
def test_large_heads_over_several_splits(instruction_set: str, dim: int) -> None:
    rng = np.random.default_rng(dim)
    heads = Heads(query=4, kv=1, dim=dim, window=512)
    history = History.random(1100, heads, rng)
    out = attend([history], [(1030, 70)], heads, Machine(instruction_set, 2), rng)
    for token in (0, 33, 69):
        np.testing.assert_allclose(out[token], attended_slowly(history, 1030 + token, heads), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("instruction_set", instruction_sets())
def test_what_a_later_token_of_the_chunk_holds_is_never_read(instruction_set: str) -> None:
    """Even where it is infinite or NaN, and in the same vector."""
    rng = np.random.default_rng(3)
    heads = Heads(query=6, kv=2, dim=32)
    history = History.random(40, heads, rng)
    sane = attend([history], [(20, 20)], heads, Machine(instruction_set), rng)
    history.keys[31:], history.values[31:] = np.nan, np.inf
    spoilt = attend([history], [(20, 20)], heads, Machine(instruction_set), rng)
    np.testing.assert_array_equal(sane[:11], spoilt[:11])
    assert np.isnan(spoilt[11:]).any(axis=1).all()


@pytest.mark.parametrize("instruction_set", instruction_sets())
def test_scores_far_apart(instruction_set: str) -> None:
    """One key takes all the weight; exponentials of the others vanish without a NaN."""
    rng = np.random.default_rng(5)
    heads = Heads(query=1, kv=1, dim=16)
    history = History.random(300, heads, rng)
    history.queries[299] = 1e3
    history.keys[:] = -1e3
    history.keys[17] = 1e3
    out = attend([history], [(299, 1)], heads, Machine(instruction_set), rng)
    np.testing.assert_array_equal(out[0], history.values[17, 0])
