"""Tiny models through GGUF: written as llama.cpp's conversion writes them, with the names of the `gguf` package."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from transformers import PreTrainedModel

from batchgen.checkpoint.gguf_config import config_from_header, read_header
from batchgen.checkpoint.types import GGUFWeights
from batchgen.config import EngineConfig
from batchgen.core.sampling import SamplingParams
from batchgen.model.runner import load_runner
from tests.golden.driver import generate
from tests.golden.models import make_model, save_checkpoint

GREEDY = SamplingParams(max_tokens=16, temperature=0.0)


def interleaved(weight: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """`permute` of llama.cpp's conversion: a head's halves become pairs."""
    halves = weight.reshape(heads, 2, -1, *weight.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(weight.shape))


def write_gguf(model: PreTrainedModel, file: Path, architecture: str) -> None:
    """The model in float32."""
    config = model.config
    writer = gguf.GGUFWriter(file, architecture)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_key_length(getattr(config, "head_dim", config.hidden_size // config.num_attention_heads))
    if architecture == "gemma3":
        writer.add_sliding_window(config.sliding_window)
        writer.add_rope_freq_base(config.rope_parameters["full_attention"]["rope_theta"])
    else:
        writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    arch = next(arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = tensor.numpy()
        if architecture == "llama" and (".q_proj." in name or ".k_proj." in name):
            heads = config.num_attention_heads if ".q_proj." in name else config.num_key_value_heads
            values = interleaved(values, heads)
        if architecture == "gemma3" and name.endswith("norm.weight"):
            values = values + 1
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight", ".bias")), values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize(
    ("name", "architecture"),
    [
        ("llama", "llama"),
        ("mistral", "llama"),
        ("qwen2", "qwen2"),
        ("qwen3", "qwen3"),
        ("gemma3-published-pattern", "gemma3"),
    ],
)
def test_tokens_are_those_of_the_safetensors_twin(name: str, architecture: str, tmp_path: Path) -> None:
    model = make_model(name)
    twin = save_checkpoint(model, tmp_path / "hf")
    file = tmp_path / "model.gguf"
    write_gguf(model, file, architecture)
    header = read_header(file)
    weights = GGUFWeights(file, header.architecture, header.tensors)
    checkpoint = replace(twin, config=config_from_header(header), weights=weights)
    settings = EngineConfig(max_num_seqs=4, max_num_batched_tokens=32, kv_cache_memory=4 << 20, threads=1)
    rng = random.Random(3)
    prompts = [[rng.randrange(300) for _ in range(rng.randint(1, 30))] for _ in range(4)]
    outputs = [generate(load_runner(c, settings), prompts, GREEDY) for c in (checkpoint, twin)]
    assert outputs[0] == outputs[1]
