"""In what a model computes and what it keeps."""

from __future__ import annotations

from dataclasses import dataclass

from batchgen.checkpoint.types import Checkpoint, GGUFWeights
from batchgen.config import EngineConfig
from batchgen.errors import UsageError
from batchgen.model.gguf_weights import QUANTIZED
from batchgen_kernels.ops import Precision

__all__ = ["Precisions", "precisions_of"]


@dataclass(frozen=True, slots=True)
class Precisions:
    """The two choices that a run has."""

    linears: Precision = "float32"
    kv_cache: Precision = "float32"


_LARGEST_HEAD = 128
"""An int8 cache has one scale a head; with larger heads it costs more than 0.1% of perplexity (docs/performance.md)."""


_TOGETHER = 16
"""Positions, and numbers of a head, that an int8 cache keeps together."""


def precisions_of(checkpoint: Checkpoint, config: EngineConfig, head_dim: int) -> Precisions:
    """What the settings come to for a checkpoint with heads of this size.

    Raises `UsageError` for an int8 cache that heads or blocks don't fit.
    """
    linears: Precision
    match config.quantization:
        case "int8":
            linears = "int8"
        case "none":
            linears = "float32"
        case "auto":
            linears = "int8" if _quantized(checkpoint) else "float32"
    fits = head_dim % _TOGETHER == 0 and config.block_size % _TOGETHER == 0
    if config.kv_cache_dtype == "auto":
        return Precisions(linears, linears if fits and head_dim <= _LARGEST_HEAD else "float32")
    if config.kv_cache_dtype == "int8" and not fits:
        raise UsageError(
            f"an int8 KV cache needs heads and blocks of multiples of {_TOGETHER}, but {checkpoint.name} has heads of "
            f"{head_dim} and blocks have {config.block_size} tokens; take --kv-cache-dtype float32"
        )
    return Precisions(linears, config.kv_cache_dtype)


def _quantized(checkpoint: Checkpoint) -> bool:
    weights = checkpoint.weights
    return isinstance(weights, GGUFWeights) and any(tensor.qtype in QUANTIZED for tensor in weights.tensors)
