"""Configurations as they are published, old keys and new, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from batchgen.errors import UnsupportedModelError
from batchgen.model.rotary import LinearScaling, Llama3Scaling, RotarySpec, YarnScaling
from batchgen.model.spec import read_spec

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}


def rotary(**changes: Any) -> RotarySpec:
    return read_spec(LLAMA | changes).layers[0].rotary


def test_a_plain_llama() -> None:
    spec = read_spec(LLAMA)
    assert (spec.head_dim, spec.kv_heads, spec.qkv_width, spec.attention_scale) == (16, 2, 128, 0.25)
    assert (spec.tied, spec.qk_norm, spec.sandwich, spec.qkv_bias, spec.embed_scale) == (
        False,
        False,
        False,
        False,
        1.0,
    )
    assert spec.kv_bytes_per_token("float32") == 2 * 2 * 2 * 16 * 4
    assert spec.kv_bytes_per_token("int8") == 2 * 2 * 2 * (16 + 4)
    assert read_spec(LLAMA | {"num_key_value_heads": None}).kv_heads == 4


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({}, {"rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0}}),
        ({"rope_theta": 5e5}, {"rope_parameters": {"rope_theta": 5e5}}),
        (
            {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}},
            {"rope_parameters": {"rope_theta": 5e5, "rope_type": "linear", "factor": 2.0}},
        ),
        (
            {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3"} | LLAMA3},
            {"rope_parameters": {"rope_theta": 5e5, "rope_type": "llama3"} | LLAMA3},
        ),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}},
            {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}},
        ),
    ],
)
def test_old_and_new_keys_say_the_same(old: dict[str, Any], new: dict[str, Any]) -> None:
    assert read_spec(LLAMA | old) == read_spec(LLAMA | new)


def test_scalings() -> None:
    assert rotary(rope_scaling={"rope_type": "linear", "factor": 2}).scaling == LinearScaling(2.0)
    assert rotary(rope_scaling={"rope_type": "llama3"} | LLAMA3).scaling == Llama3Scaling(8.0, 1.0, 4.0, 64)
    yarn = rotary(rope_scaling={"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 256})
    assert yarn.scaling == YarnScaling(4.0, 32.0, 1.0, 256, truncate=True)
    assert yarn.magnitude == pytest.approx(1.1386294)
    assert yarn.context_length == 1024


def test_a_yarn_context_counts_its_factor() -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
    assert read_spec(LLAMA | {"rope_scaling": scaling}).context_length == 2048


def test_gemma_3_as_published_with_most_keys_left_out() -> None:
    """The 4B model's configuration: all that it says of the text decoder."""
    text = {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    spec = read_spec({"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"], "text_config": text})
    assert (spec.heads, spec.kv_heads, spec.head_dim, spec.vocab_size) == (8, 4, 256, 262_208)
    assert (spec.tied, spec.norm_offset, spec.activation) == (True, 1.0, "gelu_tanh")
    assert (spec.attention_scale, spec.embed_scale) == (1 / 16, 2560**0.5)
    local, full = spec.layers[0], spec.layers[5]
    assert (local.window, local.rotary) == (1024, RotarySpec(10_000.0, 256))
    assert (full.window, full.rotary) == (None, RotarySpec(1_000_000.0, 256, LinearScaling(8.0)))
    assert [layer.window is None for layer in spec.layers].count(True) == 5


def test_windows() -> None:
    def windows(model_type: str, **changes: Any) -> list[int | None]:
        config = LLAMA | {"model_type": model_type, "architectures": None} | changes
        return [layer.window for layer in read_spec(config).layers]

    assert windows("mistral", sliding_window=None) == [None, None]
    assert windows("mistral") == [4096, 4096]
    assert windows("qwen2", sliding_window=128) == [None, None]
    assert windows("qwen2", sliding_window=128, use_sliding_window=True, max_window_layers=1) == [None, 128]
    kinds = ["sliding_attention", "full_attention"]
    assert windows("qwen3", sliding_window=128, use_sliding_window=True, layer_types=kinds) == [128, None]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model_type": "mamba", "architectures": None}, "model_type 'mamba'.*Llama, Mistral, Qwen2.*Qwen3, Gemma 3"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification.*Qwen3"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config = .*gptq"),
        ({"hidden_act": "relu"}, "hidden_act = 'relu'; supported: silu"),
        (
            {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
            "rope_type = 'dynamic'; supported: default, linear",
        ),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
        ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "llama3.*low_freq_factor"),
        ({"num_key_value_heads": 3}, "num_key_value_heads = 3.*divisor"),
        ({"vocab_size": None}, "vocab_size = None.*positive integer"),
        ({"model_type": "gemma3_text", "architectures": None, "final_logit_softcapping": 30.0}, "softcapping = 30.0"),
        ({"model_type": "gemma3_text", "architectures": None, "attention_bias": True}, "attention_bias = True"),
        (
            {"model_type": "gemma3_text", "architectures": None, "layer_types": ["linear_attention"] * 2},
            "layer_types = 'linear_attention'",
        ),
    ],
)
def test_what_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UnsupportedModelError, match=said):
        read_spec(LLAMA | changes)
