"""Linears: correctness first, then GOP/s of each shape against torch and the machine's peak.

    python kernels/bench/linear.py [--threads N] [--instruction-set NAME] [--rows 1,8,64]

The shapes are SmolLM2-135M's. A figure is the best of several runs: on a machine that others use too, the best run is
the one that nobody disturbed. `%` is the share of the peak measured by multiply-adds on registers alone.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch.nn import functional

from batchgen_kernels import _native, cpu
from batchgen_kernels.ops import Batch, Extent, Precision, Shape
from batchgen_kernels.reference import quantize

SHAPES = {
    "qkv": (576, 960),
    "attention out": (576, 576),
    "gate, up": (576, 3072),
    "down": (1536, 576),
    "head": (576, 49152),
}
"""Name -> (K, N)."""
ROUNDS = 7
OPERATIONS_OF_A_ROUND = 400_000_000
PEAK_ROUNDS, PEAK_STEPS = 50, 100_000


def best_rate(operations: int, call: Callable[[], object]) -> float:
    """GOP/s of the quickest of several calls."""
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return operations / min(times) / 1e9


def peak(instruction_set: str, int8: bool, threads: int) -> float | None:
    """GOP/s of multiply-adds on registers; None where the instruction set has none of that kind."""
    rates = [_native.peak(instruction_set, int8, threads, PEAK_STEPS) / 1e9 for _ in range(PEAK_ROUNDS)]
    return max(rates) or None


def empty_batch(rows: int) -> Batch:
    """A batch of which linears see nothing but its number of tokens."""
    zeros, none = np.zeros(rows, dtype=np.int32), np.zeros(0, dtype=np.int32)
    return Batch(zeros, zeros, zeros, np.zeros(1, dtype=np.int32), none, np.zeros((0, 1), dtype=np.int32), none)


class Linear:
    """One linear of the native program, repeated so that a call is long enough to be timed."""

    def __init__(self, x: torch.Tensor, weight: torch.Tensor, form: str, threads: int, instruction_set: str) -> None:
        rows, (columns, width) = len(x), weight.shape
        precision: Precision = "int8" if form == "int8" else "float32"
        self._program = cpu.NativeProgram(Shape(rows, 1, 1, 16, 1), threads, instruction_set)
        operand = self._program.operand(width, Extent.TOKENS, precision)
        self._out = self._program.buffer(columns, Extent.TOKENS)
        packed = self._program.linear_weight(weight.bfloat16() if form == "bfloat16" else weight, None, precision)
        self._batch = empty_batch(rows)
        repeats = max(1, OPERATIONS_OF_A_ROUND // (2 * rows * columns * width))
        self.operations = 2 * rows * columns * width * repeats
        for _ in range(repeats):
            self._program.linear(operand, packed, self._out)
        assert isinstance(operand, _native.Operand)
        if precision == "int8":
            values, scales = quantize(x)
            shifted, row_scales = operand.quantized(rows)
            shifted[:] = (values.numpy().astype(np.int32) + 128).astype(np.uint8)
            row_scales[:] = scales.numpy()
        else:
            operand.numpy(rows)[:] = x.numpy()

    def run(self) -> torch.Tensor:
        self._program.run(self._batch)
        return torch.from_numpy(self._out.numpy(len(self._batch.tokens)))


def check(linear: Linear, x: torch.Tensor, weight: torch.Tensor, form: str) -> None:
    """Against float64: to rounding in float32, within the scheme's own error in int8."""
    exact = x.double() @ weight.double().T
    error = float((linear.run().double() - exact).norm() / exact.norm())
    allowed = {"float32": 1e-5, "bfloat16": 1e-5, "int8": 2e-2}[form]
    if error > allowed:
        raise SystemExit(f"{form}, {tuple(x.shape)} by {tuple(weight.shape)}: relative error {error:.2g} > {allowed}")


def cell(rate: float, best: float | None) -> str:
    return f"{rate:,.0f}" if best is None else f"{rate:,.0f} {rate / best:4.0%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--instruction-set", choices=cpu.instruction_sets(), default=cpu.instruction_sets()[0])
    parser.add_argument("--rows", default="1,8,16,32,64,256,1024", help="the M to measure")
    options = parser.parse_args()
    counts = [int(count) for count in options.rows.split(",")]
    torch.set_num_threads(options.threads)
    generator = torch.Generator().manual_seed(0)

    peaks = {int8: peak(options.instruction_set, int8, options.threads) for int8 in (False, True)}
    table = Table(title=f"GOP/s, {options.instruction_set}, {options.threads} threads", title_justify="left")
    for heading in ("linear", "K", "N", "form", *(f"M={count}" for count in counts)):
        table.add_column(heading, justify="left" if heading in ("linear", "form") else "right")
    for form, int8 in (("float32", False), ("int8", True)):
        if (best := peaks[int8]) is not None:
            table.add_row("peak", "", "", form, *([f"{best:,.0f}"] * len(counts)))
    for name, (width, columns) in SHAPES.items():
        # Values of bfloat16, so that all forms but int8 have the same exact product.
        weight = torch.randn(columns, width, generator=generator).bfloat16().float()
        inputs = [torch.randn(count, width, generator=generator) for count in counts]
        for form in ("float32", "bfloat16", "int8"):
            cells = []
            for x in inputs:
                linear = Linear(x, weight, form, options.threads, options.instruction_set)
                check(linear, x, weight, form)
                cells.append(cell(best_rate(linear.operations, linear.run), peaks[form == "int8"]))
            table.add_row(name, str(width), str(columns), form, *cells)
        torch_rates = [best_rate(2 * x.numel() * columns, partial(functional.linear, x, weight)) for x in inputs]
        table.add_row(name, str(width), str(columns), "torch", *(cell(rate, peaks[False]) for rate in torch_rates))
    Console(width=60 + 14 * len(counts)).print(table)


if __name__ == "__main__":
    main()
