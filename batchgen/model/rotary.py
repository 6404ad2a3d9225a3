"""Rotary position embeddings: frequencies, their scalings, and the table that the kernels read.

Su et al., RoFormer, 2021. Scalings as transformers computes them (`modeling_rope_utils.py`), in float32 alike, so that
a model gives the tokens that it was published with.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

__all__ = ["LinearScaling", "Llama3Scaling", "RotarySpec", "YarnScaling"]


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Positions divided by a factor (Chen et al., 2023)."""

    factor: float

    def apply(self, frequencies: torch.Tensor, theta: float) -> torch.Tensor:  # noqa: ARG002
        return frequencies / self.factor


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Llama 3.1: long wavelengths divided by a factor, short ones kept, a blend between."""

    factor: float
    low: float
    high: float
    original_context: int

    def apply(self, frequencies: torch.Tensor, theta: float) -> torch.Tensor:  # noqa: ARG002
        wavelength = 2 * math.pi / frequencies
        smooth = ((self.original_context / wavelength - self.low) / (self.high - self.low)).clamp(0, 1)
        return (1 - smooth) * frequencies / self.factor + smooth * frequencies


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """YaRN (Peng et al., 2023): interpolated below `slow` rotations over the original context, kept above `fast`."""

    factor: float
    fast: float
    slow: float
    original_context: int
    truncate: bool

    def apply(self, frequencies: torch.Tensor, theta: float) -> torch.Tensor:
        width = 2 * len(frequencies)
        low, high = (self._dimension(turns, width, theta) for turns in (self.fast, self.slow))
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, width - 1)
        span = high - low or 0.001
        interpolated = ((torch.arange(len(frequencies), dtype=torch.float32) - low) / span).clamp(0, 1)
        return frequencies / self.factor * interpolated + frequencies * (1 - interpolated)

    def _dimension(self, turns: float, width: int, theta: float) -> float:
        """Where in the head the frequency is that turns so often over the original context."""
        return width * math.log(self.original_context / (turns * 2 * math.pi)) / (2 * math.log(theta))


@dataclass(frozen=True, slots=True)
class RotarySpec:
    """One rotary embedding of a model; layers of one kind share it."""

    theta: float
    head_dim: int
    scaling: LinearScaling | Llama3Scaling | YarnScaling | None = None
    magnitude: float = 1.0
    """Cosines and sines are multiplied by this (YaRN's attention factor)."""

    @property
    def context_length(self) -> int:
        """Positions that the scaling reaches where the configuration may not count them in; 0 where it says nothing."""
        return int(self.scaling.factor * self.scaling.original_context) if isinstance(self.scaling, YarnScaling) else 0

    def table(self, positions: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines, [positions, head_dim / 2] float32 each."""
        exponents = torch.arange(0, self.head_dim, 2, dtype=torch.int64).float() / self.head_dim
        frequencies = 1.0 / self.theta**exponents
        if self.scaling is not None:
            frequencies = self.scaling.apply(frequencies, self.theta)
        angles = torch.arange(positions, dtype=torch.float32)[:, None] * frequencies
        return angles.cos() * self.magnitude, angles.sin() * self.magnitude
