"""Triton attention against the reference, and its bits however the work is shared out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from batchgen_kernels import ops
from batchgen_kernels.ops import Extent
from batchgen_kernels.reference import hadamard
from batchgen_kernels.triton import launch
from batchgen_kernels.triton.program import TritonProgram
from tests.kernels.ragged import make_batch, shape_for
from tests.kernels.triton.pair import BOUNDS, DEVICE, DTYPES, Pair, error

BLOCK = 16
HEAD_DIM = 64


@pytest.fixture(autouse=True)
def short_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that short contexts have several."""
    monkeypatch.setattr(launch, "SPLIT", 64)


def fill(pair: Pair, cache: Any, expected: torch.Tensor, part: str, slots: torch.Tensor) -> None:
    """Equal values in both caches at these slots; all others are NaN."""
    ours, scales = getattr(cache, part), getattr(cache, f"{part[:-1]}_scales")
    if scales is None:
        expected[slots] = pair.values(len(slots), *expected.shape[1:])
        ours[:] = expected
        return
    scales.fill_(torch.nan)
    ours[slots] = torch.from_numpy(pair.rng.integers(-127, 128, (len(slots), *ours.shape[1:]), dtype=np.int8)).to(
        DEVICE
    )
    scales[slots] = (pair.values(len(slots), ours.shape[1]).abs() / 100 + 0.001).to(DEVICE)
    expected[slots] = turned((ours[slots].float() * scales[slots][..., None]).cpu())


def turned(x: torch.Tensor) -> torch.Tensor:
    """What an int8 cache keeps of heads in the last dimension, and the other way round."""
    return hadamard(x.contiguous()) if x.shape[-1] % 64 == 0 else x


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float16])
@pytest.mark.parametrize("precision", ["float32", "int8"])
@pytest.mark.parametrize("head_dim", [64, 80, 128, 256])
def test_attention_of_ragged_batches(case: int, head_dim: int, precision: ops.Precision, dtype: torch.dtype) -> None:
    """Chunks and single tokens in one step, of scattered blocks; what no token has written is NaN."""
    rng = np.random.default_rng((case, head_dim))
    parts = [(int(rng.integers(0, 150)), int(n)) for n in rng.choice([1, 1, 2, 30], int(rng.integers(1, 4)))]
    shape = shape_for(parts, int(rng.choice([BLOCK, 24])))
    pair = Pair(shape, dtype, rng)
    kv_heads, group = int(rng.integers(1, 3)), int(rng.choice([1, 3, 4]))
    window = int(rng.integers(1, 160)) if rng.random() < 0.5 else None
    qkv = pair.buffers((group + 2) * kv_heads * head_dim)
    out = pair.operands(group * kv_heads * head_dim, Extent.TOKENS, "float32")
    caches: Any = [p.kv_cache(kv_heads, head_dim, precision) for p in (pair.torch, pair.triton)]
    if precision == "int8":
        heads = qkv[1].data.float().cpu().view(shape.max_tokens, -1, head_dim)
        qkv[0].data[:] = turned(heads).view(shape.max_tokens, -1)
    batch = make_batch(parts, shape, rng)
    for part in ("keys", "values"):
        theirs = getattr(caches[0], part).view(-1, kv_heads, head_dim)
        theirs.fill_(torch.nan)
        held = []
        for table, context in zip(batch.block_tables, batch.context_lens.tolist(), strict=True):
            places = np.arange(context)
            held.append(table[places // shape.block_size] * shape.block_size + places % shape.block_size)
        fill(pair, caches[1], theirs, part, torch.from_numpy(np.concatenate(held)))
    programs: tuple[ops.Program, ...] = (pair.torch, pair.triton)
    for i, program in enumerate(programs):
        program.attention(qkv[i], caches[i], head_dim**-0.5, window, out[i])
    pair.run(batch)
    # What is rotated back is rounded once more.
    assert error(out[1].values, out[0].values) < BOUNDS[dtype] * (4 / 3 if precision == "int8" else 1)


class Chat:
    """A Triton program that is asked for the same tokens' attention in different company."""

    CONTEXT = 210
    OTHERS = 24

    def __init__(self, window: int | None, precision: ops.Precision) -> None:
        blocks = -(-self.CONTEXT // BLOCK)
        shape = ops.Shape(256, 32, 4 * blocks + self.OTHERS, BLOCK, blocks)
        self.program = TritonProgram(shape, DEVICE, torch.float32)
        self.qkv = self.program.buffer(6 * HEAD_DIM, Extent.TOKENS)
        self.out = self.program.operand(4 * HEAD_DIM, Extent.TOKENS, "float32")
        cache = self.program.kv_cache(1, HEAD_DIM, precision)
        generator = torch.Generator().manual_seed(3)
        for part in cache.parts():
            size = 40 if part.dtype is torch.int8 else 1
            part.copy_(torch.randn(part.shape, generator=generator) * size)
        self.queries = torch.randn((self.CONTEXT, 6 * HEAD_DIM), generator=generator)
        self.program.attention(self.qkv, cache, 0.125, window, self.out)

    def attend(self, parts: list[tuple[list[int], int, int]]) -> torch.Tensor:
        """Outputs of all tokens of (block table, start, count); the query of a position is always the same."""
        counts = [count for _, _, count in parts]
        positions = np.concatenate([np.arange(start, start + count) for _, start, count in parts]).astype(np.int32)
        tables = np.zeros((len(parts), max(len(table) for table, _, _ in parts)), dtype=np.int32)
        for row, (table, _, _) in zip(tables, parts, strict=True):
            row[: len(table)] = table
        self.qkv.data[: len(positions)] = self.queries[torch.from_numpy(positions)].to(DEVICE)
        self.out.values.fill_(torch.nan)
        self.program.run(
            ops.Batch(
                tokens=np.zeros(len(positions), dtype=np.int32),
                positions=positions,
                slots=np.zeros(len(positions), dtype=np.int32),
                query_start=np.cumsum([0, *counts], dtype=np.int32),
                context_lens=np.array([start + count for _, start, count in parts], dtype=np.int32),
                block_tables=tables,
                rows=np.zeros(0, dtype=np.int32),
            )
        )
        return self.out.values[: len(positions)].clone()


@pytest.fixture
def independent_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products whose rows don't depend on their place, as on a GPU: the interpreter's come from BLAS, where they do."""
    monkeypatch.setattr(np, "matmul", lambda a, b, dtype: np.einsum("mk,kn->mn", a, b, dtype=dtype))


@pytest.mark.usefixtures("independent_rows")
@pytest.mark.parametrize(("window", "precision"), [(None, "float32"), (100, "float32"), (None, "int8")])
def test_bits_do_not_depend_on_company(window: int | None, precision: ops.Precision) -> None:
    """The last token of a context: at the end of a chunk; alone, its splits merged; beside so many others that it is
    not cut; with its first splits computed for four sequences at once."""
    chat = Chat(window, precision)
    blocks = -(-Chat.CONTEXT // BLOCK)
    table, last = list(range(blocks)), Chat.CONTEXT - 1
    expected = chat.attend([(table, last - 39, 40)])[-1]
    assert not expected.isnan().any()
    assert torch.equal(chat.attend([(table, last, 1)])[0], expected)
    others = [([4 * blocks + i], 3, 1) for i in range(Chat.OTHERS)]
    assert torch.equal(chat.attend([*others[:9], (table, last, 1), *others[9:]])[9], expected)
    siblings = [([*table[:8], *range(k * blocks, k * blocks + blocks - 8)], 140 + k, 1) for k in (1, 2, 3)]
    together = chat.attend([*siblings[:2], (table, last, 1), siblings[2]])
    assert torch.equal(together[2], expected)
    for sibling, output in zip(siblings, (together[0], together[1], together[3]), strict=True):
        assert torch.equal(chat.attend([sibling])[0], output)
