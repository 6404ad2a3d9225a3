"""Triton ops on rows against the reference, under the interpreter; what they write starts as NaN."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from batchgen_kernels import ops
from batchgen_kernels.ops import Extent
from batchgen_kernels.reference import TorchProgram, hadamard, quantize
from batchgen_kernels.triton.program import TritonProgram
from tests.kernels.ragged import make_batch, shape_for
from tests.kernels.triton.pair import BOUNDS, DEVICE, DTYPES, Pair, error

each_dtype = pytest.mark.parametrize("dtype", DTYPES)


@pytest.fixture
def rng(case: int) -> np.random.Generator:
    return np.random.default_rng(case)


def segments(rng: np.random.Generator) -> list[tuple[int, int]]:
    return [(int(rng.integers(0, 9)), int(n)) for n in rng.integers(1, 4, rng.integers(1, 4))]


def both(pair: Pair, method: str, *arguments: Any) -> None:
    """Record an op in both programs; of a pair of buffers each takes its own."""
    for i, program in enumerate((pair.torch, pair.triton)):
        getattr(program, method)(*(a[i] if isinstance(a, tuple) else a for a in arguments))


@each_dtype
def test_lookup_norms_and_gather(rng: np.random.Generator, dtype: torch.dtype) -> None:
    parts = segments(rng)
    shape = shape_for(parts, 4)
    pair = Pair(shape, dtype, rng)
    width = int(rng.integers(1, 300))
    x, residual, picked = pair.outputs(width), pair.buffers(width), pair.outputs(width, Extent.ROWS)
    normed = pair.operands(width, Extent.TOKENS, "float32")
    weight = pair.values(width)
    both(pair, "embed", pair.values(50, width), 0.5, x)
    both(pair, "norm", x, weight, 1e-5, normed)
    both(pair, "norm_add", x, weight, 1e-5, residual)
    both(pair, "gather", residual, picked)
    rows = sorted(rng.permutation(shape.max_tokens)[: int(rng.integers(1, shape.max_seqs + 1))].tolist())
    pair.run(make_batch(parts, shape, rng, rows=rows))
    assert torch.equal(x[1].data.float().cpu(), x[0].data)
    assert error(normed[1].values, normed[0].values) < BOUNDS[dtype]
    assert error(residual[1].data, residual[0].data) < BOUNDS[dtype]
    assert error(picked[1].numpy(len(rows)), picked[0].numpy(len(rows))) < BOUNDS[dtype]


@each_dtype
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_gates(rng: np.random.Generator, dtype: torch.dtype, activation: str) -> None:
    parts = segments(rng)
    shape = shape_for(parts, 4)
    pair = Pair(shape, dtype, rng)
    width = int(rng.integers(1, 1500))
    gate_up, out = pair.buffers(2 * width), pair.operands(width, Extent.TOKENS, "float32")
    for buffer in gate_up:
        buffer.data[0, :4] = torch.tensor([-1e4, -90.0, 90.0, 1e4])[: 2 * width]
    both(pair, "gated", gate_up, activation, out)
    pair.run(make_batch(parts, shape, rng))
    assert error(out[1].values, out[0].values) < BOUNDS[dtype]


@each_dtype
@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_linears(rng: np.random.Generator, dtype: torch.dtype, precision: ops.Precision) -> None:
    """Of a norm's output, into a buffer and added to one, with a bias and without."""
    parts = segments(rng)
    shape = shape_for(parts, 4)
    pair = Pair(shape, dtype, rng)
    width, columns = 64 * int(rng.integers(1, 4)), int(rng.integers(1, 150))
    x, operand = pair.buffers(width), pair.operands(width, Extent.TOKENS, precision)
    out, residual = pair.outputs(columns), pair.buffers(columns)
    both(pair, "norm", x, pair.values(width), 1e-5, operand)
    for method, bias, target in (("linear", pair.values(columns), out), ("linear_add", None, residual)):
        weight = pair.weight(columns, width)
        packed = tuple(p.linear_weight(weight, bias, precision) for p in (pair.torch, pair.triton))
        both(pair, method, operand, packed, target)
    pair.run(make_batch(parts, shape, rng))
    # A norm that rounds otherwise moves an int8 value by one at most, of 127.
    bound = BOUNDS[dtype] if precision == "float32" else 0.02
    assert error(out[1].data, out[0].data) < bound
    assert error(residual[1].data, residual[0].data) < bound


def test_quantised_rows_and_their_products_are_the_references(rng: np.random.Generator) -> None:
    """To the bit, given the same values: zeros, halves and a width that is no power of two."""
    parts = segments(rng)
    shape = shape_for(parts, 4)
    pair = Pair(shape, torch.float32, rng)
    width, columns = 64 * int(rng.integers(1, 6)), int(rng.integers(1, 100))
    gate_up, operand = pair.buffers(2 * width), pair.operands(width, Extent.TOKENS, "int8")
    gate_up[1].data[-1] = 0
    both(pair, "gated", gate_up, "silu", operand)
    out, weight = pair.outputs(columns), pair.weight(columns, width)
    packed = tuple(p.linear_weight(weight, None, "int8") for p in (pair.torch, pair.triton))
    both(pair, "linear", operand, packed, out)
    pair.run(make_batch(parts, shape, rng))
    ours = operand[1]
    values, scales = quantize(ours.values.cpu())
    assert torch.equal(ours.quantized.cpu(), values)
    assert torch.equal(ours.scales.cpu(), scales)
    exact = values.double() @ quantize(weight)[0].double().T
    assert torch.equal(out[1].data.cpu(), exact.float() * scales[:, None] * quantize(weight)[1])


@each_dtype
@pytest.mark.parametrize("normed", [True, False])
def test_rotation_and_the_write_to_the_cache(rng: np.random.Generator, dtype: torch.dtype, normed: bool) -> None:
    parts = segments(rng)
    shape = shape_for(parts, 4)
    pair = Pair(shape, dtype, rng)
    kv_heads, group, head_dim = int(rng.integers(1, 4)), int(rng.integers(1, 4)), 2 * int(rng.integers(8, 40))
    qkv = pair.buffers((group + 2) * kv_heads * head_dim)
    caches: Any = tuple(p.kv_cache(kv_heads, head_dim, "float32") for p in (pair.torch, pair.triton))
    for cache in caches:
        cache.keys.fill_(torch.nan)
        cache.values.fill_(torch.nan)
    angles = torch.rand(16, head_dim // 2, generator=torch.Generator().manual_seed(1)) * 7
    tables = tuple(p.rotary_table(angles.cos(), angles.sin()) for p in (pair.torch, pair.triton))
    norms = [pair.values(head_dim) if normed else None for _ in range(2)]
    both(pair, "rotate_store", qkv, caches, tables, *norms, 1e-5)
    pair.run(make_batch(parts, shape, rng))
    queries = group * kv_heads * head_dim
    assert error(qkv[1].data[:, :queries], qkv[0].data[:, :queries]) < BOUNDS[dtype]
    for ours, theirs in zip(
        (caches[1].keys.cpu(), caches[1].values.cpu()), (caches[0].keys, caches[0].values), strict=True
    ):
        expected = theirs.view(ours.shape)
        written = expected.isnan().logical_not()
        # Exactly the batch's slots are written.
        assert torch.equal(ours.isnan(), expected.isnan())
        assert error(ours[written], expected[written]) < BOUNDS[dtype]


@each_dtype
@pytest.mark.parametrize("head_dim", [48, 64, 80, 128, 256])
def test_the_write_to_an_int8_cache(rng: np.random.Generator, dtype: torch.dtype, head_dim: int) -> None:
    """Scales, keys and values as the reference stores them, and queries that meet them."""
    parts = segments(rng)
    shape = shape_for(parts, 4)
    pair = Pair(shape, dtype, rng)
    kv_heads, group = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    qkv = pair.buffers((group + 2) * kv_heads * head_dim)
    for buffer in qkv:
        buffer.data[0, -head_dim:] = 0
    caches: Any = tuple(p.kv_cache(kv_heads, head_dim, "int8") for p in (pair.torch, pair.triton))
    ours = caches[1]
    for part in (caches[0].keys, caches[0].values, ours.key_scales, ours.value_scales):
        part.fill_(torch.nan)
    angles = torch.rand(16, head_dim // 2, generator=torch.Generator().manual_seed(1)) * 7
    tables = tuple(p.rotary_table(angles.cos(), angles.sin()) for p in (pair.torch, pair.triton))
    norms = [pair.values(head_dim) if rng.random() < 0.5 else None] * 2
    both(pair, "rotate_store", qkv, caches, tables, *norms, 1e-5)
    pair.run(make_batch(parts, shape, rng))
    turned = hadamard if head_dim % 64 == 0 else torch.clone

    def same(found: torch.Tensor, expected: torch.Tensor) -> bool:
        """But for a few numbers that are rounded otherwise, by one of 127."""
        difference = (found.cpu().float() - expected).abs() / expected.abs().max()
        return float(difference.max()) < 0.02 and float((difference > BOUNDS[dtype]).float().mean()) < 0.02

    queries, found = (buffer.data[:, : group * kv_heads * head_dim].reshape(-1, head_dim) for buffer in qkv)
    assert same(found, turned(queries))
    pairs = ((ours.keys, ours.key_scales, caches[0].keys), (ours.values, ours.value_scales, caches[0].values))
    for numbers, scales, theirs in pairs:
        expected = theirs.view(numbers.shape)
        written = expected[..., 0].isnan().logical_not()
        assert torch.equal(scales.isnan().cpu(), written.logical_not())
        assert same((numbers.float() * scales[..., None])[written.to(DEVICE)], turned(expected[written]))


def test_a_step_without_rows_computes_no_head(rng: np.random.Generator) -> None:
    parts = [(0, 3)]
    shape = shape_for(parts, 4)
    pair = Pair(shape, torch.float32, rng)
    x, last = pair.buffers(8), pair.outputs(8, Extent.ROWS)
    operand, out = pair.operands(8, Extent.ROWS, "float32"), pair.outputs(5, Extent.ROWS)
    both(pair, "gather", x, last)
    both(pair, "norm", last, pair.values(8), 1e-5, operand)
    weight = pair.weight(5, 8)
    both(
        pair, "linear", operand, tuple(p.linear_weight(weight, None, "float32") for p in (pair.torch, pair.triton)), out
    )
    pair.run(make_batch(parts, shape, rng))
    assert bool(out[1].data.isnan().all())


def test_what_cannot_be_recorded_is_refused(rng: np.random.Generator) -> None:
    pair = Pair(shape_for([(0, 1)], 4), torch.float32, rng)
    program = pair.triton
    assert isinstance(pair.torch, TorchProgram)
    with pytest.raises(ValueError, match="multiple of 64"):
        program.operand(63, Extent.TOKENS, "int8")
    with pytest.raises(ValueError, match="heads of 192"):
        program.kv_cache(1, 192, "int8")
    qkv, cache = program.buffer(48, Extent.TOKENS), program.kv_cache(1, 16, "float32")
    table = program.rotary_table(torch.ones(4, 8), torch.ones(4, 8))
    with pytest.raises(ValueError, match="together"):
        program.rotate_store(qkv, cache, table, torch.ones(16), None, 1e-5)
    weight = program.linear_weight(torch.ones(4, 64), None, "int8")
    program.linear(program.operand(64, Extent.TOKENS, "float32"), weight, program.buffer(4, Extent.TOKENS))
    with pytest.raises(ValueError, match="int8 operand"):
        program.run(make_batch([(0, 1)], shape_for([(0, 1)], 4), rng))


def test_blocks_are_copied(rng: np.random.Generator) -> None:
    program = TritonProgram(ops.Shape(4, 2, 5, 4, 2), DEVICE, torch.float32)
    caches = [program.kv_cache(2, 8, "float32"), program.kv_cache(2, 8, "int8")]
    expected = []
    for part in (part for cache in caches for part in cache.parts()):
        part.copy_(torch.from_numpy(rng.integers(-127, 128, part.shape)))
        blocks = part.cpu().clone().view(5, -1)
        blocks[1] = blocks[3]
        expected.append(blocks)
    program.copy_block(3, 1)
    assert len(expected) == 6
    for part, blocks in zip((p for c in caches for p in c.parts()), expected, strict=True):
        assert torch.equal(part.cpu().view(5, -1), blocks)
