"""Tensors of a checkpoint under their transformers names, one at a time, whatever file they come from."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol
from zlib import crc32

import torch
from safetensors import SafetensorError, safe_open

from batchgen.checkpoint.types import Checkpoint, GGUFWeights, NoWeights, SafetensorsWeights
from batchgen.errors import UnsupportedModelError
from batchgen.model.gguf_weights import GGUFSource
from batchgen.model.spec import DecoderSpec

__all__ = ["WeightSource", "open_weights"]

Shape = tuple[int, ...]

_DRAWN = 1_000_003
"""Numbers of a dummy weight that are drawn; they repeat, at other columns. Billions would take minutes."""


class WeightSource(Protocol):
    """Where the decoder gets its tensors from."""

    def tensor(self, name: str, shape: Shape) -> torch.Tensor:
        """The tensor of that name, float32 or bfloat16.

        Raises `UnsupportedModelError` where it is missing, has another shape, or is stored in a way that we don't read.
        """
        ...


def open_weights(checkpoint: Checkpoint, spec: DecoderSpec) -> WeightSource:
    """The source for a checkpoint."""
    match checkpoint.weights:
        case SafetensorsWeights(files):
            return SafetensorsSource(files)
        case GGUFWeights() as weights:
            return GGUFSource(weights, spec)
        case NoWeights():
            levels = (checkpoint.config, checkpoint.config.get("text_config", {}))
            stored = {level.get(key) for level in levels for key in ("dtype", "torch_dtype")}
            return DummySource(torch.bfloat16 if "bfloat16" in stored else torch.float32)


class SafetensorsSource:
    """Memory-mapped safetensors files; a tensor is read when asked for."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._files: dict[str, tuple[Any, str]] = {}
        """Name of the text decoder's tensor -> (open file, name there)."""
        for path in files:
            try:
                file: Any = safe_open(path, framework="pt")
            except (SafetensorError, OSError) as error:
                raise UnsupportedModelError(f"{path} is not a readable safetensors file: {error}") from error
            self._files |= {_text_name(name): (file, name) for name in file.keys()}  # noqa: SIM118, not a mapping

    def tensor(self, name: str, shape: Shape) -> torch.Tensor:
        if name not in self._files:
            raise UnsupportedModelError(f"the checkpoint has no tensor {name}, which its config.json asks for")
        file, stored = self._files[name]
        tensor: torch.Tensor = file.get_tensor(stored)
        if tuple(tensor.shape) != shape:
            raise UnsupportedModelError(
                f"tensor {name} has shape {list(tensor.shape)}, config.json asks for {list(shape)}"
            )
        if tensor.dtype not in {torch.float32, torch.float16, torch.bfloat16}:
            raise UnsupportedModelError(
                f"tensor {name} is stored as {tensor.dtype}; supported: float32, float16, bfloat16"
            )
        return tensor.float() if tensor.dtype == torch.float16 else tensor


def _text_name(name: str) -> str:
    """Multimodal checkpoints hold the text decoder below `language_model.`, or `model.language_model.`."""
    return re.sub(
        r"^(model\.)?language_model\.(model\.)?(?=(layers|norm|embed_tokens)\.)", "model.", name
    ).removeprefix("language_model.")


class DummySource:
    """Random weights, the same in every run: for benchmarks, where only the shape counts."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype

    def tensor(self, name: str, shape: Shape) -> torch.Tensor:
        if name.endswith("norm.weight"):
            return torch.ones(shape)
        generator = torch.Generator().manual_seed(crc32(name.encode()))
        count = math.prod(shape)
        drawn = torch.empty(min(count, _DRAWN), dtype=self._dtype).uniform_(-0.03, 0.03, generator=generator)
        return drawn.repeat(-(-count // _DRAWN))[:count].view(shape)
