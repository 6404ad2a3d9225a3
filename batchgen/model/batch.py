"""A step plan as the arrays that kernels read."""

from __future__ import annotations

from itertools import chain

import numpy as np

from batchgen.core.step import StepPlan
from batchgen_kernels.ops import Batch, SamplingRows

__all__ = ["make_batch", "sampling_rows"]


def make_batch(plan: StepPlan, block_size: int) -> Batch:
    """The ragged batch of a plan; its rows are those of `plan.sampled`, in that order."""
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
    return Batch(
        tokens=np.fromiter(chain.from_iterable(s.tokens for s in scheduled), np.int32, count=plan.num_tokens),
        positions=positions,
        slots=tables[owners, positions // block_size] * np.int32(block_size) + positions % np.int32(block_size),
        query_start=query_start,
        context_lens=stops,
        block_tables=tables,
        rows=query_start[1:][wanted] - np.int32(1),
    )


def sampling_rows(plan: StepPlan, vocab_size: int) -> SamplingRows:
    """How the rows of a plan choose their tokens."""
    wanted = [(s.sampling, s.stop) for s in plan.scheduled if s.sampling is not None]
    return SamplingRows(
        temperature=np.array([0.0 if p.greedy else p.temperature for p, _ in wanted], dtype=np.float32),
        top_k=np.array([min(p.top_k or vocab_size, vocab_size) for p, _ in wanted], dtype=np.int32),
        top_p=np.array([p.top_p for p, _ in wanted], dtype=np.float32),
        min_p=np.array([p.min_p for p, _ in wanted], dtype=np.float32),
        seed=np.array([p.seed for p, _ in wanted], dtype=np.uint64),
        position=np.array([stop for _, stop in wanted], dtype=np.int64),
    )
