"""The same ops recorded into the reference and into the Triton program, over the same values."""

from __future__ import annotations

import math
import os
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch

from batchgen_kernels import ops
from batchgen_kernels.reference import TorchProgram
from batchgen_kernels.triton.program import TritonProgram

__all__ = ["BOUNDS", "DEVICE", "DTYPES", "Pair", "error"]

DEVICE = torch.device(os.environ.get("BATCHGEN_TEST_DEVICE", "cpu"))
"""Where Triton computes: in its interpreter, or on a GPU."""

DTYPES = (torch.float32, torch.bfloat16)
BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 3 * 2.0**-8, torch.float16: 3 * 2.0**-8}
"""Largest difference over largest value: of bfloat16 three roundings to 8 bits, of an intermediate value, a result and
what is computed of it. The interpreter rounds towards zero, so that each is off by 2**-8; a GPU rounds to nearest."""

Floats = npt.NDArray[np.float32]


def error(found: torch.Tensor | Floats, expected: torch.Tensor | Floats) -> float:
    """Largest difference relative to the largest expected value; NaN where a value is missing."""
    a, b = (torch.as_tensor(x).cpu().double() for x in (found, expected))
    return float((a - b).abs().max() / b.abs().max())


class Pair:
    """`torch` is the oracle, in float32; `triton` has `dtype`. All that Triton writes to starts as NaN."""

    def __init__(self, shape: ops.Shape, dtype: torch.dtype, rng: np.random.Generator) -> None:
        self.torch = TorchProgram(shape)
        self.triton = TritonProgram(shape, DEVICE, dtype)
        self.dtype, self.rng = dtype, rng

    def values(self, *size: int, scale: float = 1.0) -> torch.Tensor:
        """Random float32 values that the dtype holds exactly."""
        return (torch.from_numpy(self.rng.standard_normal(size, dtype=np.float32)) * scale).to(self.dtype).float()

    def weight(self, out: int, width: int) -> torch.Tensor:
        """A weight that keeps the size of what it is multiplied with."""
        return self.values(out, width, scale=1 / math.sqrt(width))

    def buffers(self, width: int, extent: ops.Extent = ops.Extent.TOKENS) -> tuple[Any, Any]:
        """One buffer in each program, with equal random values."""
        first, second = self.torch.buffer(width, extent), self.triton.buffer(width, extent)
        first.data[:] = self.values(*first.data.shape)
        second.data[:] = first.data
        return first, second

    def outputs(self, width: int, extent: ops.Extent = ops.Extent.TOKENS) -> tuple[Any, Any]:
        """One empty buffer in each program."""
        first, second = self.torch.buffer(width, extent), self.triton.buffer(width, extent)
        second.data.fill_(math.nan)
        return first, second

    def operands(self, width: int, extent: ops.Extent, precision: ops.Precision) -> tuple[Any, Any]:
        """One empty operand in each program."""
        first, second = (p.operand(width, extent, precision) for p in (self.torch, self.triton))
        cast("Any", second).values.fill_(math.nan)
        return first, second

    def run(self, batch: ops.Batch) -> None:
        """Run both."""
        self.torch.run(batch)
        self.triton.run(batch)
