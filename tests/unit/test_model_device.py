"""Which device and type the settings come to, what is said where something is missing, and a GPU's memory."""

from __future__ import annotations

import importlib.util
import logging
from dataclasses import replace

import numpy as np
import pytest
import torch
import triton
from hypothesis import given
from hypothesis import strategies as st

from batchgen.checkpoint.types import Checkpoint, NoWeights
from batchgen.config import EngineConfig
from batchgen.errors import UsageError
from batchgen.model.device import choose_device, choose_dtype
from batchgen.model.gpu import Memory, profile_batch
from batchgen.model.prepare import prepare
from batchgen_kernels.ops import Shape

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


def checkpoint(**config: object) -> Checkpoint:
    return Checkpoint("m", config, {}, {}, None, None, NoWeights(), "")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with a GPU and all that it needs."""
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: True)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)


def test_auto_is_the_cpu_without_a_gpu() -> None:
    assert choose_device(EngineConfig()) == CPU


def test_what_cuda_needs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    config = EngineConfig(device="cuda")
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(UsageError, match=r"--device cuda: torch .* is built for the CPU alone"):
        choose_device(config)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    with pytest.raises(UsageError, match="torch finds no GPU"):
        choose_device(config)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UsageError, match="Triton is not installed"):
        choose_device(config)


@pytest.mark.usefixtures("gpu")
def test_with_a_gpu(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    assert choose_device(EngineConfig()) == CUDA
    assert choose_device(EngineConfig(device="cpu")) == CPU
    assert choose_device(EngineConfig(kernels="native")) == CPU
    with pytest.raises(UsageError, match="--kernels native computes on the CPU"):
        choose_device(EngineConfig(device="cuda", kernels="native"))
    with pytest.raises(UsageError, match="--tensor-parallel-size 3: this machine has 2"):
        choose_device(EngineConfig(tensor_parallel_size=3))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with caplog.at_level(logging.WARNING):
        assert choose_device(EngineConfig()) == CPU
    assert "the GPU is not used: Triton is not installed" in caplog.text


@pytest.mark.usefixtures("gpu")
def test_types(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = checkpoint(torch_dtype="bfloat16")
    assert choose_dtype(stored, EngineConfig(), CPU) is torch.float32
    assert choose_dtype(stored, EngineConfig(dtype="float"), CPU) is torch.float32
    with pytest.raises(UsageError, match="--dtype half: the CPU computes in float32"):
        choose_dtype(stored, EngineConfig(dtype="half"), CPU)
    assert choose_dtype(stored, EngineConfig(), CUDA) is torch.bfloat16
    assert choose_dtype(checkpoint(text_config={"dtype": "float32"}), EngineConfig(), CUDA) is torch.float32
    assert choose_dtype(checkpoint(), EngineConfig(), CUDA) is torch.bfloat16
    assert choose_dtype(stored, EngineConfig(dtype="half"), CUDA) is torch.float16
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: False)
    assert choose_dtype(stored, EngineConfig(), CUDA) is torch.float16


def test_triton_on_the_cpu_needs_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)
    model = {"model_type": "llama", "vocab_size": 9, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    model |= {"num_attention_heads": 1, "max_position_embeddings": 8}
    with pytest.raises(UsageError, match="needs a GPU, or Triton's interpreter"):
        prepare(checkpoint(**model), replace(EngineConfig(), device="cpu", kernels="triton"))


def test_memory_left_for_keys_and_values() -> None:
    assert Memory(total=1000, used=300).left(0.9) == 600


@given(
    max_tokens=st.integers(1, 300),
    max_seqs=st.integers(1, 40),
    block_size=st.integers(1, 20),
    max_model_len=st.integers(1, 200),
)
def test_a_profiled_step_is_as_large_as_steps_get(
    max_tokens: int, max_seqs: int, block_size: int, max_model_len: int
) -> None:
    max_seqs = min(max_seqs, max_tokens)
    per_sequence = -(-max_model_len // block_size)
    # What `prepare` gives its trial: never more than all sequences need.
    num_blocks = min(-(-max_tokens // block_size) + max_seqs, max_seqs * per_sequence)
    shape = Shape(max_tokens, max_seqs, num_blocks, block_size, per_sequence)
    batch = profile_batch(shape, max_model_len)
    assert len(batch.tokens) == min(max_tokens, max_seqs * max_model_len)
    assert 1 <= len(batch.rows) == len(batch.context_lens) <= max_seqs
    assert batch.context_lens.max() <= max_model_len
    assert batch.block_tables.shape[1] <= per_sequence
    assert len(np.unique(batch.slots)) == len(batch.slots)
    assert batch.slots.max() < num_blocks * block_size
