"""How attention is shared out: every token gets each split that it sees once, and its results are put together."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from batchgen_kernels import ops
from batchgen_kernels.triton.plan import AttentionLimits, AttentionPlan, plan_attention
from batchgen_kernels.triton.replay import Replays, Work, ladder

LIMITS = AttentionLimits(
    split=8, tile_tokens=3, block_size=4, window=None, max_items=64, max_partials=64, enough_items=5
)


@st.composite
def batches(draw: st.DrawFn) -> ops.Batch:
    """Sequences of which some begin with the same blocks."""
    parts = draw(st.lists(st.tuples(st.integers(0, 90), st.integers(1, 5) | st.just(1)), min_size=1, max_size=12))
    common = draw(st.integers(0, 6))
    tables = np.arange(len(parts) * 24, dtype=np.int32).reshape(len(parts), 24)
    tables[:, :common] = tables[0, :common]
    counts = [count for _, count in parts]
    positions = np.concatenate([np.arange(start, start + count, dtype=np.int32) for start, count in parts])
    return ops.Batch(
        tokens=np.zeros(len(positions), dtype=np.int32),
        positions=positions,
        slots=np.zeros(len(positions), dtype=np.int32),
        query_start=np.cumsum([0, *counts], dtype=np.int32),
        context_lens=np.array([start + count for start, count in parts], dtype=np.int32),
        block_tables=tables,
        rows=np.zeros(0, dtype=np.int32),
    )


def check(batch: ops.Batch, plan: AttentionPlan, limits: AttentionLimits) -> None:
    assert len(plan.items) <= limits.max_items
    merges = {int(token): (int(first), int(count)) for token, first, count in plan.merges}
    owners = np.repeat(np.arange(len(batch.context_lens)), np.diff(batch.query_start))
    seen: Counter[tuple[int, int]] = Counter()
    written: Counter[int] = Counter()
    width = limits.split // limits.block_size
    for item in plan.items.tolist():
        table, first, last, *tokens = item
        for token in (t for t in tokens if t >= 0):
            # The splits' blocks are the token's own.
            end = min(last * limits.split, int(batch.positions[token]) + 1)
            used = slice(first * width, -(-end // limits.block_size))
            own = batch.block_tables[owners[token]]
            assert (batch.block_tables[table][used] == own[used]).all()
            seen.update((token, split) for split in range(first, last))
            if token in merges:
                assert last == first + 1
                written[int(plan.partial_base[token]) + first] += 1
            else:
                assert plan.partial_base[token] == -1
    for token, position in enumerate(batch.positions.tolist()):
        lowest = 0 if limits.window is None else max(0, position - limits.window + 1)
        needed = range(lowest // limits.split, position // limits.split + 1)
        assert all(seen[token, split] == 1 for split in needed)
        if token in merges:
            first, count = merges[token]
            assert plan.partial_base[token] + needed[0] == first >= 0
            assert count == len(needed)
            assert first + count <= limits.max_partials
    assert all(times == 1 for times in written.values())
    assert len(written) == sum(count for _, count in merges.values())


@given(
    batch=batches(),
    window=st.none() | st.integers(1, 60),
    tile_tokens=st.integers(1, 4),
    enough_items=st.integers(1, 20),
    block_size=st.sampled_from([4, 8]),
)
def test_every_token_gets_each_of_its_splits_once(
    batch: ops.Batch, window: int | None, tile_tokens: int, enough_items: int, block_size: int
) -> None:
    limits = AttentionLimits(
        8, tile_tokens, block_size, window, max_items=90, max_partials=100, enough_items=enough_items
    )
    check(batch, plan_attention(batch, limits), limits)


def decoding(contexts: list[int], common: int = 0) -> ops.Batch:
    count = len(contexts)
    tables = np.arange(count * 40, dtype=np.int32).reshape(count, 40)
    tables[:, :common] = tables[0, :common]
    lengths = np.array(contexts, dtype=np.int32)
    start = np.arange(count + 1, dtype=np.int32)
    none = np.zeros(count, dtype=np.int32)
    return ops.Batch(none, lengths - 1, none, start, lengths, tables, none[:0])


def test_contexts_are_cut_where_it_pays() -> None:
    assert len(plan_attention(decoding([33]), LIMITS).items) == 5, "an idle device"
    assert len(plan_attention(decoding([33] * 6), LIMITS).items) == 6, "a busy one"
    assert len(plan_attention(decoding([33] * 6 + [100]), LIMITS).items) == 6 + 13, "one that would lag behind"
    assert len(plan_attention(decoding([33] * 6, common=8), LIMITS).items) == 4 * 2 + 6, "a prefix in common"
    few = replace(LIMITS, max_partials=4)
    assert len(plan_attention(decoding([33]), few).items) == 1, "no room for partial results"


def test_the_ladder() -> None:
    assert ladder(1) == (1,)
    assert ladder(20) == (1, 2, 4, 8, 16, 20)
    assert ladder(300)[-3:] == (256, 272, 300)
    assert all(b - a <= max(8, a / 8) for a, b in zip(ladder(1000), ladder(1000)[1:], strict=False) if a >= 8)


def test_each_size_is_recorded_once_and_replayed() -> None:
    log: list[str] = []

    class Recorder:
        def record(self, work: Work) -> Work:
            work()
            return lambda: log.append("replayed")

    replays = Replays(20, Recorder())
    assert [replays.size_for(count) for count in (1, 3, 8, 9, 20)] == [1, 4, 8, 16, 20]
    for _ in range(2):
        replays.run(4, lambda: log.append("computed"))
    replays.forget()
    replays.run(4, lambda: log.append("computed"))
    assert log == ["computed", "replayed", "computed"]
