"""Ragged batches over scattered blocks, for the tests of native ops."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from batchgen_kernels import ops
from batchgen_kernels.reference import hadamard

__all__ = ["Floats", "Segment", "make_batch", "rounded", "shape_for", "turned"]

Floats = npt.NDArray[np.float32]
Segment = tuple[int, int]
"""(start, count): a sequence computes positions [start, start + count)."""


def _blocks(segments: Sequence[Segment], block_size: int) -> list[int]:
    return [-(-(start + count) // block_size) for start, count in segments]


def shape_for(segments: Sequence[Segment], block_size: int) -> ops.Shape:
    """Bounds that just hold these segments, and three blocks that stay unused."""
    needed = _blocks(segments, block_size)
    return ops.Shape(
        max_tokens=sum(count for _, count in segments),
        max_seqs=len(segments),
        num_blocks=sum(needed) + 3,
        block_size=block_size,
        max_blocks_per_seq=max(needed),
    )


def make_batch(
    segments: Sequence[Segment],
    shape: ops.Shape,
    rng: np.random.Generator,
    rows: Sequence[int] = (),
    vocab: int = 50,
    common: Sequence[int] = (),
) -> ops.Batch:
    """One step over these segments; which blocks a sequence has is random.

    `common[s]`: the first blocks that sequence s has in common with the one before it.
    """
    size = shape.block_size
    needed = _blocks(segments, size)
    free = rng.permutation(shape.num_blocks).astype(np.int32)
    tables = np.zeros((len(segments), shape.max_blocks_per_seq), dtype=np.int32)
    positions, slots, taken = [], [], 0
    for s, (start, count) in enumerate(segments):
        tables[s, : needed[s]] = free[taken : taken + needed[s]]
        taken += needed[s]
        if s < len(common):
            tables[s, : common[s]] = tables[s - 1, : common[s]]
        own = np.arange(start, start + count, dtype=np.int32)
        positions.append(own)
        slots.append(tables[s, own // size] * size + own % size)
    return ops.Batch(
        tokens=rng.integers(0, vocab, shape.max_tokens, dtype=np.int32),
        positions=np.concatenate(positions),
        slots=np.concatenate(slots),
        query_start=np.cumsum([0, *(count for _, count in segments)], dtype=np.int32),
        context_lens=np.array([start + count for start, count in segments], dtype=np.int32),
        block_tables=tables,
        rows=np.array(rows, dtype=np.int32),
    )


def rounded(part: Floats) -> tuple[npt.NDArray[np.int8], Floats]:
    """As an int8 cache stores keys or values [T, Hk, D]: the numbers, and their scales [T, Hk]."""
    part = turned(part)
    peak = np.abs(part).max(axis=-1)
    return np.rint(part * (np.float32(127) / peak)[..., None]).astype(np.int8), peak / np.float32(127)


def turned(part: Floats) -> Floats:
    """Heads [..., D] as an int8 cache has them before it rounds; a second time turns them back."""
    if part.shape[-1] % 64:
        return part
    return (
        hadamard(torch.from_numpy(np.ascontiguousarray(part)).reshape(-1, part.shape[-1])).numpy().reshape(part.shape)
    )
