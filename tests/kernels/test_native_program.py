"""The native program as a whole: its draws against the definition, its refusal of batches that reach outside."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
import torch

from batchgen_kernels import cpu, ops
from batchgen_kernels.draw import choose
from batchgen_kernels.ops import Extent

SHAPE = ops.Shape(max_tokens=6, max_seqs=4, num_blocks=5, block_size=4, max_blocks_per_seq=3)
VOCAB, WIDTH, POSITIONS = 10, 16, 12
each_set = pytest.mark.parametrize("instruction_set", cpu.instruction_sets())


def ints(*values: int) -> npt.NDArray[np.int32]:
    return np.array(values, dtype=np.int32)


GOOD = ops.Batch(
    tokens=ints(1, 2, 3, 9),
    positions=ints(3, 4, 5, 0),
    slots=ints(3, 4, 5, 16),
    query_start=ints(0, 3, 4),
    context_lens=ints(6, 1),
    block_tables=np.array([[0, 1], [4, 0]], dtype=np.int32),
    rows=ints(2, 3),
)
BAD = {
    "a token id outside of the vocabulary": {"tokens": ints(1, 2, 3, VOCAB)},
    "a position outside of the rotary table": {"positions": ints(3, 4, POSITIONS, 0)},
    "a slot outside of the cache": {"slots": ints(3, 4, -1, 16)},
    "a row that is no token": {"rows": ints(2, 4)},
    "query_start does not fit the tokens": {"query_start": ints(0, 3, 5)},
    "more queries than context": {"context_lens": ints(2, 1)},
    "a block table shorter than its context": {"context_lens": ints(9, 1)},
    "a block outside of the cache": {"block_tables": np.array([[0, 5], [4, 0]], dtype=np.int32)},
    "the lengths of its arrays": {"positions": ints(3, 4, 5)},
    "more rows than the shape allows": {"rows": ints(0, 0, 1, 2, 3)},
}


def small_program(instruction_set: str | None = None) -> tuple[cpu.NativeProgram, ops.Buffer]:
    """Embedding, rotation, attention, and the gathered rows."""
    program = cpu.NativeProgram(SHAPE, 2, instruction_set)
    qkv, last = program.buffer(3 * WIDTH, Extent.TOKENS), program.buffer(3 * WIDTH, Extent.ROWS)
    cache = program.kv_cache(1, WIDTH, "float32")
    angles = torch.arange(POSITIONS)[:, None] * torch.ones(WIDTH // 2)
    program.embed(torch.arange(VOCAB * 3.0 * WIDTH).view(VOCAB, -1), 0.25, qkv)
    program.rotate_store(qkv, cache, program.rotary_table(angles.cos(), angles.sin()), None, None, 1e-6)
    program.attention(qkv, cache, 1.0, None, program.operand(WIDTH, Extent.TOKENS, "float32"))
    program.gather(qkv, last)
    return program, last


@each_set
def test_values_are_carried_through(instruction_set: str) -> None:
    program, last = small_program(instruction_set)
    program.run(GOOD)
    expected = (np.arange(VOCAB * 3.0 * WIDTH).reshape(VOCAB, -1)[[3, 9]] * 0.25)[:, WIDTH:]
    # The values' part of a row is embedded and gathered as it is; the keys' part is rotated on the way to the cache.
    assert np.array_equal(last.numpy(2)[:, 2 * WIDTH :], expected[:, WIDTH:])
    assert set(program.times()) == {"embed", "rotate_store", "attention", "gather"}
    assert all(calls == 1 for calls, _ in program.times().values())


@pytest.mark.parametrize("message", BAD)
def test_a_batch_that_reaches_outside_is_refused(message: str) -> None:
    program, _ = small_program()
    with pytest.raises(ValueError, match=message):
        program.run(replace(GOOD, **BAD[message]))
    program.run(GOOD)


def test_arrays_of_another_type_are_refused() -> None:
    program, _ = small_program()
    with pytest.raises(TypeError):
        program.run(replace(GOOD, tokens=GOOD.tokens.astype(np.int64)))


def test_an_unknown_instruction_set_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot run instruction set sse9"):
        cpu.NativeProgram(SHAPE, 1, "sse9")


@pytest.mark.parametrize("width", [63, 65, 32_832])
def test_widths_that_cannot_be_rotated_are_refused(width: int) -> None:
    program = cpu.NativeProgram(SHAPE, 1)
    with pytest.raises(ValueError, match="multiple of 64"):
        program.operand(width, Extent.TOKENS, "int8")


@each_set
def test_draws_follow_their_definition(instruction_set: str) -> None:
    rng = np.random.default_rng(3)
    program = cpu.NativeProgram(SHAPE, 2, instruction_set)
    logits = program.buffer(300, Extent.ROWS)
    for _ in range(50):
        count = int(rng.integers(0, SHAPE.max_seqs + 1))
        values = logits.numpy(count)
        values[:] = rng.standard_normal((count, 300)) * 3
        rows = ops.SamplingRows(
            temperature=rng.choice([0.0, 0.5, 1.0, 2.0], count).astype(np.float32),
            top_k=rng.choice([1, 5, 300], count).astype(np.int32),
            top_p=rng.choice([0.3, 0.9, 1.0], count).astype(np.float32),
            min_p=rng.choice([0.0, 0.1], count).astype(np.float32),
            seed=rng.integers(0, 2**64, count, dtype=np.uint64),
            position=rng.integers(0, 2**40, count),
        )
        expected = [
            choose(
                values[r],
                temperature=float(rows.temperature[r]),
                top_k=int(rows.top_k[r]),
                top_p=float(rows.top_p[r]),
                min_p=float(rows.min_p[r]),
                seed=int(rows.seed[r]),
                position=int(rows.position[r]),
            )
            for r in range(count)
        ]
        assert program.sample(logits, rows).tolist() == expected


def test_programs_work_side_by_side() -> None:
    (first, a), (second, b) = small_program(), small_program()
    first.run(GOOD)
    before = a.numpy(2).copy()
    second.run(replace(GOOD, tokens=ints(4, 5, 6, 7)))
    assert np.array_equal(a.numpy(2), before)
    assert not np.array_equal(b.numpy(2), before)
