"""What a decoder is made of, read from a model's configuration. Families differ here and nowhere else.

Accepts the configuration keys of transformers 4 (`rope_theta`, `rope_scaling`, `rope_local_base_freq`) and 5
(`rope_parameters`), with transformers' defaults for keys that published configurations leave out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from batchgen.core.bound import ModelCost
from batchgen.errors import UnsupportedModelError
from batchgen.model.rope_config import read_rotary
from batchgen.model.rotary import RotarySpec
from batchgen_kernels.ops import Activation, Precision

__all__ = ["SUPPORTED", "DecoderSpec", "LayerSpec", "read_spec"]

Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """In what one layer differs from the others."""

    window: int | None
    """A token sees this many positions, itself included; None: all."""
    rotary: RotarySpec


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSpec:
    """A decoder-only transformer with RMSNorm, rotary positions, grouped-query attention and a gated MLP."""

    vocab_size: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    layers: tuple[LayerSpec, ...]
    eps: float
    activation: Activation
    context_length: int
    """Positions that the model was made for."""
    attention_scale: float
    """Scores are q.k times this."""
    embed_scale: float
    norm_offset: float
    """Added to every norm weight as stored."""
    tied: bool
    """Whether the head is the embedding table."""
    qk_norm: bool
    """RMSNorm over each head of queries and keys."""
    sandwich: bool
    """Norms after attention and MLP too, before the residual is added."""
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool

    @property
    def qkv_width(self) -> int:
        """Columns of queries, keys and values together."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    def kv_bytes_per_token(self, precision: Precision) -> int:
        """Bytes of keys and values of one position over all layers; in int8 with a float32 scale for each head."""
        head = 4 * self.head_dim if precision == "float32" else self.head_dim + 4
        return len(self.layers) * 2 * self.kv_heads * head

    def cost(self, precision: Precision) -> ModelCost:
        """What a step asks of a machine. Weights that are not int8 are taken as stored in 16 bits, the least."""
        query = self.heads * self.head_dim
        layer = self.hidden * (self.qkv_width + query + 3 * self.intermediate)
        linear, head = len(self.layers) * layer, self.vocab_size * self.hidden
        return ModelCost(
            linear_weights=linear,
            head_weights=head,
            attention_operations=4 * len(self.layers) * query,
            weight_bytes=(linear + head) * (1 if precision == "int8" else 2),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Family:
    """What a `model_type` stands for beyond its configuration keys."""

    title: str
    architectures: frozenset[str]
    defaults: Config
    """transformers' defaults of keys that published configurations leave out."""
    qk_norm: bool = False
    gemma: bool = False
    """Scaled embeddings, norm weights stored minus one, sandwich norms, and two kinds of layers."""
    qkv_bias: bool = False
    """Always, whatever `attention_bias` says."""


_COMMON: Mapping[str, Any] = {
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
}
_QWEN: Mapping[str, Any] = {**_COMMON, "use_sliding_window": False, "max_window_layers": 28}
_GEMMA3 = _Family(
    title="Gemma 3 (text)",
    architectures=frozenset({"Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"}),
    defaults={
        **_COMMON,
        "vocab_size": 262_208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 131_072,
        "tie_word_embeddings": True,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
    },
    qk_norm=True,
    gemma=True,
)
_FAMILIES: Mapping[str, _Family] = {
    "llama": _Family(title="Llama", architectures=frozenset({"LlamaForCausalLM"}), defaults=_COMMON),
    "mistral": _Family(
        title="Mistral",
        architectures=frozenset({"MistralForCausalLM"}),
        defaults={**_COMMON, "num_key_value_heads": 8, "sliding_window": 4096},
    ),
    "qwen2": _Family(
        title="Qwen2 and Qwen2.5", architectures=frozenset({"Qwen2ForCausalLM"}), defaults=_QWEN, qkv_bias=True
    ),
    "qwen3": _Family(
        title="Qwen3",
        architectures=frozenset({"Qwen3ForCausalLM"}),
        defaults={**_QWEN, "head_dim": 128},
        qk_norm=True,
    ),
    "gemma3_text": _GEMMA3,
    "gemma3": _GEMMA3,
}

SUPPORTED = ", ".join(dict.fromkeys(family.title for family in _FAMILIES.values()))
"""For messages: the families that we run."""

_ACTIVATIONS: Mapping[str, Activation] = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh"}


def read_spec(config: Config) -> DecoderSpec:
    """The decoder that a `config.json` describes.

    Raises `UnsupportedModelError`, naming key and value, for what we don't run.
    """
    family = _family(config)
    c: Config = dict(family.defaults) | dict(config.get("text_config", config))
    _refuse_unsupported(c, family)
    heads, hidden = _whole(c, "num_attention_heads"), _whole(c, "hidden_size")
    head_dim = _whole(c, "head_dim") if c.get("head_dim") is not None else hidden // heads
    scalar = c["query_pre_attn_scalar"] if family.gemma else head_dim
    layers = _layers(c, family, head_dim)
    return DecoderSpec(
        vocab_size=_whole(c, "vocab_size"),
        hidden=hidden,
        intermediate=_whole(c, "intermediate_size"),
        heads=heads,
        kv_heads=_kv_heads(c, heads),
        head_dim=head_dim,
        layers=layers,
        eps=float(c["rms_norm_eps"]),
        activation=_activation(c, family),
        context_length=max(_whole(c, "max_position_embeddings"), *(layer.rotary.context_length for layer in layers)),
        attention_scale=float(scalar) ** -0.5,
        embed_scale=hidden**0.5 if family.gemma else 1.0,
        norm_offset=1.0 if family.gemma else 0.0,
        # A multimodal configuration says it on its outer level.
        tied=bool(config.get("tie_word_embeddings", c["tie_word_embeddings"])),
        qk_norm=family.qk_norm,
        sandwich=family.gemma,
        qkv_bias=family.qkv_bias or bool(c["attention_bias"]),
        output_bias=bool(c["attention_bias"]) and not family.qkv_bias,
        mlp_bias=bool(c["mlp_bias"]),
    )


def _family(config: Config) -> _Family:
    model_type = config.get("model_type")
    family = _FAMILIES.get(str(model_type))
    architectures = config.get("architectures") or []
    if family is None or not family.architectures.issuperset(architectures):
        found = f"architectures {architectures}" if architectures else f"model_type {model_type!r}"
        raise UnsupportedModelError(f"{found} is not supported; batchgen runs {SUPPORTED}")
    return family


def _refuse_unsupported(c: Config, family: _Family) -> None:
    for key in (
        "quantization_config",
        "attn_logit_softcapping",
        "final_logit_softcapping",
        "use_bidirectional_attention",
    ):
        if c.get(key):
            raise _unsupported(key, c[key], "not set")
    if c.get("partial_rotary_factor", 1.0) != 1.0:
        raise _unsupported("partial_rotary_factor", c["partial_rotary_factor"], "1.0")
    if family.gemma and c["attention_bias"]:
        raise _unsupported("attention_bias", c["attention_bias"], "false")


def _unsupported(key: str, value: object, supported: str) -> UnsupportedModelError:
    return UnsupportedModelError(f"config.json has {key} = {value!r}; supported: {supported}")


def _whole(c: Config, key: str) -> int:
    value = c.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise _unsupported(key, value, "a positive integer")
    return value


def _kv_heads(c: Config, heads: int) -> int:
    kv_heads = _whole(c, "num_key_value_heads") if c.get("num_key_value_heads") is not None else heads
    if heads % kv_heads:
        raise _unsupported("num_key_value_heads", kv_heads, f"a divisor of num_attention_heads ({heads})")
    return kv_heads


def _activation(c: Config, family: _Family) -> Activation:
    key = "hidden_activation" if family.gemma else "hidden_act"
    value = c.get(key, "gelu_pytorch_tanh" if family.gemma else "silu")
    if value not in _ACTIVATIONS:
        raise _unsupported(key, value, ", ".join(_ACTIVATIONS))
    return _ACTIVATIONS[value]


def _layers(c: Config, family: _Family, head_dim: int) -> tuple[LayerSpec, ...]:
    layers = []
    for index in range(_whole(c, "num_hidden_layers")):
        sliding = _is_sliding(c, family, index)
        kind = ("sliding_attention" if sliding else "full_attention") if family.gemma else None
        layers.append(LayerSpec(_whole(c, "sliding_window") if sliding else None, read_rotary(c, head_dim, kind)))
    return tuple(layers)


def _is_sliding(c: Config, family: _Family, index: int) -> bool:
    if c.get("sliding_window") is None or not c.get("use_sliding_window", True):
        return False
    if c.get("layer_types") is not None:
        kind = c["layer_types"][index]
        if kind not in {"sliding_attention", "full_attention"}:
            raise _unsupported("layer_types", kind, "sliding_attention, full_attention")
        return bool(kind == "sliding_attention")
    if family.gemma:
        return bool((index + 1) % c["sliding_window_pattern"])
    return bool(index >= c.get("max_window_layers", 0))
