"""Tiny models with random weights, one of each family and variant, as transformers builds them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from batchgen.checkpoint.types import Checkpoint, SafetensorsWeights

__all__ = ["NAMES", "make_model", "save_checkpoint"]

_SIZE: Mapping[str, Any] = {
    "vocab_size": 307,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
    # Far from uniform logits, and attention that looks at something.
    "initializer_range": 0.2,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
_YARN = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 64}
_LINEAR = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}
_GEMMA_ROPE = {
    "full_attention": _LINEAR | {"rope_theta": 1_000_000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
}

_VARIANTS: Mapping[str, tuple[type[PreTrainedModel], type[Any], Mapping[str, Any]]] = {
    "llama": (LlamaForCausalLM, LlamaConfig, {}),
    "llama-tied-llama3-rope": (
        LlamaForCausalLM,
        LlamaConfig,
        {"tie_word_embeddings": True, "rope_parameters": _LLAMA3, "head_dim": 32},
    ),
    "llama-biases-linear-rope": (
        LlamaForCausalLM,
        LlamaConfig,
        {"attention_bias": True, "mlp_bias": True, "rope_parameters": _LINEAR, "num_key_value_heads": 4},
    ),
    "mistral": (MistralForCausalLM, MistralConfig, {"sliding_window": None, "num_key_value_heads": 1}),
    "mistral-window": (MistralForCausalLM, MistralConfig, {"sliding_window": 9, "head_dim": 24}),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, {"tie_word_embeddings": True}),
    "qwen2-window-yarn-rope": (
        Qwen2ForCausalLM,
        Qwen2Config,
        {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1, "rope_parameters": _YARN},
    ),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, {"head_dim": 64}),
    "qwen3-biases": (Qwen3ForCausalLM, Qwen3Config, {"head_dim": 48, "attention_bias": True}),
    "gemma3": (
        Gemma3ForCausalLM,
        Gemma3TextConfig,
        {
            "head_dim": 32,
            "sliding_window": 8,
            "query_pre_attn_scalar": 24,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": _GEMMA_ROPE,
        },
    ),
    "gemma3-published-pattern": (
        Gemma3ForCausalLM,
        Gemma3TextConfig,
        {"head_dim": 32, "sliding_window": 8, "query_pre_attn_scalar": 32, "num_hidden_layers": 6},
    ),
}

NAMES = tuple(_VARIANTS)


def make_model(name: str) -> PreTrainedModel:
    """The model, in float32, with the same weights at each call; norm weights and biases are random too."""
    model_class, config_class, extra = _VARIANTS[name]
    config = config_class(**(dict(_SIZE) | dict(extra)), attn_implementation="eager")
    torch.manual_seed(1234)
    model = model_class(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model


def save_checkpoint(model: PreTrainedModel, folder: Path, shard: str = "5GB") -> Checkpoint:
    """Save the model as safetensors, in shards of at most that size, and describe the folder."""
    model.save_pretrained(folder, max_shard_size=shard)
    return Checkpoint(
        name=folder.name,
        config=json.loads((folder / "config.json").read_text(encoding="utf-8")),
        generation_config={},
        tokenizer_config={},
        tokenizer_file=None,
        chat_template=None,
        weights=SafetensorsWeights(tuple(sorted(folder.glob("*.safetensors")))),
        fingerprint="",
    )
