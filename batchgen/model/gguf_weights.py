"""Tensors of a GGUF file under their transformers names, dequantised one at a time.

Names: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. What the conversion of a model to GGUF changed is
undone here, as transformers does it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import torch

from batchgen.checkpoint.types import GGUFTensor, GGUFWeights
from batchgen.errors import UnsupportedModelError
from batchgen.model.spec import DecoderSpec

__all__ = ["QUANTIZED", "GGUFSource"]

_PLAIN = ("F32", "F16", "BF16")
QUANTIZED = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
"""Quantised storage types that we read."""

_TOP: Mapping[str, str] = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
_LAYER: Mapping[str, str] = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_NORMS: Mapping[str, str] = {"post_attention_layernorm": "ffn_norm"}
_SANDWICH_NORMS: Mapping[str, str] = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}

_DEQUANTIZED = 1 << 18
"""Values dequantised in one call: rows of the file, which the package goes by, are too short for NumPy."""


class GGUFSource:
    """A memory-mapped GGUF file, by the index in its checkpoint."""

    def __init__(self, weights: GGUFWeights, spec: DecoderSpec) -> None:
        self._index = {tensor.name: tensor for tensor in weights.tensors}
        self._data = np.memmap(weights.file, dtype=np.uint8, mode="r").view(np.ndarray)
        self._spec = spec
        self._interleaved = weights.architecture == "llama"

    def tensor(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """See `WeightSource`."""
        stored = self._index.get(self._stored_name(name))
        if stored is None:
            raise UnsupportedModelError(f"the GGUF file has no tensor {self._stored_name(name)}")
        if stored.shape != shape:
            raise UnsupportedModelError(f"tensor {stored.name} has shape {list(stored.shape)}, expected {list(shape)}")
        tensor = self._read(stored)
        if self._spec.norm_offset and name.endswith("norm.weight"):
            # Conversion added the offset; this subtraction and the decoder's addition round as transformers' do.
            return tensor - self._spec.norm_offset
        if self._interleaved and ".q_proj." in name:
            return _halves(tensor, self._spec.heads)
        if self._interleaved and ".k_proj." in name:
            return _halves(tensor, self._spec.kv_heads)
        return tensor

    def _stored_name(self, name: str) -> str:
        base, _, kind = name.rpartition(".")
        layer = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", base)
        if layer is None:
            return f"{_TOP[base]}.{kind}"
        names = {**_LAYER, **(_SANDWICH_NORMS if self._spec.sandwich else _NORMS)}
        return f"blk.{layer[1]}.{names[layer[2]]}.{kind}"

    def _read(self, stored: GGUFTensor) -> torch.Tensor:
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants  # costs 0.3 s, for GGUF files alone

        if stored.qtype not in {*_PLAIN, *QUANTIZED}:
            supported = ", ".join((*_PLAIN, *QUANTIZED))
            raise UnsupportedModelError(f"tensor {stored.name} is stored as {stored.qtype}; supported: {supported}")
        data = self._data[stored.offset : stored.offset + stored.nbytes]
        if stored.qtype == "BF16":
            return torch.from_numpy(data.view(np.int16).copy()).view(torch.bfloat16).view(stored.shape)
        qtype = GGMLQuantizationType[stored.qtype]
        block_values, block_bytes = GGML_QUANT_SIZES[qtype]
        blocks = data.reshape(-1, block_bytes)
        values = np.empty((len(blocks), block_values), dtype=np.float32)
        for start in range(0, len(blocks), _DEQUANTIZED // block_values):
            part = slice(start, start + _DEQUANTIZED // block_values)
            values[part] = quants.dequantize(blocks[part].reshape(1, -1), qtype).reshape(-1, block_values)
        return torch.from_numpy(values).view(stored.shape)


def _halves(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """Undo llama.cpp's order of a head's rows: its pairs (2d, 2d + 1) back to ours, (d, d + D/2)."""
    pairs = tensor.view(heads, -1, 2, *tensor.shape[1:])
    return pairs.transpose(1, 2).reshape(tensor.shape)
