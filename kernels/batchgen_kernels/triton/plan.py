"""Which program of the attention kernel computes what. NumPy alone.

An item is a run of splits of one block table for some tokens that see them. Any way to share out the splits gives the
same bits (see `device.attention`), so the choice here is of speed alone:

- the tokens of a chunk go together, as many as fill a tile, over all their splits;
- single tokens have an item each; where that leaves the device idle, or one context is far longer than others, an item
  for each split;
- single tokens whose tables hold the same blocks in a split share its item: their keys are read once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from batchgen_kernels import ops

__all__ = ["AttentionLimits", "AttentionPlan", "plan_attention"]

Ints = npt.NDArray[np.int32]

_LONG = 8
"""Splits from which on a single token's context is always cut: one program would outlast the others."""
_SHARED_FROM = 4
"""Tokens from which on a common split is read once for all. Below that, merging costs more."""


@dataclass(frozen=True, slots=True)
class AttentionLimits:
    """What the kernel was compiled for and how much it may be given."""

    split: int
    """Positions in a split."""
    tile_tokens: int
    """Tokens in an item, at most."""
    block_size: int
    window: int | None
    max_items: int
    max_partials: int
    enough_items: int
    """From so many items on the device is busy."""


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """Arrays for `device.attention`."""

    items: Ints
    """[I, 3 + tile_tokens]"""
    partial_base: Ints
    """[T] -1 where a token's output is whole after its item."""
    merges: Ints
    """[M, 3]"""


def plan_attention(batch: ops.Batch, limits: AttentionLimits) -> AttentionPlan:
    """Share out the attention of a batch over items."""
    tiles = _tiles(batch, limits)
    base = np.full(len(batch.tokens), -1, dtype=np.int32)
    cut = _to_cut(batch, tiles, limits)
    if not cut.any():
        return AttentionPlan(tiles, base, np.zeros((0, 3), dtype=np.int32))
    singles, kept = tiles[cut], tiles[~cut]
    first, counts = singles[:, 1], singles[:, 2] - singles[:, 1]
    starts = np.cumsum(counts) - counts
    pieces = _pieces(batch, singles, limits)
    offset = int(first.max())
    if offset + int(counts.sum()) > limits.max_partials or len(kept) + len(pieces) > limits.max_items:
        return AttentionPlan(tiles, base, np.zeros((0, 3), dtype=np.int32))
    tokens = singles[:, 3]
    # A split finds its row by its own number: base + split, base not negative.
    base[tokens] = starts - first + offset
    merges = np.stack([tokens, starts + offset, counts], axis=1).astype(np.int32)
    return AttentionPlan(np.concatenate([kept, pieces]), base, merges)


def _tiles(batch: ops.Batch, limits: AttentionLimits) -> Ints:
    """Each sequence's tokens in tiles, [I, 3 + tile_tokens], over all the splits that they see."""
    counts = np.diff(batch.query_start)
    per_sequence = -(-counts // limits.tile_tokens)
    owner = np.repeat(np.arange(len(counts)), per_sequence)
    number = np.arange(len(owner)) - np.repeat(np.cumsum(per_sequence) - per_sequence, per_sequence)
    begin = batch.query_start[owner] + number * limits.tile_tokens
    tokens = begin[:, None] + np.arange(limits.tile_tokens)
    own = tokens < batch.query_start[owner + 1][:, None]
    last_token = tokens.max(axis=1, where=own, initial=0)
    window = limits.window
    lowest = np.zeros_like(begin) if window is None else np.maximum(batch.positions[begin] - window + 1, 0)
    head = [owner, lowest // limits.split, batch.positions[last_token] // limits.split + 1]
    return np.concatenate([np.stack(head, axis=1), np.where(own, tokens, -1)], axis=1).astype(np.int32)


def _to_cut(batch: ops.Batch, tiles: Ints, limits: AttentionLimits) -> npt.NDArray[np.bool_]:
    """[I] which tiles are cut into splits: those of sequences with one token in this step, where it pays."""
    splits = tiles[:, 2] - tiles[:, 1]
    cuttable: npt.NDArray[np.bool_] = (np.diff(batch.query_start)[tiles[:, 0]] == 1) & (splits > 1)
    if len(tiles) < limits.enough_items:
        return cuttable
    first_blocks = batch.block_tables[tiles[:, 0], 0]
    _, inverse, sharers = np.unique(first_blocks[cuttable], return_inverse=True, return_counts=True)
    shares = np.zeros(len(tiles), dtype=np.bool_)
    shares[cuttable] = sharers[inverse] >= _SHARED_FROM
    cut: npt.NDArray[np.bool_] = cuttable & (shares | (splits >= _LONG))
    return cut


def _pieces(batch: ops.Batch, singles: Ints, limits: AttentionLimits) -> Ints:
    """One item for each split of these tiles, or for several tokens where all have the same blocks there."""
    counts = singles[:, 2] - singles[:, 1]
    owner = np.repeat(np.arange(len(singles)), counts)
    split = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts) + singles[owner, 1]
    table, token = singles[owner, 0], singles[owner, 3]
    # A split's last item is not full in general: it has its owner's newest blocks and is never shared.
    full = (split + 1) * limits.split <= batch.context_lens[table]
    shared: dict[tuple[int, bytes], list[int]] = {}
    if limits.split % limits.block_size == 0 and limits.tile_tokens > 1:
        width = limits.split // limits.block_size
        for piece in np.flatnonzero(full).tolist():
            begin = int(split[piece]) * width
            blocks = batch.block_tables[table[piece], begin : begin + width].tobytes()
            shared.setdefault((int(split[piece]), blocks), []).append(piece)
    groups = [members for members in shared.values() if len(members) >= _SHARED_FROM]
    alone = np.ones(len(owner), dtype=np.bool_)
    rows: list[list[int]] = []
    for members in groups:
        alone[members] = False
        rows += [members[i : i + limits.tile_tokens] for i in range(0, len(members), limits.tile_tokens)]
    rows += [[piece] for piece in np.flatnonzero(alone).tolist()]
    items = np.full((len(rows), 3 + limits.tile_tokens), -1, dtype=np.int32)
    leaders = np.array([members[0] for members in rows])
    items[:, 0], items[:, 1], items[:, 2] = table[leaders], split[leaders], split[leaders] + 1
    for item, members in zip(items, rows, strict=True):
        item[3 : 3 + len(members)] = token[members]
    return items
