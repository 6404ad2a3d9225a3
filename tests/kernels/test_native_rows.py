"""Native ops on single rows: close to float64, quantised as the reference does, and the same bits in any batch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from batchgen_kernels import ops
from batchgen_kernels.cpu import NativeProgram, instruction_sets
from batchgen_kernels.reference import quantize
from tests.kernels.ragged import Floats, Segment, make_batch, rounded, shape_for

if TYPE_CHECKING:
    from batchgen_kernels import _native

TOKENS = ops.Extent.TOKENS
each_set = pytest.mark.parametrize("instruction_set", instruction_sets())
EPS = 1e-5


def run_rows(
    record: Callable[[NativeProgram, ops.Buffer], ops.Buffer | ops.Operand],
    x: Floats,
    instruction_set: str,
    threads: int = 1,
) -> ops.Buffer | ops.Operand:
    """One op over rows x, run once."""
    segments = [(0, len(x))]
    shape = shape_for(segments, 16)
    program = NativeProgram(shape, threads, instruction_set)
    buffer = program.buffer(x.shape[1], TOKENS)
    out = record(program, buffer)
    buffer.numpy(len(x))[:] = x
    program.run(make_batch(segments, shape, np.random.default_rng(0)))
    return out


def floats_of(operand: ops.Buffer | ops.Operand, count: int) -> Floats:
    return np.array(cast("_native.Operand", operand).numpy(count), dtype=np.float32)


def random_rows(count: int, width: int, seed: int) -> Floats:
    rng = np.random.default_rng(seed)
    sizes = np.array([1e-3, 1.0, 30.0])[rng.integers(0, 3, (count, 1))]
    rows: Floats = (rng.standard_normal((count, width)) * sizes).astype(np.float32)
    return rows


def rms(x: Floats, weight: Floats) -> npt.NDArray[np.float64]:
    wide = x.astype(np.float64)
    return np.asarray(wide / np.sqrt((wide**2).mean(-1, keepdims=True) + EPS) * weight)


def active(gate: npt.NDArray[np.float64], activation: ops.Activation) -> npt.NDArray[np.float64]:
    if activation == "silu":
        return np.asarray(gate / (1 + np.exp(-gate)))
    return np.asarray(gate * (1 + np.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3))) / 2)


@dataclass(frozen=True)
class RowOp:
    """An op that writes an operand of `width` from rows of `in_width`."""

    name: str
    width: int
    weight: torch.Tensor

    @classmethod
    def make(cls, name: str, width: int, seed: int = 1) -> RowOp:
        return cls(name, width, torch.randn(width, generator=torch.Generator().manual_seed(seed)))

    @property
    def in_width(self) -> int:
        return self.width if self.name == "norm" else 2 * self.width

    def record(self, precision: ops.Precision) -> Callable[[NativeProgram, ops.Buffer], ops.Operand]:
        def op(program: NativeProgram, x: ops.Buffer) -> ops.Operand:
            out = program.operand(self.width, TOKENS, precision)
            if self.name == "norm":
                program.norm(x, self.weight, EPS, out)
            else:
                program.gated(x, cast("ops.Activation", self.name), out)
            return out

        return op

    def slowly(self, x: Floats) -> npt.NDArray[np.float64]:
        if self.name == "norm":
            return rms(x, self.weight.numpy())
        gate, up = np.split(x.astype(np.float64), 2, axis=1)
        return active(gate, cast("ops.Activation", self.name)) * up


NAMES = ["norm", "silu", "gelu_tanh"]
each_op = pytest.mark.parametrize("name", NAMES)


@each_set
@each_op
@settings(deadline=None)
@given(width=st.integers(1, 150), count=st.integers(1, 5), seed=st.integers(0, 2**32 - 1))
def test_row_ops_follow_their_definition(instruction_set: str, name: str, width: int, count: int, seed: int) -> None:
    op, x = RowOp.make(name, width), random_rows(count, 2 * width, seed)[:, : width if name == "norm" else None]
    out = floats_of(run_rows(op.record("float32"), x, instruction_set), count)
    np.testing.assert_allclose(out, op.slowly(x), rtol=3e-6, atol=1e-6)


@each_set
@each_op
@settings(deadline=None)
@given(width=st.integers(1, 150), count=st.integers(2, 40), seed=st.integers(0, 2**32 - 1))
def test_a_row_has_the_same_bits_in_any_batch(
    instruction_set: str, name: str, width: int, count: int, seed: int
) -> None:
    op = RowOp.make(name, width)
    x = random_rows(count, op.in_width, seed)
    together = floats_of(run_rows(op.record("float32"), x, instruction_set, threads=2), count)
    alone = [floats_of(run_rows(op.record("float32"), x[r : r + 1], instruction_set), 1) for r in range(count)]
    np.testing.assert_array_equal(together.view(np.uint32), np.concatenate(alone).view(np.uint32))


@each_set
@each_op
@pytest.mark.parametrize("width", [64, 576, 4096])
def test_int8_operands_are_the_quantised_float32_ones(instruction_set: str, name: str, width: int) -> None:
    op, count = RowOp.make(name, width), 7
    x = random_rows(count, op.in_width, seed=width)
    exact = floats_of(run_rows(op.record("float32"), x, instruction_set), count)
    values, scales = cast("_native.Operand", run_rows(op.record("int8"), x, instruction_set, 2)).quantized(count)
    expected, expected_scales = quantize(torch.from_numpy(exact))
    np.testing.assert_array_equal(values.astype(np.int32) - 128, expected.numpy())
    np.testing.assert_array_equal(scales, expected_scales.numpy())


@each_set
def test_exponentials_are_exact_to_a_few_ulp_and_right_at_the_ends(instruction_set: str) -> None:
    gate = np.concatenate([np.linspace(-85, 85, 9973), [0.0, -0.0, 1e-30, 1e4, -1e4, -3e38, 3e38, np.inf, np.nan]])
    x = np.stack([gate, np.ones_like(gate)], axis=1).astype(np.float32)
    out = floats_of(run_rows(RowOp.make("silu", 1).record("float32"), x, instruction_set), len(x))[:, 0]
    with np.errstate(over="ignore"):
        expected = active(x[:, 0].astype(np.float64), "silu")
    np.testing.assert_allclose(out, expected, rtol=5e-7, atol=1e-37)


@each_set
def test_embed_and_norm_add(instruction_set: str) -> None:
    rng = np.random.default_rng(4)
    for dtype, width in ((torch.float32, 37), (torch.bfloat16, 64)):
        table, weight = torch.randn(50, width), torch.randn(width)
        segments = [(0, 3), (5, 1)]
        shape = shape_for(segments, 4)
        program = NativeProgram(shape, 1, instruction_set)
        x, residual = program.buffer(width, TOKENS), program.buffer(width, TOKENS)
        program.embed(table.to(dtype), 2.5, x)
        program.norm_add(x, weight, EPS, residual)
        before = random_rows(4, width, seed=5)
        residual.numpy(4)[:] = before
        batch = make_batch(segments, shape, rng)
        program.run(batch)
        embedded = table.to(dtype).float().numpy()[batch.tokens] * np.float32(2.5)
        np.testing.assert_array_equal(x.numpy(4), embedded)
        np.testing.assert_allclose(residual.numpy(4), before + rms(embedded, weight.numpy()), rtol=3e-6, atol=1e-5)


@dataclass(frozen=True)
class Rotation:
    """What one rotate_store leaves behind."""

    queries: Floats
    keys: Floats
    values: Floats


@dataclass(frozen=True)
class Rounding:
    """What one rotate_store leaves in an int8 cache: numbers [T, Hk, D] and scales [T, Hk]."""

    keys: npt.NDArray[np.int16]
    key_scales: Floats
    values: npt.NDArray[np.int8]
    value_scales: Floats


@dataclass(frozen=True)
class Rotary:
    """A rotate_store op: weights of the norms or None, angles [positions, D / 2]."""

    q_heads: int
    kv_heads: int
    dim: int
    normed: bool

    @property
    def weights(self) -> tuple[torch.Tensor, torch.Tensor]:
        both = torch.randn(2, self.dim, generator=torch.Generator().manual_seed(9))
        return both[0], both[1]

    @property
    def angles(self) -> torch.Tensor:
        frequencies = 10_000.0 ** (-torch.arange(self.dim // 2) / (self.dim // 2))
        return torch.arange(64)[:, None] * frequencies

    def run(self, qkv: Floats, segments: list[Segment], block_size: int, threads: int, isa: str) -> Rotation:
        """Queries and what the cache holds at each token's slot; the rest of the cache stays NaN."""
        shape = shape_for(segments, block_size)
        program = NativeProgram(shape, threads, isa)
        buffer, cache = self.record(program, qkv, "float32")
        batch = make_batch(segments, shape, np.random.default_rng(2))
        keys, values = cast("tuple[Floats, Floats]", cache.numpy())
        keys.fill(np.nan)
        values.fill(np.nan)
        program.run(batch)
        blocks, offsets = batch.slots // block_size, batch.slots % block_size
        stored = keys[blocks, :, :, offsets], values[blocks, :, offsets]
        assert np.isfinite(keys).sum() == np.isfinite(values).sum() == stored[0].size
        queries = buffer.numpy(len(qkv))[:, : self.q_heads * self.dim].reshape(len(qkv), self.q_heads, self.dim)
        return Rotation(queries.copy(), *stored)

    def rounds(self, qkv: Floats, segments: list[Segment], block_size: int, isa: str) -> Rounding:
        """What an int8 cache holds at each token's slot."""
        shape = shape_for(segments, block_size)
        program = NativeProgram(shape, 2, isa)
        _, cache = self.record(program, qkv, "int8")
        batch = make_batch(segments, shape, np.random.default_rng(2))
        program.run(batch)
        blocks, offsets = batch.slots // block_size, batch.slots % block_size
        keys, values, key_scales, value_scales = cast("tuple[npt.NDArray[Any], ...]", cache.numpy())
        return Rounding(
            keys[blocks, :, :, offsets].reshape(len(qkv), self.kv_heads, self.dim).astype(np.int16) - 128,
            key_scales[blocks, :, offsets],
            values[blocks, :, offsets // 4, :, offsets % 4],
            value_scales[blocks, :, offsets],
        )

    def record(
        self, program: NativeProgram, qkv: Floats, precision: ops.Precision
    ) -> tuple[_native.Buffer, _native.Cache]:
        buffer = cast("_native.Buffer", program.buffer(qkv.shape[1], TOKENS))
        cache = cast("_native.Cache", program.kv_cache(self.kv_heads, self.dim, precision))
        q_norm, k_norm = self.weights if self.normed else (None, None)
        table = program.rotary_table(self.angles.cos(), self.angles.sin())
        program.rotate_store(buffer, cache, table, q_norm, k_norm, EPS)
        buffer.numpy(len(qkv))[:] = qkv
        return buffer, cache

    def turned(self, x: Floats, weight: torch.Tensor, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """x [T, heads, D] normed and rotated in float64."""
        wide = rms(x, weight.numpy()) if self.normed else x.astype(np.float64)
        half = self.dim // 2
        angles = self.angles.double().numpy()[positions][:, None]
        pairs = (wide[..., :half] + 1j * wide[..., half:]) * np.exp(1j * angles)
        return np.concatenate([pairs.real, pairs.imag], axis=-1)


@each_set
@settings(deadline=None)
@given(
    rotary=st.builds(
        lambda kv, group, dim, normed: Rotary(kv * group, kv, dim, normed),
        st.integers(1, 3),
        st.integers(1, 4),
        st.sampled_from([2, 8, 40, 64, 128]),
        st.booleans(),
    ),
    segments=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9)), min_size=1, max_size=4),
    block_size=st.sampled_from([1, 4, 16, 24]),
    seed=st.integers(0, 2**32 - 1),
)
def test_rotate_store(
    instruction_set: str, rotary: Rotary, segments: list[Segment], block_size: int, seed: int
) -> None:
    positions = np.concatenate([np.arange(start, start + count) for start, count in segments])
    count, heads = len(positions), rotary.q_heads + 2 * rotary.kv_heads
    qkv = random_rows(count, heads * rotary.dim, seed)
    done = rotary.run(qkv, segments, block_size, 2, instruction_set)
    q, k, v = np.split(
        qkv.reshape(count, heads, rotary.dim), [rotary.q_heads, rotary.q_heads + rotary.kv_heads], axis=1
    )
    scale = np.abs(qkv).max() if not rotary.normed else 1.0
    for got, given_rows, weight in ((done.queries, q, rotary.weights[0]), (done.keys, k, rotary.weights[1])):
        np.testing.assert_allclose(got, rotary.turned(given_rows, weight, positions), rtol=1e-5, atol=1e-5 * scale)
    np.testing.assert_array_equal(done.values, v)

    alone = [rotary.run(qkv[t : t + 1], [(int(positions[t]), 1)], 16, 1, instruction_set) for t in range(min(count, 5))]
    for t, single in enumerate(alone):
        for name in ("queries", "keys", "values"):
            bits, own = getattr(done, name)[t], getattr(single, name)[0]
            np.testing.assert_array_equal(bits.view(np.uint32), own.view(np.uint32))


@each_set
@pytest.mark.parametrize("block_size", [16, 48])
@pytest.mark.parametrize("dim", [16, 80, 128])
def test_an_int8_cache_holds_what_the_float32_one_does_rounded(instruction_set: str, dim: int, block_size: int) -> None:
    segments, rotary = [(0, 5), (37, 9)], Rotary(6, 3, dim, normed=True)
    qkv = random_rows(14, 12 * dim, seed=dim)
    exact = rotary.run(qkv, segments, block_size, 1, instruction_set)
    held = rotary.rounds(qkv, segments, block_size, instruction_set)
    for part, numbers, scales in (
        (exact.keys, held.keys, held.key_scales),
        (exact.values, held.values, held.value_scales),
    ):
        expected, expected_scales = rounded(part)
        np.testing.assert_array_equal(numbers, expected)
        np.testing.assert_array_equal(scales, expected_scales)
