"""The draw in Triton against its definition in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from batchgen_kernels import ops
from batchgen_kernels.reference import TorchProgram
from batchgen_kernels.triton import sampling
from batchgen_kernels.triton.program import TritonProgram

ROWS = 4
SHAPE = ops.Shape(max_tokens=8, max_seqs=ROWS, num_blocks=1, block_size=4, max_blocks_per_seq=1)


def random_rows(rng: np.random.Generator, vocab: int) -> ops.SamplingRows:
    return ops.SamplingRows(
        temperature=rng.choice([0.0, 0.5, 1.0, 2.0], ROWS).astype(np.float32),
        top_k=rng.choice([1, 5, vocab], ROWS).astype(np.int32),
        top_p=rng.choice([0.3, 0.9, 1.0], ROWS).astype(np.float32),
        min_p=rng.choice([0.0, 0.1], ROWS).astype(np.float32),
        seed=rng.integers(0, 2**64, ROWS, dtype=np.uint64),
        position=rng.integers(0, 2**40, ROWS),
    )


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_draws_are_the_references(case: int, ties: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows longer than a block, whose last one is not full; with ties the threshold falls among equal logits."""
    monkeypatch.setattr(sampling, "_BLOCK", 128)
    rng = np.random.default_rng((case, ties))
    vocab = 200
    first, second = TorchProgram(SHAPE), TritonProgram(SHAPE, torch.device("cpu"), dtype)
    reference, ours = first.buffer(vocab, ops.Extent.ROWS), second.buffer(vocab, ops.Extent.ROWS)
    values = torch.from_numpy(rng.standard_normal((SHAPE.max_seqs, vocab), dtype=np.float32) * 3)
    ours.data[:] = values.round() if ties else values
    if ties:
        ours.data[0, ::2] *= -0.0  # two zeros that are equal
    reference.data[:] = ours.data
    rows = random_rows(rng, vocab)
    assert second.sample(ours, rows).tolist() == first.sample(reference, rows).tolist()


def test_no_rows_yield_no_tokens() -> None:
    program = TritonProgram(SHAPE, torch.device("cpu"), torch.float32)
    none = np.zeros(0, dtype=np.float32)
    rows = ops.SamplingRows(none, none.astype(np.int32), none, none, none.astype(np.uint64), none.astype(np.int64))
    assert program.sample(program.buffer(9, ops.Extent.ROWS), rows).tolist() == []
