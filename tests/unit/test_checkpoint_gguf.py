"""GGUF headers, written here by the gguf package, become configurations that transformers agrees with."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from batchgen.checkpoint import gguf_import
from batchgen.checkpoint.gguf_import import import_header, import_tokenizer
from batchgen.checkpoint.types import Checkpoint, GGUFWeights
from batchgen.errors import ModelNotFoundError, UnsupportedModelError
from tests.tiny_tokenizers import SPECIAL, byte_level

HEADS, KV_HEADS, HEAD_DIM, HIDDEN, LAYERS = 4, 2, 16, 48, 7


def write_gguf(
    path: Path,
    architecture: str = "llama",
    tensors: dict[str, np.ndarray[Any, Any]] | None = None,
    **extra: float | int | str,
) -> Path:
    """A model without most of its weights; `extra` are header fields, `rope__scaling__type` for `rope.scaling.type`."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("tiny")
    writer.add_context_length(512)
    writer.add_block_count(LAYERS)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(96)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(500_000.0)
    writer.add_key_length(HEAD_DIM)
    if architecture == "gemma3":
        writer.add_sliding_window(64)
    for name, value in extra.items():
        add = {float: writer.add_float32, int: writer.add_uint32, str: writer.add_string}[type(value)]
        add(f"{architecture}.{name.replace('__', '.')}", value)
    _add_tokenizer(writer)
    shape = (320, HIDDEN)
    everything = {"token_embd.weight": np.arange(math.prod(shape), dtype=np.float32).reshape(shape)} | (tensors or {})
    for name, data in everything.items():
        writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tokenizer(writer: gguf.GGUFWriter) -> None:
    backend = byte_level()
    tokens = [backend.id_to_token(token) for token in range(backend.get_vocab_size())]
    pad = [f"[PAD{number}]" for number in range(320 - len(tokens))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens + pad)
    writer.add_token_types([3 if token in SPECIAL else 1 for token in tokens] + [5] * len(pad))
    writer.add_token_merges([" ".join(pair) for pair in json.loads(backend.to_str())["model"]["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_eot_token_id(3)
    writer.add_add_bos_token(True)
    writer.add_chat_template("{{ messages }}")


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "gemma3"])
def test_the_configuration_is_the_one_that_transformers_makes(architecture: str, tmp_path: Path) -> None:
    from transformers import AutoConfig

    file = write_gguf(tmp_path / "m.gguf", architecture, rope__dimension_count=HEAD_DIM, vocab_size=320)
    ours = dict(import_header(file, tmp_path / "cache").config)
    theirs = AutoConfig.from_pretrained(tmp_path, gguf_file=file.name).to_dict()
    assert ours.pop("eos_token_id") == [2, 3]  # they don't look at the end of a turn
    if architecture in {"qwen2", "qwen3"}:
        # They leave head_dim at the default of some published model; the file says what it is.
        theirs["head_dim"] = HEAD_DIM
    if architecture == "gemma3":
        theirs["query_pre_attn_scalar"] = HEAD_DIM
    for key in ("mlp_bias", "attention_bias"):
        theirs.setdefault(key, False)
    assert ours == {key: theirs[key] for key in ours}


def test_llama3_scaling_is_read_off_the_frequencies(tmp_path: Path) -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    wanted = {
        "rope_theta": 500_000.0,
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    config = LlamaConfig(hidden_size=HIDDEN, head_dim=HEAD_DIM, num_attention_heads=HEADS, rope_parameters=wanted)
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    plain = 500_000.0 ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    factors = (plain / scaled.numpy()).astype(np.float32)
    file = write_gguf(tmp_path / "m.gguf", tensors={"rope_freqs.weight": factors})
    found = import_header(file, tmp_path / "cache").config["rope_parameters"]
    assert found == wanted | {"factor": pytest.approx(32.0, rel=1e-6)}

    other = write_gguf(tmp_path / "other.gguf", tensors={"rope_freqs.weight": factors[::-1].copy()})
    with pytest.raises(UnsupportedModelError, match=r"rope_freqs\.weight"):
        import_header(other, tmp_path / "cache")


def test_yarn_and_gemmas_linear_scaling(tmp_path: Path) -> None:
    scaling: dict[str, Any] = {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0}
    file = write_gguf(tmp_path / "q.gguf", "qwen2", rope__scaling__original_context_length=128, **scaling)
    assert import_header(file, tmp_path).config["rope_parameters"] == {
        "rope_theta": 500_000.0,
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 128,
    }
    file = write_gguf(tmp_path / "g.gguf", "gemma3", **(scaling | {"rope__scaling__type": "linear"}))
    rope = import_header(file, tmp_path).config["rope_parameters"]
    assert rope["full_attention"] == {"rope_theta": 500_000.0, "rope_type": "linear", "factor": 4.0}
    assert rope["sliding_attention"] == {"rope_theta": 10_000.0, "rope_type": "default"}


def test_the_index_says_where_each_tensor_lies(tmp_path: Path) -> None:
    data = np.arange(6, dtype=np.float16).reshape(2, 3)
    imported = import_header(write_gguf(tmp_path / "m.gguf", tensors={"blk.0.attn_q.bias": data}), tmp_path / "cache")
    tensor = {tensor.name: tensor for tensor in imported.weights.tensors}["blk.0.attn_q.bias"]
    assert (tensor.shape, tensor.qtype, tensor.nbytes) == ((2, 3), "F16", 12)
    assert imported.weights.file.read_bytes()[tensor.offset : tensor.offset + tensor.nbytes] == data.tobytes()
    assert imported.config["attention_bias"]
    assert imported.config["tie_word_embeddings"]


def test_special_tokens_and_template(tmp_path: Path) -> None:
    imported = import_header(write_gguf(tmp_path / "m.gguf"), tmp_path / "cache")
    assert imported.tokenizer_config == {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True}
    assert imported.chat_template == "{{ messages }}"


def test_the_second_time_comes_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, cache = write_gguf(tmp_path / "m.gguf"), tmp_path / "cache"
    first = import_header(file, cache)
    tokenizer = import_tokenizer(file, first, cache)
    assert tokenizer is not None
    monkeypatch.setattr(gguf_import, "read_header", None)
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert import_header(file, cache) == first
    assert import_tokenizer(file, first, cache) == tokenizer
    moved = file.rename(tmp_path / "moved.gguf")
    assert import_header(moved, cache).weights == GGUFWeights(moved, "llama", first.weights.tensors)


def test_a_file_that_changed_is_read_again(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "m.gguf")
    first = import_header(file, tmp_path / "cache")
    write_gguf(file, "qwen2")
    second = import_header(file, tmp_path / "cache")
    assert (first.config["model_type"], second.config["model_type"]) == ("llama", "qwen2")
    assert first.sha256 != second.sha256


@pytest.mark.parametrize(("content", "said"), [(b"PK\x03\x04", "letters GGUF"), (b"GGUF\x03\x00\x00\x00", "readable")])
def test_what_is_not_a_gguf_file(content: bytes, said: str, tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(content)
    with pytest.raises(ModelNotFoundError, match=f"m.gguf is not a .*{said}|m.gguf is not a {said}"):
        import_header(file, tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("gguf/**/header.json"))


def test_a_piece_of_a_model_is_refused(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_uint16("split.count", 3)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(UnsupportedModelError, match="one of 3 pieces"):
        import_header(tmp_path / "m.gguf", tmp_path / "cache")


def test_an_architecture_of_others_is_left_to_whoever_builds_it(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "m.gguf", "mamba")
    imported = import_header(file, tmp_path / "cache")
    assert imported.config == {"model_type": "mamba"}
    assert import_tokenizer(file, imported, tmp_path / "cache") is None


@pytest.mark.slow
def test_the_embedded_models_are_configured_as_by_transformers(smollm2: Checkpoint, gemma3_270m: Checkpoint) -> None:
    from transformers import AutoConfig

    for model in (smollm2, gemma3_270m):
        assert isinstance(model.weights, GGUFWeights)
        file = model.weights.file
        theirs = AutoConfig.from_pretrained(file.parent, gguf_file=file.name).to_dict() | {"mlp_bias": False}
        assert dict(model.config) == {key: theirs[key] for key in model.config}
