"""The torch program against a slow, plain reading of each op's definition, in float64."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from batchgen_kernels import ops
from batchgen_kernels.reference import TorchProgram, hadamard, quantize

SHAPE = ops.Shape(max_tokens=24, max_seqs=6, num_blocks=16, block_size=4, max_blocks_per_seq=5)
Segments = Sequence[tuple[int, int]]
"""(start, count) of each sequence: it computes positions [start, start + count)."""


def make_batch(segments: Segments, rng: np.random.Generator, rows: Sequence[int] = ()) -> ops.Batch:
    """Sequences in scattered blocks, with random token ids below 50."""
    size = SHAPE.block_size
    free = list(rng.permutation(SHAPE.num_blocks))
    tables = np.zeros((len(segments), SHAPE.max_blocks_per_seq), dtype=np.int32)
    positions: list[int] = []
    slots: list[int] = []
    for s, (start, count) in enumerate(segments):
        blocks = [int(free.pop()) for _ in range(-(-(start + count) // size))]
        tables[s, : len(blocks)] = blocks
        positions += range(start, start + count)
        slots += [blocks[p // size] * size + p % size for p in range(start, start + count)]
    return ops.Batch(
        tokens=rng.integers(0, 50, len(positions), dtype=np.int32),
        positions=np.array(positions, dtype=np.int32),
        slots=np.array(slots, dtype=np.int32),
        query_start=np.cumsum([0, *(count for _, count in segments)], dtype=np.int32),
        context_lens=np.array([start + count for start, count in segments], dtype=np.int32),
        block_tables=tables,
        rows=np.array(rows, dtype=np.int32),
    )


def fill(buffer: ops.Buffer, rng: np.random.Generator, count: int) -> npt.NDArray[np.float32]:
    """Random values into the first `count` rows; a copy of them comes back."""
    values = rng.standard_normal((count, buffer.width)).astype(np.float32)
    buffer.numpy(count)[:] = values
    return values


def rms(x: npt.NDArray[np.floating], weight: npt.NDArray[np.floating], eps: float) -> npt.NDArray[np.float64]:
    wide = x.astype(np.float64)
    return np.asarray(wide / np.sqrt((wide**2).mean(-1, keepdims=True) + eps) * weight)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def test_rows_ops(rng: np.random.Generator) -> None:
    """embed, norm, linear, linear_add, norm_add and gather in one chain."""
    width, outs, eps = 24, 10, 1e-5
    table, norm_weight, sandwich = (
        torch.from_numpy(rng.standard_normal(s).astype(np.float32)) for s in ((50, width), width, outs)
    )
    weight = torch.from_numpy(rng.standard_normal((outs, width)).astype(np.float32))
    bias = torch.from_numpy(rng.standard_normal(outs).astype(np.float32))

    program = TorchProgram(SHAPE)
    x, y = program.buffer(width, ops.Extent.TOKENS), program.buffer(outs, ops.Extent.TOKENS)
    operand = program.operand(width, ops.Extent.TOKENS, "float32")
    residual, picked = program.buffer(outs, ops.Extent.TOKENS), program.buffer(outs, ops.Extent.ROWS)
    packed = program.linear_weight(weight, bias, "float32")
    program.embed(table.bfloat16(), 2.5, x)
    program.norm(x, norm_weight, eps, operand)
    program.linear(operand, packed, y)
    program.linear_add(operand, packed, residual)
    program.norm_add(y, sandwich, eps, residual)
    program.gather(residual, picked)

    batch = make_batch([(0, 5), (3, 1), (6, 2)], rng, rows=[4, 7])
    before = fill(residual, rng, 8)
    program.run(batch)

    embedded = table.bfloat16().double().numpy()[batch.tokens] * 2.5
    product = rms(embedded, norm_weight.numpy(), eps) @ weight.double().numpy().T + bias.numpy()
    expected = before + product + rms(product, sandwich.numpy(), eps)
    np.testing.assert_allclose(x.numpy(8), embedded, rtol=1e-6)
    np.testing.assert_allclose(y.numpy(8), product, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(residual.numpy(8), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(picked.numpy(2), residual.numpy(8)[[4, 7]])


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_a_step_that_wants_no_token_runs(precision: ops.Precision, rng: np.random.Generator) -> None:
    program = TorchProgram(SHAPE)
    x, rows, logits = (
        program.buffer(64, ops.Extent.TOKENS),
        program.buffer(64, ops.Extent.ROWS),
        program.buffer(50, ops.Extent.ROWS),
    )
    operand = program.operand(64, ops.Extent.ROWS, precision)
    program.gather(x, rows)
    program.norm(rows, torch.ones(64), 1e-5, operand)
    program.linear(operand, program.linear_weight(torch.randn(50, 64), None, precision), logits)
    program.run(make_batch([(0, 5)], rng))
    assert logits.numpy(0).shape == (0, 50)


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_gated(activation: ops.Activation, rng: np.random.Generator) -> None:
    program = TorchProgram(SHAPE)
    gate_up, out = program.buffer(12, ops.Extent.TOKENS), program.buffer(6, ops.Extent.TOKENS)
    operand = program.operand(6, ops.Extent.TOKENS, "float32")
    program.gated(gate_up, activation, operand)
    program.linear(operand, program.linear_weight(torch.eye(6), None, "float32"), out)
    values = fill(gate_up, rng, 3)
    program.run(make_batch([(0, 3)], rng))
    gate, up = values[:, :6].astype(np.float64), values[:, 6:]
    inner = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
    active = gate / (1 + np.exp(-gate)) if activation == "silu" else gate * (1 + np.tanh(inner)) / 2
    np.testing.assert_allclose(out.numpy(3), active * up, rtol=1e-5, atol=1e-6)


def attended_slowly(
    history: npt.NDArray[np.float64], query: npt.NDArray[np.float64], scale: float, window: int | None
) -> npt.NDArray[np.float64]:
    """One token's attention: query [Hq, D] over history [p + 1, 2, Hk, D], its own position last."""
    seen = history if window is None else history[-window:]
    group = len(query) // history.shape[2]
    out = []
    for head, q in enumerate(query):
        scores = seen[:, 0, head // group] @ q * scale
        weights = np.exp(scores - scores.max())
        out.append(weights / weights.sum() @ seen[:, 1, head // group])
    return np.concatenate(out)


def rotated_slowly(
    x: npt.NDArray[np.float64], position: int, table: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """x [heads, D] at a position; pair (d, d + D/2) turns by the angle table[position, d]."""
    half = x.shape[-1] // 2
    turned = (x[:, :half] + 1j * x[:, half:]) * np.exp(1j * table[position])
    return np.concatenate([turned.real, turned.imag], axis=-1)


@settings(max_examples=30, deadline=None)
@given(
    segments=st.lists(st.tuples(st.integers(0, 8), st.integers(1, 4)), min_size=1, max_size=5),
    window=st.sampled_from([None, 1, 3, 64]),
    normed=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_rotation_cache_and_attention(
    segments: list[tuple[int, int]], window: int | None, normed: bool, seed: int
) -> None:
    """Two steps: the history of each sequence, then the segments; the second reads what the first wrote."""
    rng = np.random.default_rng(seed)
    q_heads, heads, dim, eps, scale = 4, 2, 8, 1e-6, 0.3
    angles = rng.uniform(0, 6, (16, dim // 2))
    q_norm, k_norm = (torch.from_numpy(rng.uniform(0.5, 2, dim).astype(np.float32)) for _ in range(2))
    program = TorchProgram(SHAPE)
    qkv = program.buffer((q_heads + 2 * heads) * dim, ops.Extent.TOKENS)
    out = program.buffer(q_heads * dim, ops.Extent.TOKENS)
    operand = program.operand(q_heads * dim, ops.Extent.TOKENS, "float32")
    cache = program.kv_cache(heads, dim, "float32")
    rotary = program.rotary_table(torch.from_numpy(np.cos(angles)), torch.from_numpy(np.sin(angles)))
    program.rotate_store(qkv, cache, rotary, q_norm if normed else None, k_norm if normed else None, eps)
    program.attention(qkv, cache, scale, window, operand)
    program.linear(operand, program.linear_weight(torch.eye(q_heads * dim), None, "float32"), out)

    whole = make_batch([(0, start + count) for start, count in segments], rng)
    histories = [rng.standard_normal((start + count, q_heads + 2 * heads, dim)) for start, count in segments]
    for s, (start, count) in enumerate(segments):
        table = whole.block_tables[s : s + 1]
        for begin, stop in ((0, start), (start, start + count)):
            if begin == stop:
                continue
            positions = np.arange(begin, stop, dtype=np.int32)
            qkv.numpy(stop - begin)[:] = histories[s][begin:stop].reshape(stop - begin, -1)
            program.run(
                ops.Batch(
                    tokens=np.zeros(stop - begin, dtype=np.int32),
                    positions=positions,
                    slots=table[0, positions // 4] * 4 + positions % 4,
                    query_start=np.array([0, stop - begin], dtype=np.int32),
                    context_lens=np.array([stop], dtype=np.int32),
                    block_tables=table,
                    rows=np.zeros(0, dtype=np.int32),
                )
            )
        got = out.numpy(count).copy()

        queries, keys, values = np.split(
            histories[s].astype(np.float32).astype(np.float64), [q_heads, q_heads + heads], axis=1
        )
        if normed:
            queries, keys = rms(queries, q_norm.numpy(), eps), rms(keys, k_norm.numpy(), eps)
        turned = np.stack([rotated_slowly(k, p, angles) for p, k in enumerate(keys)])
        cached = np.stack([turned, values], axis=1)
        expected = np.stack(
            [
                attended_slowly(cached[: p + 1], rotated_slowly(queries[p], p, angles), scale, window)
                for p in range(start, start + count)
            ]
        )
        np.testing.assert_allclose(got, expected, rtol=2e-4, atol=2e-5)


def test_sequences_of_one_batch_do_not_see_each_other(rng: np.random.Generator) -> None:
    """A ragged batch gives what each of its sequences gives alone."""
    program = TorchProgram(SHAPE)
    qkv, out = program.buffer(32, ops.Extent.TOKENS), program.buffer(16, ops.Extent.TOKENS)
    operand = program.operand(16, ops.Extent.TOKENS, "float32")
    cache = program.kv_cache(1, 8, "float32")
    ones = torch.ones(16, 4)
    program.rotate_store(qkv, cache, program.rotary_table(ones, 0 * ones), None, None, 1e-6)
    program.attention(qkv, cache, 0.5, None, operand)
    program.linear(operand, program.linear_weight(torch.eye(16), None, "float32"), out)
    batch = make_batch([(0, 5), (0, 1), (0, 7)], rng)
    values = fill(qkv, rng, 13)
    program.run(batch)
    together = out.numpy(13).copy()
    for s in range(3):
        begin, stop = batch.query_start[s : s + 2]
        qkv.numpy(stop - begin)[:] = values[begin:stop]
        program.run(
            ops.Batch(
                tokens=batch.tokens[begin:stop],
                positions=batch.positions[begin:stop],
                slots=batch.slots[begin:stop],
                query_start=np.array([0, stop - begin], dtype=np.int32),
                context_lens=batch.context_lens[s : s + 1],
                block_tables=batch.block_tables[s : s + 1],
                rows=batch.rows,
            )
        )
        np.testing.assert_allclose(out.numpy(stop - begin), together[begin:stop], rtol=1e-5, atol=1e-6)


def sylvester(order: int) -> npt.NDArray[np.int64]:
    """The Walsh-Hadamard matrix in natural order: entry (i, j) is -1 to the number of common bits."""
    return np.array([[(-1) ** (i & j).bit_count() for j in range(order)] for i in range(order)])


def test_hadamard_is_the_walsh_matrix_of_each_block(rng: np.random.Generator) -> None:
    x = rng.integers(-50, 50, (3, 128)).astype(np.float32)
    blocks = x.reshape(3, 2, 64) @ sylvester(64) / 8
    np.testing.assert_array_equal(hadamard(torch.from_numpy(x)).numpy(), blocks.reshape(3, 128))


def test_quantized_rows(rng: np.random.Generator) -> None:
    x = torch.from_numpy(rng.standard_normal((5, 192)).astype(np.float32))
    x[2] = 0
    values, scales = quantize(x)
    assert values.dtype == torch.int8
    assert values.abs().amax(dim=1).tolist() == [127, 127, 0, 127, 127]
    assert scales[2] == 0
    rotated = hadamard(x)
    assert bool(((values * scales[:, None] - rotated).abs() <= 0.5001 * scales[:, None]).all())


@pytest.mark.parametrize("width", [192, 2112])
def test_int8_linear_is_the_integer_product(width: int, rng: np.random.Generator) -> None:
    outs = 20
    weight, bias = torch.randn(outs, width), torch.randn(outs)
    program = TorchProgram(SHAPE)
    x, out = program.buffer(width, ops.Extent.TOKENS), program.buffer(outs, ops.Extent.TOKENS)
    operand = program.operand(width, ops.Extent.TOKENS, "int8")
    program.norm(x, torch.ones(width), 0.0, operand)
    program.linear(operand, program.linear_weight(weight, bias, "int8"), out)
    values = fill(x, rng, 7)
    program.run(make_batch([(0, 7)], rng))

    normed = torch.from_numpy(values) * torch.rsqrt(torch.from_numpy(values).square().mean(dim=-1, keepdim=True))
    (left, left_scale), (right, right_scale) = quantize(normed), quantize(weight)
    sums = left.numpy().astype(np.int64) @ right.numpy().astype(np.int64).T
    expected = sums.astype(np.float32) * left_scale.numpy()[:, None] * right_scale.numpy() + bias.numpy()
    np.testing.assert_array_equal(out.numpy(7), expected)
    exact = normed.double() @ weight.double().T + bias
    assert float((exact - torch.from_numpy(expected)).abs().max() / exact.abs().max()) < 0.02


def test_int8_sums_do_not_saturate(rng: np.random.Generator) -> None:
    """All activations and weights at +127 once rotated: a sum of 2048 * 127**2 must come out whole."""
    width = 2048
    program = TorchProgram(SHAPE)
    x, out = program.buffer(width, ops.Extent.TOKENS), program.buffer(1, ops.Extent.TOKENS)
    operand = program.operand(width, ops.Extent.TOKENS, "int8")
    program.norm(x, torch.ones(width), 0.0, operand)
    program.linear(operand, program.linear_weight(hadamard(torch.ones(1, width)), None, "int8"), out)
    x.numpy(1)[:] = hadamard(torch.ones(1, width)).numpy()
    program.run(make_batch([(0, 1)], rng))
    assert out.numpy(1)[0, 0] == pytest.approx(width, rel=1e-6)


def test_int8_operands_are_whole_blocks() -> None:
    with pytest.raises(ValueError, match="multiple of 64"):
        TorchProgram(SHAPE).operand(96, ops.Extent.TOKENS, "int8")


def test_sample_takes_each_row_with_its_settings(rng: np.random.Generator) -> None:
    program = TorchProgram(SHAPE)
    logits = program.buffer(50, ops.Extent.ROWS)
    values = fill(logits, rng, 3)
    rows = ops.SamplingRows(
        temperature=np.array([0, 1, 1], dtype=np.float32),
        top_k=np.array([50, 1, 50], dtype=np.int32),
        top_p=np.ones(3, dtype=np.float32),
        min_p=np.array([0, 0, 1], dtype=np.float32),
        seed=np.array([0, 2**64 - 1, 5], dtype=np.uint64),
        position=np.array([1, 2, 3], dtype=np.int64),
    )
    chosen = program.sample(logits, rows)
    assert chosen.dtype == np.int32
    np.testing.assert_array_equal(chosen, values.argmax(axis=1))
