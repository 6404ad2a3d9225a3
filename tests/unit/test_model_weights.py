"""Tensors from files: names, types, faults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from batchgen.checkpoint.gguf_config import read_header
from batchgen.checkpoint.types import Checkpoint, GGUFTensor, GGUFWeights, NoWeights, SafetensorsWeights, Weights
from batchgen.errors import UnsupportedModelError
from batchgen.model.gguf_weights import QUANTIZED, GGUFSource
from batchgen.model.spec import read_spec
from batchgen.model.weights import WeightSource, open_weights

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 4,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}


def open_source(weights: Weights, **changes: Any) -> WeightSource:
    config = CONFIG | changes
    checkpoint = Checkpoint("m", config, {}, {}, None, None, weights, "")
    return open_weights(checkpoint, read_spec(config))


def saved(folder: Path, tensors: dict[str, torch.Tensor]) -> WeightSource:
    save_file(tensors, folder / "model.safetensors")
    return open_source(SafetensorsWeights((folder / "model.safetensors",)))


@pytest.mark.parametrize(
    ("stored", "name"),
    [
        ("model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight"),
        ("model.language_model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight"),
        ("language_model.model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight"),
        ("model.language_model.embed_tokens.weight", "model.embed_tokens.weight"),
        ("language_model.model.norm.weight", "model.norm.weight"),
        ("language_model.lm_head.weight", "lm_head.weight"),
    ],
)
def test_multimodal_checkpoints_name_the_decoder_apart(stored: str, name: str, tmp_path: Path) -> None:
    tensor = torch.arange(6.0).view(2, 3)
    tower = {"vision_tower.vision_model.encoder.layers.0.mlp.fc1.weight": torch.ones(2)}
    assert torch.equal(saved(tmp_path, {stored: tensor} | tower).tensor(name, (2, 3)), tensor)


def test_stored_types(tmp_path: Path) -> None:
    kinds = (torch.float32, torch.float16, torch.bfloat16)
    source = saved(tmp_path, {str(kind): torch.arange(4).to(kind) for kind in kinds})
    read = [source.tensor(str(kind), (4,)) for kind in kinds]
    assert [tensor.dtype for tensor in read] == [torch.float32, torch.float32, torch.bfloat16]
    assert all(tensor.tolist() == [0, 1, 2, 3] for tensor in read)


def test_faults_of_safetensors(tmp_path: Path) -> None:
    source = saved(tmp_path, {"a": torch.ones(2), "b": torch.ones(2, dtype=torch.int32)})
    with pytest.raises(UnsupportedModelError, match="no tensor c"):
        source.tensor("c", (2,))
    with pytest.raises(UnsupportedModelError, match=r"a has shape \[2\].*\[3\]"):
        source.tensor("a", (3,))
    with pytest.raises(UnsupportedModelError, match=r"b is stored as torch\.int32; supported: float32"):
        source.tensor("b", (2,))
    (tmp_path / "bad.safetensors").write_bytes(b"no header")
    with pytest.raises(UnsupportedModelError, match=r"bad\.safetensors is not a readable"):
        open_source(SafetensorsWeights((tmp_path / "bad.safetensors",)))


@pytest.mark.parametrize(("dtype", "expected"), [("bfloat16", torch.bfloat16), ("float16", torch.float32)])
def test_dummy_weights_are_the_same_each_time(dtype: str, expected: torch.dtype) -> None:
    first, again = (open_source(NoWeights(), dtype=dtype) for _ in range(2))
    name = "model.layers.0.mlp.up_proj.weight"
    assert first.tensor(name, (512, 256)).dtype == expected
    assert torch.equal(first.tensor(name, (512, 256)), again.tensor(name, (512, 256)))
    assert not torch.equal(first.tensor(name, (512, 256)), first.tensor("lm_head.weight", (512, 256)))
    assert first.tensor("model.norm.weight", (256,)).tolist() == [1.0] * 256


def stored_bytes(qtype: gguf.GGMLQuantizationType, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """A [512, 256] tensor: quantised by the package where it can, random blocks with small scales for K quants."""
    values = rng.standard_normal((512, 256)).astype(np.float32)
    try:
        return np.asarray(gguf.quants.quantize(values, qtype))
    except NotImplementedError:
        block_values, block_bytes = gguf.GGML_QUANT_SIZES[qtype]
        blocks = rng.integers(0, 256, (512 * 256 // block_values, block_bytes), dtype=np.uint8)
        # No half-precision scale, wherever the format has it, is an infinity or NaN: their exponent bits are not full.
        blocks[:, 1::2] &= 0xBB
        return blocks.reshape(512, -1)


@pytest.mark.parametrize("name", ["F32", "F16", "BF16", *QUANTIZED])
def test_every_storage_type(name: str, tmp_path: Path) -> None:
    qtype = gguf.GGMLQuantizationType[name]
    data = stored_bytes(qtype, np.random.default_rng(3))
    file = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(file, "qwen2")
    writer.add_tensor("output_norm.weight", np.ones(256, dtype=np.float32))
    writer.add_tensor("blk.0.ffn_up.weight", data, raw_dtype=qtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    source = open_source(GGUFWeights(file, "qwen2", read_header(file).tensors), model_type="qwen2")
    tensor = source.tensor("model.layers.0.mlp.up_proj.weight", (512, 256))
    assert tensor.dtype == (torch.bfloat16 if name == "BF16" else torch.float32)
    expected = gguf.quants.dequantize(data, qtype)
    assert np.isfinite(expected).all()
    np.testing.assert_array_equal(tensor.float().numpy(), expected)
    assert source.tensor("model.norm.weight", (256,)).tolist() == [1.0] * 256


def test_faults_of_gguf(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(bytes(4096))
    tensors = (
        GGUFTensor("token_embd.weight", (4, 256), "IQ4_NL", 0, 576),
        GGUFTensor("output.weight", (4, 256), "F32", 0, 4096),
    )
    source = open_source(GGUFWeights(tmp_path / "model.gguf", "llama", tensors))
    assert isinstance(source, GGUFSource)
    with pytest.raises(UnsupportedModelError, match=r"IQ4_NL; supported: F32, F16, BF16, Q4_0.*Q6_K"):
        source.tensor("model.embed_tokens.weight", (4, 256))
    with pytest.raises(UnsupportedModelError, match=r"no tensor blk\.0\.attn_q\.weight"):
        source.tensor("model.layers.0.self_attn.q_proj.weight", (256, 256))
    with pytest.raises(UnsupportedModelError, match=r"output.weight has shape \[4, 256\]"):
        source.tensor("lm_head.weight", (5, 256))
