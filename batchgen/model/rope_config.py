"""Rotary embeddings as configurations spell them, in the old keys and the new."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from batchgen.errors import UnsupportedModelError
from batchgen.model.rotary import LinearScaling, Llama3Scaling, RotarySpec, YarnScaling

__all__ = ["read_rotary"]

_DEFAULT_THETA = 10_000.0
_NEEDED: Mapping[str, tuple[str, ...]] = {
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor",),
}
_GEMMA_THETA: Mapping[str, float] = {"full_attention": 1_000_000.0, "sliding_attention": 10_000.0}


def read_rotary(config: Mapping[str, Any], head_dim: int, kind: str | None) -> RotarySpec:
    """The rotary embedding of layers of one kind; kind None: of all layers.

    `rope_parameters` holds one mapping, or one for each kind. Without it, the keys of transformers 4 are read, where
    scaling concerned full attention only.
    """
    parameters: Mapping[str, Any] = config.get("rope_parameters") or _old_parameters(config, kind)
    if kind is not None:
        parameters = parameters.get(kind) or {}
    theta = float(parameters.get("rope_theta", _DEFAULT_THETA if kind is None else _GEMMA_THETA[kind]))
    rope_type = parameters.get("rope_type", parameters.get("type", "default"))
    if parameters.get("partial_rotary_factor", 1.0) != 1.0:
        raise UnsupportedModelError("config.json has a partial_rotary_factor other than 1.0, which is not supported")
    if missing := [key for key in _NEEDED.get(rope_type, ()) if parameters.get(key) is None]:
        raise UnsupportedModelError(f"config.json has rope_type = {rope_type!r} without {', '.join(missing)}")
    match rope_type:
        case "default":
            return RotarySpec(theta, head_dim)
        case "linear":
            return RotarySpec(theta, head_dim, LinearScaling(float(parameters["factor"])))
        case "llama3":
            scaling = Llama3Scaling(
                factor=float(parameters["factor"]),
                low=float(parameters["low_freq_factor"]),
                high=float(parameters["high_freq_factor"]),
                original_context=int(parameters["original_max_position_embeddings"]),
            )
            return RotarySpec(theta, head_dim, scaling)
        case "yarn":
            return _yarn(config, parameters, theta, head_dim)
        case _:
            raise UnsupportedModelError(
                f"config.json has rope_type = {rope_type!r}; supported: default, linear, llama3, yarn"
            )


def _old_parameters(config: Mapping[str, Any], kind: str | None) -> Mapping[str, Any]:
    scaled: dict[str, Any] = dict(config.get("rope_scaling") or {})
    if config.get("rope_theta") is not None:
        scaled["rope_theta"] = config["rope_theta"]
    if kind is None:
        return scaled
    local = config.get("rope_local_base_freq")
    return {"full_attention": scaled, "sliding_attention": {} if local is None else {"rope_theta": local}}


def _yarn(config: Mapping[str, Any], parameters: Mapping[str, Any], theta: float, head_dim: int) -> RotarySpec:
    original = int(parameters.get("original_max_position_embeddings") or config["max_position_embeddings"])
    factor = float(parameters["factor"])
    scaling = YarnScaling(
        factor=factor,
        fast=float(parameters.get("beta_fast") or 32),
        slow=float(parameters.get("beta_slow") or 1),
        original_context=original,
        truncate=bool(parameters.get("truncate", True)),
    )
    magnitude = parameters.get("attention_factor")
    if magnitude is None:
        scale, scale_all = parameters.get("mscale"), parameters.get("mscale_all_dim")
        magnitude = _magnitude(factor, scale) / _magnitude(factor, scale_all) if scale and scale_all else None
    return RotarySpec(theta, head_dim, scaling, _magnitude(factor, 1.0) if magnitude is None else float(magnitude))


def _magnitude(factor: float, scale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0
