"""What a Triton program owns on the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt
import torch

from batchgen_kernels import ops
from batchgen_kernels.reference import quantize

__all__ = ["Buffer", "KVCache", "LinearWeight", "Operand", "RotaryTable", "pack_linear"]


@dataclass(frozen=True, slots=True)
class Buffer:
    """`ops.Buffer` in the program's type."""

    data: torch.Tensor
    """[max rows, width]"""
    extent: ops.Extent

    @property
    def width(self) -> int:
        return self.data.shape[1]

    def numpy(self, count: int) -> npt.NDArray[np.float32]:
        """The first rows; a view where the program is in float32 on the CPU, else a copy."""
        return cast("npt.NDArray[np.float32]", self.data[:count].float().cpu().numpy())


@dataclass(frozen=True, slots=True)
class Operand:
    """`ops.Operand`: rows in the program's type, and their quantised form beside them where the precision is int8."""

    values: torch.Tensor
    """[max rows, width]"""
    extent: ops.Extent
    quantized: torch.Tensor | None
    """[max rows, width] int8"""
    scales: torch.Tensor | None
    """[max rows] float32"""

    @property
    def width(self) -> int:
        return self.values.shape[1]


@dataclass(frozen=True, slots=True)
class LinearWeight:
    """`ops.LinearWeight`: [N, K] in the program's type, or int8 with a scale for each row."""

    weight: torch.Tensor
    scales: torch.Tensor | None
    """[N] float32 beside an int8 weight."""
    bias: torch.Tensor | None
    """[N] in the program's type, float32 beside an int8 weight."""

    @property
    def in_features(self) -> int:
        return self.weight.shape[1]

    @property
    def out_features(self) -> int:
        return self.weight.shape[0]


@dataclass(slots=True)
class KVCache:
    """`ops.KVCache`: keys and values of one layer, each [blocks * block_size, Hk, D] in the program's type, or int8."""

    keys: torch.Tensor
    values: torch.Tensor
    key_scales: torch.Tensor | None = None
    """[blocks * block_size, Hk] float32 beside int8 keys."""
    value_scales: torch.Tensor | None = None

    @classmethod
    def empty(cls, slots: int, heads: int, head_dim: int, dtype: torch.dtype, device: torch.device) -> KVCache:
        """Storage for so many tokens; what it holds is anything. `dtype` int8 has scales."""
        keys, values = (torch.empty((slots, heads, head_dim), dtype=dtype, device=device) for _ in range(2))
        if dtype is not torch.int8:
            return cls(keys, values)
        return cls(keys, values, *(torch.empty((slots, heads), device=device) for _ in range(2)))

    def parts(self) -> list[torch.Tensor]:
        """All tensors, [blocks * block_size, Hk, ...]."""
        return [part for part in (self.keys, self.values, self.key_scales, self.value_scales) if part is not None]

    def resize(self, slots: int) -> None:
        """Room for so many tokens; what it held is lost."""
        heads, head_dim, dtype, device = self.heads, self.head_dim, self.keys.dtype, self.keys.device
        # The old memory goes first: both together might not fit.
        self.keys = self.values = torch.empty(0, device=device)
        self.key_scales = self.value_scales = None
        new = KVCache.empty(slots, heads, head_dim, dtype, device)
        self.keys, self.values = new.keys, new.values
        self.key_scales, self.value_scales = new.key_scales, new.value_scales

    @property
    def heads(self) -> int:
        return self.keys.shape[1]

    @property
    def head_dim(self) -> int:
        return self.keys.shape[2]


@dataclass(frozen=True, slots=True)
class RotaryTable:
    """`ops.RotaryTable`: cosines and sines, each [positions, D / 2] float32."""

    cos: torch.Tensor
    sin: torch.Tensor


def pack_linear(
    weight: torch.Tensor, bias: torch.Tensor | None, precision: ops.Precision, dtype: torch.dtype, device: torch.device
) -> LinearWeight:
    """A weight on the device. int8 is quantised there, a slice of rows at a time."""
    if precision == "float32":
        moved = None if bias is None else bias.to(device, dtype)
        return LinearWeight(weight.to(device, dtype).contiguous(), None, moved)
    parts = [quantize(part.to(device).float()) for part in torch.split(weight, 4096)]
    values, scales = (torch.cat(column) for column in zip(*parts, strict=True))
    return LinearWeight(values, scales, None if bias is None else bias.to(device).float())
