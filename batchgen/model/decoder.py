"""Records the program of a decoder: one straight list of ops, the same code for every family."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from batchgen.model.precision import Precisions
from batchgen.model.rotary import RotarySpec
from batchgen.model.spec import DecoderSpec, LayerSpec
from batchgen.model.weights import WeightSource
from batchgen_kernels.ops import Buffer, Extent, LinearWeight, Operand, Precision, Program, RotaryTable

__all__ = ["Decoder", "FinalNorm", "Split", "record_decoder"]

_INT8_BLOCK = 64
"""int8 needs input widths that are multiples of this; others stay float32."""


@dataclass(frozen=True, slots=True)
class FinalNorm:
    """The norm after the last layer, for hidden states that are read themselves."""

    weight: npt.NDArray[np.float64]
    """[H]"""
    eps: float

    def apply(self, state: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        """RMSNorm of one state [H], in float64."""
        x = state.astype(np.float64)
        normed: npt.NDArray[np.float64] = x / np.sqrt(np.square(x).mean() + self.eps) * self.weight
        return normed


@dataclass(frozen=True, slots=True)
class Decoder:
    """What a recorded decoder leaves behind after each run."""

    logits: Buffer
    """[R, vocab_size]"""
    residual: Buffer
    """[T, H]: each token's state after the last layer, before the norm."""
    norm: FinalNorm


@dataclass(frozen=True, slots=True)
class Split:
    """The share of a decoder that one of several processes records; `spec` and `weights` are of that share."""

    leads: bool
    """Whether it is this process whose part has the residual in it."""
    sum_up: Callable[[Buffer], None]
    """Records that a buffer becomes the sum over all processes."""


def record_decoder(
    program: Program,
    spec: DecoderSpec,
    weights: WeightSource,
    precisions: Precisions,
    positions: int,
    split: Split | None = None,
) -> Decoder:
    """Record the decoder for sequences of up to `positions` tokens.

    Weights are read, packed and dropped one layer at a time. With a split, each process computes some of the heads and
    of the MLP's columns, and the whole embedding and head.
    """
    return _Recorder(program, spec, weights, precisions, positions, split).record()


class _Recorder:
    """The workspaces, shared by all layers, and the ops over them."""

    def __init__(
        self,
        program: Program,
        spec: DecoderSpec,
        weights: WeightSource,
        precisions: Precisions,
        positions: int,
        split: Split | None,
    ) -> None:
        self.program, self.spec, self.weights, self.precisions = program, spec, weights, precisions
        self.positions, self.split = positions, split
        self.rotary: dict[RotarySpec, RotaryTable] = {}
        self.residual = program.buffer(spec.hidden, Extent.TOKENS)
        self.normed = self._operand(spec.hidden, Extent.TOKENS)
        self.qkv = program.buffer(spec.qkv_width, Extent.TOKENS)
        self.attended = self._operand(spec.heads * spec.head_dim, Extent.TOKENS)
        self.gate_up = program.buffer(2 * spec.intermediate, Extent.TOKENS)
        self.gated = self._operand(spec.intermediate, Extent.TOKENS)
        self.branch = program.buffer(spec.hidden, Extent.TOKENS) if spec.sandwich else None

    def record(self) -> Decoder:
        program, spec = self.program, self.spec
        table = self.weights.tensor("model.embed_tokens.weight", (spec.vocab_size, spec.hidden))
        program.embed(table, spec.embed_scale, self.residual)
        for index, layer in enumerate(spec.layers):
            self._layer(f"model.layers.{index}", layer)
        last = program.buffer(spec.hidden, Extent.ROWS)
        normed = self._operand(spec.hidden, Extent.ROWS)
        logits = program.buffer(spec.vocab_size, Extent.ROWS)
        program.gather(self.residual, last)
        norm = self._norm("model.norm")
        program.norm(last, norm, spec.eps, normed)
        head = table if spec.tied else self.weights.tensor("lm_head.weight", (spec.vocab_size, spec.hidden))
        program.linear(normed, program.linear_weight(head, None, self._precision(spec.hidden)), logits)
        return Decoder(logits, self.residual, FinalNorm(norm.double().numpy(), spec.eps))

    def _layer(self, name: str, layer: LayerSpec) -> None:
        program, spec = self.program, self.spec
        attention, mlp = f"{name}.self_attn", f"{name}.mlp"
        query, key = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim

        program.norm(self.residual, self._norm(f"{name}.input_layernorm"), spec.eps, self.normed)
        parts = {f"{attention}.q_proj": query, f"{attention}.k_proj": key, f"{attention}.v_proj": key}
        program.linear(self.normed, self._linear(parts, spec.hidden, spec.qkv_bias), self.qkv)
        cache = program.kv_cache(spec.kv_heads, spec.head_dim, self.precisions.kv_cache)
        program.rotate_store(
            self.qkv,
            cache,
            self._rotary(layer.rotary),
            self._head_norm(f"{attention}.q_norm"),
            self._head_norm(f"{attention}.k_norm"),
            spec.eps,
        )
        program.attention(self.qkv, cache, spec.attention_scale, layer.window, self.attended)
        output = self._linear({f"{attention}.o_proj": spec.hidden}, query, spec.output_bias)
        self._add(self.attended, output, f"{name}.post_attention_layernorm")

        before_mlp = "pre_feedforward_layernorm" if spec.sandwich else "post_attention_layernorm"
        program.norm(self.residual, self._norm(f"{name}.{before_mlp}"), spec.eps, self.normed)
        parts = {f"{mlp}.gate_proj": spec.intermediate, f"{mlp}.up_proj": spec.intermediate}
        program.linear(self.normed, self._linear(parts, spec.hidden, spec.mlp_bias), self.gate_up)
        program.gated(self.gate_up, spec.activation, self.gated)
        down = self._linear({f"{mlp}.down_proj": spec.hidden}, spec.intermediate, spec.mlp_bias)
        self._add(self.gated, down, f"{name}.post_feedforward_layernorm")

    def _add(self, x: Operand, weight: LinearWeight, sandwich_norm: str) -> None:
        """Add a linear to the residual, normed on the way where the model has sandwich norms."""
        if self.branch is None:
            if self.split is None or self.split.leads:
                self.program.linear_add(x, weight, self.residual)
            else:
                self.program.linear(x, weight, self.residual)
            if self.split is not None:
                self.split.sum_up(self.residual)
        else:
            self.program.linear(x, weight, self.branch)
            if self.split is not None:
                self.split.sum_up(self.branch)
            self.program.norm_add(self.branch, self._norm(sandwich_norm), self.spec.eps, self.residual)

    def _linear(self, parts: dict[str, int], width: int, biased: bool) -> LinearWeight:
        """Linears over the same input as one: module name -> output columns, in order."""
        weight = torch.cat([self.weights.tensor(f"{name}.weight", (rows, width)) for name, rows in parts.items()])
        bias = None
        if biased:
            bias = torch.cat([self.weights.tensor(f"{name}.bias", (rows,)).float() for name, rows in parts.items()])
        return self.program.linear_weight(weight, bias, self._precision(width))

    def _norm(self, name: str) -> torch.Tensor:
        return self.weights.tensor(f"{name}.weight", (self.spec.hidden,)).float() + self.spec.norm_offset

    def _head_norm(self, name: str) -> torch.Tensor | None:
        if not self.spec.qk_norm:
            return None
        return self.weights.tensor(f"{name}.weight", (self.spec.head_dim,)).float() + self.spec.norm_offset

    def _rotary(self, rotary: RotarySpec) -> RotaryTable:
        if rotary not in self.rotary:
            self.rotary[rotary] = self.program.rotary_table(*rotary.table(self.positions))
        return self.rotary[rotary]

    def _operand(self, width: int, extent: Extent) -> Operand:
        return self.program.operand(width, extent, self._precision(width))

    def _precision(self, width: int) -> Precision:
        return "float32" if width % _INT8_BLOCK else self.precisions.linears
