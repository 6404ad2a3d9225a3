"""Draws and log-probabilities in Triton against their definitions in float64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from batchgen_kernels import ops
from batchgen_kernels.draw import read_logprobs, sample_rows
from batchgen_kernels.triton import sampling
from batchgen_kernels.triton.program import TritonProgram
from batchgen_kernels.triton.storage import Buffer
from tests.kernels.test_native_sampling import random_changes, random_rows
from tests.kernels.triton.pair import DEVICE

ROWS, VOCAB = 4, 200
SHAPE = ops.Shape(max_tokens=8, max_seqs=ROWS, num_blocks=1, block_size=4, max_blocks_per_seq=1)


@pytest.fixture(autouse=True)
def several_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of two blocks, whose second one is not full."""
    monkeypatch.setattr(sampling, "_BLOCK", 128)


def filled(rng: np.random.Generator, dtype: torch.dtype, *, ties: bool) -> tuple[TritonProgram, Buffer]:
    program = TritonProgram(SHAPE, DEVICE, dtype)
    logits = program.buffer(VOCAB, ops.Extent.ROWS)
    values = torch.from_numpy(rng.standard_normal((ROWS, VOCAB), dtype=np.float32) * 3)
    logits.data[:] = values.round() if ties else values
    logits.data[0, ::3] *= -0.0  # two zeros that are equal
    return program, logits


@pytest.mark.parametrize(("dtype", "ties"), [(torch.float32, False), (torch.float32, True), (torch.bfloat16, False)])
def test_draws_are_the_references(case: int, dtype: torch.dtype, ties: bool) -> None:
    rng = np.random.default_rng((case, ties))
    program, logits = filled(rng, dtype, ties=ties)
    rows = random_rows(ROWS, VOCAB, rng)
    assert program.sample(logits, rows).tolist() == sample_rows(logits.numpy(ROWS), rows).tolist()


def test_changed_draws_are_the_references(case: int) -> None:
    rng = np.random.default_rng(case)
    program, logits = filled(rng, torch.float32, ties=False)
    for _ in range(4):
        changes = random_changes(ROWS, VOCAB, rng)
        rows = replace(random_rows(ROWS, VOCAB, rng), temperature=np.zeros(ROWS, np.float32), changes=changes)
        assert program.sample(logits, rows).tolist() == sample_rows(logits.numpy(ROWS), rows).tolist()
    rows = replace(random_rows(ROWS, VOCAB, rng), changes=random_changes(ROWS, VOCAB, rng))
    assert program.sample(logits, rows).tolist() == sample_rows(logits.numpy(ROWS), rows).tolist()


@pytest.mark.parametrize("ties", [False, True])
def test_logprobs_are_the_references(case: int, ties: bool) -> None:
    rng = np.random.default_rng((case, ties))
    program, logits = filled(rng, torch.float32, ties=ties)
    logits.data[1, 5:50] = -torch.inf
    logits.data[2, 7] = torch.nan
    rows = ops.LogprobRows(
        row=rng.integers(0, ROWS, 4, dtype=np.int32),
        token=rng.integers(50, VOCAB, 4, dtype=np.int32),
        top=(case + 3) % 6,
    )
    found, expected = program.logprobs(logits, rows), read_logprobs(logits.numpy(ROWS), rows)
    np.testing.assert_array_equal(found.rank, expected.rank)
    np.testing.assert_array_equal(found.top_ids, expected.top_ids)
    np.testing.assert_allclose(found.logprob, expected.logprob, rtol=3e-7, atol=1e-9)
    np.testing.assert_allclose(found.top_logprobs, expected.top_logprobs, rtol=3e-7, atol=1e-9)


def test_no_rows_yield_nothing() -> None:
    program = TritonProgram(SHAPE, DEVICE, torch.float32)
    logits, rng = program.buffer(9, ops.Extent.ROWS), np.random.default_rng(0)
    none = np.zeros(0, dtype=np.int32)
    assert program.sample(logits, random_rows(0, 9, rng)).tolist() == []
    assert program.logprobs(logits, ops.LogprobRows(none, none, 2)).top_ids.shape == (0, 2)
