"""A step plan as the arrays that kernels read."""

from __future__ import annotations

from itertools import chain

import numpy as np

from batchgen.core.step import StepPlan
from batchgen_kernels.ops import Batch

__all__ = ["make_batch"]


def make_batch(plan: StepPlan, block_size: int) -> Batch:
    """The ragged batch of a plan; its rows are those of `plan.sampled`, then those of `plan.scored`, in that order."""
    scheduled = plan.scheduled
    counts = np.array([len(s.tokens) for s in scheduled], dtype=np.int32)
    stops = np.array([s.stop for s in scheduled], dtype=np.int32)
    query_start = np.zeros(len(scheduled) + 1, dtype=np.int32)
    np.cumsum(counts, out=query_start[1:])
    positions = np.arange(plan.num_tokens, dtype=np.int32) + np.repeat(stops - query_start[1:], counts)
    blocks = -(-stops // block_size)
    tables = np.zeros((len(scheduled), int(blocks.max(initial=0))), dtype=np.int32)
    for table, s, used in zip(tables, scheduled, blocks.tolist(), strict=True):
        table[:used] = s.block_table[:used]
    owners = np.repeat(np.arange(len(scheduled)), counts)
    wanted = np.array([s.sampling is not None for s in scheduled], dtype=bool)
    rows = query_start[1:][wanted] - np.int32(1)
    if plan.scored:
        begins = {s.seq_id: begin - s.start for s, begin in zip(scheduled, query_start.tolist(), strict=False)}
        spans = ((begins[s.seq_id] + span.start, len(span.tokens)) for s, span in plan.scored)
        rows = np.concatenate([rows, *(np.arange(at, at + count, dtype=np.int32) for at, count in spans)])
    follows = None
    if any(s.follows is not None for s in scheduled):
        follows = np.full(plan.num_tokens, -1, dtype=np.int32)
        for s, begin in zip(scheduled, query_start.tolist(), strict=False):
            if s.follows is not None:
                follows[begin] = s.follows
    return Batch(
        tokens=np.fromiter(chain.from_iterable(s.tokens for s in scheduled), np.int32, count=plan.num_tokens),
        positions=positions,
        slots=tables[owners, positions // block_size] * np.int32(block_size) + positions % np.int32(block_size),
        query_start=query_start,
        context_lens=stops,
        block_tables=tables,
        rows=rows,
        follows=follows,
    )
