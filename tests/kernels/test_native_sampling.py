"""The native draw against the reference's, token for token."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchgen_kernels import ops
from batchgen_kernels.cpu import NativeProgram, instruction_sets
from batchgen_kernels.draw import read_logprobs, sample_rows
from tests.kernels.ragged import Floats

each_set = pytest.mark.parametrize("instruction_set", instruction_sets())


def sample(logits: Floats, rows: ops.SamplingRows, instruction_set: str, threads: int = 1) -> npt.NDArray[np.int32]:
    program, buffer = program_for(logits, instruction_set, threads)
    return program.sample(buffer, rows)


def program_for(logits: Floats, instruction_set: str, threads: int) -> tuple[NativeProgram, ops.Buffer]:
    """A program without ops whose buffer holds the logits."""
    count, vocab = logits.shape
    shape = ops.Shape(max_tokens=count, max_seqs=count, num_blocks=1, block_size=16, max_blocks_per_seq=1)
    program = NativeProgram(shape, threads, instruction_set)
    buffer = program.buffer(vocab, ops.Extent.ROWS)
    buffer.numpy(count)[:] = logits
    return program, buffer


def random_rows(count: int, vocab: int, rng: np.random.Generator) -> ops.SamplingRows:
    return ops.SamplingRows(
        temperature=rng.choice([0.0, 0.1, 0.7, 1.0, 2.5], count).astype(np.float32),
        top_k=np.minimum(rng.choice([1, 2, 10, 50, vocab, vocab], count), vocab).astype(np.int32),
        top_p=rng.choice([0.0, 0.01, 0.5, 0.9, 0.999, 1.0, 1.0], count).astype(np.float32),
        min_p=rng.choice([0.0, 0.0, 0.05, 0.5, 1.0], count).astype(np.float32),
        seed=rng.integers(0, 2**64, count, dtype=np.uint64),
        position=rng.integers(0, 2**40, count, dtype=np.int64),
    )


def random_changes(count: int, vocab: int, rng: np.random.Generator) -> ops.LogitChanges:
    """Masks, biases and contexts of all sizes, for some of the rows."""
    words = -(-vocab // 32)
    densities = rng.choice([0.0, 0.1, 0.9], (3, 1, 1))
    allowed = rng.random((3, words, 32)) < densities
    allowed[1:, 0, 0] = True
    masks = np.packbits(allowed, axis=-1, bitorder="little").reshape(3, -1).view("<u4")

    def lists() -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        sizes = np.minimum(rng.choice([0, 0, 1, 5, vocab], count), vocab)
        ids = [rng.permutation(vocab)[:size] for size in sizes]
        return np.cumsum([0, *sizes], dtype=np.int32), np.concatenate(ids).astype(np.int32)

    bias_start, bias_ids = lists()
    context_start, context_ids = lists()
    return ops.LogitChanges(
        mask_of=rng.integers(-1, 3, count, dtype=np.int32),
        masks=masks,
        bias_start=bias_start,
        bias_ids=bias_ids,
        bias=rng.choice([-np.inf, -100.0, -1.5, 0.7, 100.0], len(bias_ids)).astype(np.float32),
        context_start=context_start,
        context_ids=context_ids,
        context_counts=rng.integers(0, 4, len(context_ids), dtype=np.int32),
        repetition=rng.choice([0.5, 1.0, 1.3], count).astype(np.float32),
        frequency=rng.choice([-2.0, 0.0, 0.3], count).astype(np.float32),
        presence=rng.choice([-1.0, 0.0, 1.1], count).astype(np.float32),
    )


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
    np.testing.assert_array_equal(sample(logits, rows, instruction_set, 2), sample_rows(logits, rows))


@given(
    vocab=st.one_of(st.integers(1, 200), st.just(1000)),
    greedy=st.booleans(),
    forbidden=st.sampled_from([0.0, 0.5]),
    seed=st.integers(0, 2**32 - 1),
)
def test_changed_draws_equal_the_reference(vocab: int, greedy: bool, forbidden: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    logits = (rng.standard_normal((24, vocab)) * 3).astype(np.float32)
    logits[:, 1:][rng.random((24, vocab - 1)) < forbidden] = -np.inf
    rows = replace(random_rows(24, vocab, rng), changes=random_changes(24, vocab, rng))
    if greedy:
        rows = replace(rows, temperature=np.zeros(24, np.float32))
    expected = sample_rows(logits, rows)
    for instruction_set in instruction_sets():
        np.testing.assert_array_equal(sample(logits, rows, instruction_set), expected)


@given(
    vocab=st.one_of(st.integers(1, 200), st.just(5003)),
    top=st.integers(0, 20),
    tied=st.booleans(),
    forbidden=st.sampled_from([0.0, 0.9]),
    seed=st.integers(0, 2**32 - 1),
)
def test_logprobs_equal_the_reference(vocab: int, top: int, tied: bool, forbidden: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    logits = (rng.standard_normal((5, vocab)) * 4).astype(np.float32)
    if tied:
        logits = np.round(logits)
    logits[:, 1:][rng.random((5, vocab - 1)) < forbidden] = -np.inf
    rows = ops.LogprobRows(
        row=rng.integers(0, 5, 10, dtype=np.int32),
        token=rng.integers(0, vocab, 10, dtype=np.int32),
        top=min(top, vocab),
    )
    expected = read_logprobs(logits, rows)
    for instruction_set in instruction_sets():
        program, buffer = program_for(logits, instruction_set, 1)
        got = program.logprobs(buffer, rows)
        np.testing.assert_array_equal(got.rank, expected.rank)
        np.testing.assert_array_equal(got.top_ids, expected.top_ids)
        np.testing.assert_allclose(got.logprob, expected.logprob, rtol=3e-7, atol=1e-9)
        np.testing.assert_allclose(got.top_logprobs, expected.top_logprobs, rtol=3e-7, atol=1e-9)


def test_all_instruction_sets_and_batches_give_the_same_bits() -> None:
    rng = np.random.default_rng(4)
    logits = (rng.standard_normal((9, 3001)) * 4).astype(np.float32)
    rows = ops.LogprobRows(row=np.arange(9, dtype=np.int32), token=rng.integers(0, 3001, 9, dtype=np.int32), top=20)
    answers = []
    for instruction_set in instruction_sets():
        program, buffer = program_for(logits, instruction_set, 2)
        answers.append(program.logprobs(buffer, rows))
        singles = [
            program.logprobs(buffer, ops.LogprobRows(rows.row[q : q + 1], rows.token[q : q + 1], 3)) for q in range(9)
        ]
        np.testing.assert_array_equal(np.concatenate([s.logprob for s in singles]), answers[-1].logprob)
        np.testing.assert_array_equal(
            np.concatenate([s.top_logprobs for s in singles]), answers[-1].top_logprobs[:, :3]
        )
    for answer in answers[1:]:
        np.testing.assert_array_equal(answer.logprob, answers[0].logprob)
        np.testing.assert_array_equal(answer.top_logprobs, answers[0].top_logprobs)


@each_set
def test_changes_that_do_not_fit_are_refused(instruction_set: str) -> None:
    logits = np.zeros((2, 40), dtype=np.float32)
    rng = np.random.default_rng(0)
    good = random_changes(2, 40, rng)
    ids = np.array([40], dtype=np.int32)
    faults: list[ops.LogitChanges] = [
        replace(good, mask_of=np.array([3, 0], dtype=np.int32)),
        replace(good, masks=good.masks[:, :1].copy()),
        replace(good, bias_ids=ids, bias=np.ones(1, np.float32), bias_start=np.array([0, 1, 1], dtype=np.int32)),
        replace(good, context_start=np.array([0, 5, 3], dtype=np.int32)),
        replace(good, repetition=np.ones(3, np.float32)),
    ]
    for fault in faults:
        with pytest.raises(ValueError, match="sample: "):
            sample(logits, replace(random_rows(2, 40, rng), changes=fault), instruction_set)


@each_set
def test_a_large_vocabulary(instruction_set: str) -> None:
    rng = np.random.default_rng(8)
    logits = (rng.standard_normal((12, 49_152)) * 3).astype(np.float32)
    rows = random_rows(12, 49_152, rng)
    np.testing.assert_array_equal(sample(logits, rows, instruction_set), sample_rows(logits, rows))


@each_set
@pytest.mark.parametrize("spread", [0.0, 0.02, 1.0, 3.0])
@pytest.mark.parametrize("tied", [False, True])
def test_many_tokens_are_kept(instruction_set: str, spread: float, tied: bool) -> None:
    vocab, rng = 20_011, np.random.default_rng(12)
    logits = (rng.standard_normal((8, vocab)) * spread).astype(np.float32)
    if tied:
        logits = (np.round(logits * 4) / 4).astype(np.float32)
    logits[:, 5:][rng.random((8, vocab - 5)) < 0.1] = -np.inf
    rows = ops.SamplingRows(
        temperature=np.full(8, 0.9, np.float32),
        top_k=np.array([vocab, vocab, 7000, 7000, 50, 1025, vocab, 19_999], dtype=np.int32),
        # Over a prime, so that no sum of equal shares is as large as it.
        top_p=(np.array([897, 500, 997, 800, 997, 700, 997, 996]) / 997).astype(np.float32),
        min_p=np.array([0, 0, 0, 0.01, 0, 0, 0.05, 0], dtype=np.float32),
        seed=np.arange(8, dtype=np.uint64),
        position=np.full(8, 77, dtype=np.int64),
    )
    np.testing.assert_array_equal(sample(logits, rows, instruction_set, 2), sample_rows(logits, rows))


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
