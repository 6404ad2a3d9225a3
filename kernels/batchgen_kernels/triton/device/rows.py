"""Ops that work on one row at a time: lookup, RMSNorm, gates."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def take_rows(source, index, out, scale, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """out[i] = source[index[i]] * scale. Grid (rows, ceil(WIDTH / BLOCK))."""
    row = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    taken = tl.load(index + row).to(tl.int64)
    x = tl.load(source + taken * WIDTH + column, mask=inside).to(tl.float32)
    tl.store(out + row.to(tl.int64) * WIDTH + column, (x * scale).to(out.dtype.element_ty), mask=inside)


@triton.jit
def norm(x, weight, out, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr, ADD: tl.constexpr):
    """out = RMSNorm(x), or out += RMSNorm(x) where ADD. Grid (rows,), BLOCK >= WIDTH."""
    start = tl.program_id(0).to(tl.int64) * WIDTH
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    row = tl.load(x + start + column, mask=inside, other=0.0).to(tl.float32)
    inverse = 1.0 / tl.sqrt(tl.sum(row * row, axis=0) / WIDTH + eps)
    normed = row * inverse * tl.load(weight + column, mask=inside, other=0.0)
    target = out + start + column
    if ADD:
        normed += tl.load(target, mask=inside, other=0.0).to(tl.float32)
    tl.store(target, normed.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _sigmoid(x):
    """Without overflow for any x."""
    small = tl.exp(-tl.abs(x))
    return tl.where(x >= 0, 1.0, small) / (1.0 + small)


@triton.jit
def gated(gate_up, out, WIDTH: tl.constexpr, GELU: tl.constexpr, BLOCK: tl.constexpr):
    """out = act(gate) * up; gate_up [rows, 2 WIDTH]. Grid (rows, ceil(WIDTH / BLOCK))."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    gate = tl.load(gate_up + row * 2 * WIDTH + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * WIDTH + WIDTH + column, mask=inside, other=0.0).to(tl.float32)
    if GELU:
        # (1 + tanh(y)) / 2 is the sigmoid of 2 y; y = sqrt(2 / pi) (x + 0.044715 x^3), Hendrycks and Gimpel, 2016.
        active = gate * _sigmoid(1.5957691216057308 * (gate + 0.044715 * gate * gate * gate))
    else:
        active = gate * _sigmoid(gate)
    tl.store(out + row * WIDTH + column, (active * up).to(out.dtype.element_ty), mask=inside)
