"""The header of a GGUF file in the words of transformers' `config.json`.

Key names: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Where a header leaves something out, the value
is the one that llama.cpp's loader takes for that architecture.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batchgen.checkpoint.types import GGUFTensor
from batchgen.errors import ModelNotFoundError, UnsupportedModelError

__all__ = ["MODEL_TYPES", "Header", "config_from_header", "read_header", "tokenizer_config_from_header"]

MODEL_TYPES: Mapping[str, str] = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma3": "gemma3_text"}
"""`general.architecture` -> `model_type`. Mistral models are published as `llama`, and compute the same."""

_SHAPE: Mapping[str, str] = {
    "context_length": "max_position_embeddings",
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
}

_SPECIAL: Mapping[str, str] = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad"}
"""Names of special tokens in the header and in transformers."""


@dataclass(frozen=True, slots=True)
class Header:
    """What a GGUF file says before its weights."""

    architecture: str
    fields: Mapping[str, Any]
    """Scalars, strings and short arrays under their keys, and `tokenizer.ggml.tokens`."""
    tensors: tuple[GGUFTensor, ...]
    rope_factors: tuple[float, ...] | None
    """`rope_freqs.weight`, [head_dim / 2] float32: divisors of the rotary frequencies; None where there is none."""


def read_header(file: Path) -> Header:
    """Read the header; seconds for a large vocabulary.

    Raises `ModelNotFoundError` for what is not a GGUF file, `UnsupportedModelError` for a piece of one.
    """
    from gguf import GGUFReader  # costs 0.3 s, and its walk over the vocabulary seconds: never on the cached path

    try:
        reader = GGUFReader(file)
        fields = {name: field.contents() for name, field in reader.fields.items() if not _is_bulk(name)}
        architecture = str(fields["general.architecture"])
    except (ValueError, KeyError, IndexError, OSError, UnicodeDecodeError) as error:
        raise ModelNotFoundError(f"{file} is not a readable GGUF file: {error or type(error).__name__}") from error
    if (pieces := fields.get("split.count", 1)) > 1:
        raise UnsupportedModelError(f"{file} is one of {pieces} pieces; join them with `llama-gguf-split --merge`")
    tensors = tuple(
        GGUFTensor(
            name=tensor.name,
            shape=tuple(int(size) for size in reversed(tensor.shape)),
            qtype=tensor.tensor_type.name,
            offset=int(tensor.data_offset),
            nbytes=int(tensor.n_bytes),
        )
        for tensor in reader.tensors
    )
    factors = [tensor.data.tolist() for tensor in reader.tensors if tensor.name == "rope_freqs.weight"]
    return Header(architecture, fields, tensors, tuple(factors[0]) if factors else None)


def _is_bulk(name: str) -> bool:
    """Whether a field is a vocabulary-sized array that only the tokenizer's conversion needs."""
    return name in {"tokenizer.ggml.merges", "tokenizer.ggml.scores", "tokenizer.ggml.token_type"}


def tokenizer_config_from_header(header: Header) -> dict[str, Any]:
    """The keys of `tokenizer_config.json`: special tokens as text, and which are added, as far as the header says."""
    tokens = header.fields.get("tokenizer.ggml.tokens", ())
    ids = {f"{theirs}_token": header.fields.get(f"tokenizer.ggml.{ours}_token_id") for ours, theirs in _SPECIAL.items()}
    added = {name: header.fields.get(f"tokenizer.ggml.{name}") for name in ("add_bos_token", "add_eos_token")}
    config = {name: tokens[token] for name, token in ids.items() if token is not None and token < len(tokens)}
    return config | {name: value for name, value in added.items() if value is not None}


def config_from_header(header: Header) -> dict[str, Any]:
    """The keys of `config.json` that the decoder, the tokenizer and the engine read.

    For an architecture outside `MODEL_TYPES` only `model_type` is given: whoever builds the model refuses it.
    Raises `UnsupportedModelError` for a rotary embedding that no configuration describes, `ModelNotFoundError` where
    the header lacks what its architecture needs.
    """
    if header.architecture not in MODEL_TYPES:
        return {"model_type": header.architecture}

    def get(name: str, default: Any = None) -> Any:
        return header.fields.get(f"{header.architecture}.{name}", default)

    if missing := [name for name in _SHAPE if get(name) is None]:
        raise ModelNotFoundError(f"the GGUF header has no {header.architecture}.{missing[0]}; the file is damaged")
    shapes = {tensor.name: tensor.shape for tensor in header.tensors}
    config = {theirs: get(ours) for ours, theirs in _SHAPE.items()}
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    head_dim = get("attention.key_length") or get("rope.dimension_count") or hidden // heads
    vocab_size = shapes["token_embd.weight"][0] if "token_embd.weight" in shapes else get("vocab_size")
    return config | {
        "model_type": MODEL_TYPES[header.architecture],
        "num_key_value_heads": get("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "vocab_size": vocab_size,
        "attention_bias": "blk.0.attn_q.bias" in shapes,
        "mlp_bias": "blk.0.ffn_up.bias" in shapes,
        "tie_word_embeddings": "output.weight" not in shapes,
        "rope_parameters": _rope(header, head_dim),
        **_end_tokens(header),
        **(_gemma3(header, config, head_dim) if header.architecture == "gemma3" else {"hidden_act": "silu"}),
    }


def _end_tokens(header: Header) -> dict[str, Any]:
    ids = {
        f"{theirs}_token_id": header.fields.get(f"tokenizer.ggml.{ours}_token_id") for ours, theirs in _SPECIAL.items()
    }
    end_of_turn = header.fields.get("tokenizer.ggml.eot_token_id")
    if end_of_turn is not None and end_of_turn != ids["eos_token_id"]:
        ids["eos_token_id"] = [token for token in (ids["eos_token_id"], end_of_turn) if token is not None]
    return {name: token for name, token in ids.items() if token is not None}


def _rope(header: Header, head_dim: int) -> dict[str, Any]:
    prefix = f"{header.architecture}.rope"
    theta = header.fields.get(f"{prefix}.freq_base", 10_000.0)
    scaling = header.fields.get(f"{prefix}.scaling.type", "none")
    if header.rope_factors is not None:
        return {"rope_theta": theta, **_llama3_scaling(header.rope_factors, theta, head_dim)}
    if scaling == "none":
        return {"rope_theta": theta, "rope_type": "default"}
    parameters = {
        "rope_theta": theta,
        "rope_type": scaling,
        "factor": header.fields.get(f"{prefix}.scaling.factor", 1.0),
    }
    original = header.fields.get(f"{prefix}.scaling.original_context_length")
    return parameters if original is None else parameters | {"original_max_position_embeddings": original}


def _llama3_scaling(factors: SequenceOf[float], theta: float, head_dim: int) -> dict[str, Any]:
    """The parameters of Llama 3's rotary scaling, which a GGUF file holds as one divisor per frequency.

    Long wavelengths are divided by `factor`, short ones by 1, with a linear blend between (the published formula).
    The two bounds of the blend are the same in all Llama 3 models; the result is checked against the file.
    """
    factor, low, high, original = max(factors), 1.0, 4.0, 8192

    def divisor(wavelength: float) -> float:
        smooth = min(1.0, max(0.0, (original / wavelength - low) / (high - low)))
        return 1.0 / ((1.0 - smooth) / factor + smooth)

    expected = [divisor(2 * math.pi * theta ** (2 * i / head_dim)) for i in range(head_dim // 2)]
    close = len(factors) == len(expected) and all(
        math.isclose(ours, theirs, rel_tol=1e-3) for ours, theirs in zip(expected, factors, strict=True)
    )
    if not close:
        raise UnsupportedModelError("rope_freqs.weight of the GGUF file holds another scaling than Llama 3's")
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }


def _gemma3(header: Header, config: Mapping[str, Any], head_dim: int) -> dict[str, Any]:
    layers, pattern = config["num_hidden_layers"], 6
    local_theta = header.fields.get("gemma3.rope.freq_base_swa", 10_000.0)
    # The 27B model alone scales queries by the model's width; like llama.cpp, we know it by its depth.
    scalar = config["hidden_size"] // config["num_attention_heads"] if layers == 62 else head_dim
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "layer_types": ["sliding_attention" if (i + 1) % pattern else "full_attention" for i in range(layers)],
        "sliding_window": header.fields.get("gemma3.attention.sliding_window"),
        "query_pre_attn_scalar": scalar,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "rope_parameters": {
            "full_attention": _rope(header, head_dim),
            "sliding_attention": {"rope_theta": local_theta, "rope_type": "default"},
        },
    }
