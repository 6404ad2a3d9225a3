"""How much memory goes to keys and values, and how long a sequence can be."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from batchgen.config import EngineConfig
from batchgen.errors import OutOfResourcesError
from batchgen.model.precision import Precisions
from batchgen.model.spec import DecoderSpec
from batchgen_kernels.ops import Precision, Shape

__all__ = ["CacheSize", "fit_cache", "shape_of", "size_cache", "wanted_length"]

_SHARE = 0.6
"""Of the memory left after weights and workspaces, for keys and values by default; the rest is head room for
requests, results, and whatever else runs here."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CacheSize:
    """What the settings and the memory come to."""

    max_model_len: int
    """Tokens of one sequence, at most."""
    shape: Shape
    kv_bytes: int
    """Of keys and values."""


def size_cache(spec: DecoderSpec, config: EngineConfig, precisions: Precisions, free_bytes: int) -> CacheSize:
    """Size the cache before weights are loaded.

    Raises what `fit_cache` raises.
    """
    budget = config.kv_cache_memory
    if budget is None:
        budget = int(_SHARE * (free_bytes - _fixed_bytes(spec, config, precisions.linears)))
    return fit_cache(spec, config, budget, spec.kv_bytes_per_token(precisions.kv_cache))


def fit_cache(spec: DecoderSpec, config: EngineConfig, budget: int, token_bytes: int) -> CacheSize:
    """As many blocks as go into the budget, with keys and values of so many bytes a token.

    Never more than `max_num_seqs` sequences of full length need. Raises `OutOfResourcesError`, naming the option, where
    not one block fits.
    """
    wanted_len = wanted_length(spec, config)
    block_bytes = token_bytes * config.block_size
    num_blocks = shape_of(config, budget // block_bytes, wanted_len).num_blocks
    if num_blocks < 1:
        raise OutOfResourcesError(_too_little(spec, config, budget, block_bytes))
    max_model_len = min(wanted_len, num_blocks * config.block_size)
    if max_model_len < wanted_len:
        _logger.warning(
            "sequences are limited to %d of %d tokens by the memory for keys and values (%.0f MiB); "
            "--kv-cache-memory sets it",
            max_model_len,
            wanted_len,
            num_blocks * block_bytes / 2**20,
        )
    return CacheSize(max_model_len, shape_of(config, num_blocks, max_model_len), num_blocks * block_bytes)


def wanted_length(spec: DecoderSpec, config: EngineConfig) -> int:
    """Tokens of one sequence, where memory sets no other limit."""
    return min(spec.context_length, config.max_model_len or spec.context_length)


def shape_of(config: EngineConfig, num_blocks: int, max_model_len: int) -> Shape:
    """The shape with so many blocks, or as many as sequences of that length can use."""
    max_seqs = min(config.max_num_seqs, config.max_num_batched_tokens)
    blocks_per_seq = -(-max_model_len // config.block_size)
    return Shape(
        max_tokens=config.max_num_batched_tokens,
        max_seqs=max_seqs,
        num_blocks=min(num_blocks, max_seqs * blocks_per_seq),
        block_size=config.block_size,
        max_blocks_per_seq=blocks_per_seq,
    )


def _fixed_bytes(spec: DecoderSpec, config: EngineConfig, precision: Precision) -> int:
    """Bytes of weights and workspaces, a little over-estimated."""
    query, key = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    layer = spec.hidden * (query + 2 * key) + query * spec.hidden + 3 * spec.hidden * spec.intermediate
    table = spec.vocab_size * spec.hidden
    linear_bytes = 1 if precision == "int8" else 4
    weights = linear_bytes * (len(spec.layers) * layer + table) + 4 * table
    token = 4 * (3 * spec.hidden + spec.qkv_width + query + 3 * spec.intermediate)
    return weights + config.max_num_batched_tokens * token + config.max_num_seqs * 4 * spec.vocab_size


def _too_little(spec: DecoderSpec, config: EngineConfig, budget: int, block_bytes: int) -> str:
    if config.kv_cache_memory is not None:
        return (
            f"--kv-cache-memory {config.kv_cache_memory} holds no block of {config.block_size} tokens; "
            f"one takes {block_bytes} bytes"
        )
    return (
        f"the free memory leaves {max(budget, 0) / 2**20:.1f} MiB for keys and values beside the model's weights "
        f"({len(spec.layers)} layers, width {spec.hidden}), a block takes {block_bytes / 2**20:.1f} MiB; free some, or "
        "set --kv-cache-memory"
    )
