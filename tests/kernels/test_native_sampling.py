"""The native draw against the reference's, token for token."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchgen_kernels import ops
from batchgen_kernels.cpu import NativeProgram, instruction_sets
from batchgen_kernels.draw import choose
from tests.kernels.ragged import Floats

each_set = pytest.mark.parametrize("instruction_set", instruction_sets())


def sample(logits: Floats, rows: ops.SamplingRows, instruction_set: str, threads: int = 1) -> npt.NDArray[np.int32]:
    count, vocab = logits.shape
    shape = ops.Shape(max_tokens=count, max_seqs=count, num_blocks=1, block_size=16, max_blocks_per_seq=1)
    program = NativeProgram(shape, threads, instruction_set)
    buffer = program.buffer(vocab, ops.Extent.ROWS)
    buffer.numpy(count)[:] = logits
    return program.sample(buffer, rows)


def random_rows(count: int, vocab: int, rng: np.random.Generator) -> ops.SamplingRows:
    return ops.SamplingRows(
        temperature=rng.choice([0.0, 0.1, 0.7, 1.0, 2.5], count).astype(np.float32),
        top_k=np.minimum(rng.choice([1, 2, 10, 50, vocab, vocab], count), vocab).astype(np.int32),
        top_p=rng.choice([0.0, 0.01, 0.5, 0.9, 0.999, 1.0, 1.0], count).astype(np.float32),
        min_p=rng.choice([0.0, 0.0, 0.05, 0.5, 1.0], count).astype(np.float32),
        seed=rng.integers(0, 2**64, count, dtype=np.uint64),
        position=rng.integers(0, 2**40, count, dtype=np.int64),
    )


def chosen_slowly(logits: Floats, rows: ops.SamplingRows) -> list[int]:
    return [
        choose(
            row,
            temperature=float(rows.temperature[r]),
            top_k=int(rows.top_k[r]),
            top_p=float(rows.top_p[r]),
            min_p=float(rows.min_p[r]),
            seed=int(rows.seed[r]),
            position=int(rows.position[r]),
        )
        for r, row in enumerate(logits)
    ]


@each_set
@settings(deadline=None)
@given(
    vocab=st.one_of(st.integers(1, 200), st.sampled_from([1000, 5003])),
    spread=st.sampled_from([0.1, 1.0, 5.0, 30.0]),
    tied=st.booleans(),
    forbidden=st.sampled_from([0.0, 0.5, 0.99]),
    seed=st.integers(0, 2**32 - 1),
)
def test_draws_equal_the_reference(
    instruction_set: str, vocab: int, spread: float, tied: bool, forbidden: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    logits = (rng.standard_normal((24, vocab)) * spread).astype(np.float32)
    if tied:
        logits = np.round(logits)
    logits[:, 1:][rng.random((24, vocab - 1)) < forbidden] = -np.inf
    rows = random_rows(24, vocab, rng)
    np.testing.assert_array_equal(sample(logits, rows, instruction_set, 2), chosen_slowly(logits, rows))


@each_set
def test_a_large_vocabulary(instruction_set: str) -> None:
    rng = np.random.default_rng(8)
    logits = (rng.standard_normal((12, 49_152)) * 3).astype(np.float32)
    rows = random_rows(12, 49_152, rng)
    np.testing.assert_array_equal(sample(logits, rows, instruction_set), chosen_slowly(logits, rows))


@each_set
def test_nan_is_never_chosen(instruction_set: str) -> None:
    rng = np.random.default_rng(9)
    logits = rng.standard_normal((200, 70)).astype(np.float32)
    logits[rng.random(logits.shape) < 0.6] = np.nan
    logits[:, 33] = -1.0
    logits[0] = np.nan
    chosen = sample(logits, random_rows(200, 70, rng), instruction_set)
    assert np.isfinite(logits[np.arange(1, 200), chosen[1:]]).all()
    assert chosen[0] == 0


@each_set
def test_argmax_takes_the_lowest_id_of_equals(instruction_set: str) -> None:
    logits = np.zeros((1, 100), dtype=np.float32)
    logits[0, [37, 98, 99]] = 5.0
    logits[0, 1] = np.nan
    greedy = ops.SamplingRows(
        temperature=np.zeros(1, np.float32),
        top_k=np.full(1, 100, np.int32),
        top_p=np.ones(1, np.float32),
        min_p=np.zeros(1, np.float32),
        seed=np.zeros(1, np.uint64),
        position=np.zeros(1, np.int64),
    )
    assert sample(logits, greedy, instruction_set).tolist() == [37]
