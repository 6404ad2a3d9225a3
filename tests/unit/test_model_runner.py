"""Loading: which kernels and which precision are taken, and what a runner tells of itself."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from batchgen.checkpoint.types import Checkpoint, GGUFTensor, GGUFWeights, NoWeights, Weights
from batchgen.config import EngineConfig
from batchgen.core.sampling import SamplingParams
from batchgen.core.step import ScheduledSequence, StepPlan
from batchgen.errors import UsageError
from batchgen.model.runner import load_runner
from batchgen.model.weights import DummySource
from batchgen_kernels import cpu

CONFIG: dict[str, Any] = {
    "model_type": "qwen3",
    "vocab_size": 50,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
}


def checkpoint(weights: Weights | None = None) -> Checkpoint:
    return Checkpoint("m", CONFIG, {}, {}, None, None, weights or NoWeights(), "")


def config(**changes: Any) -> EngineConfig:
    return replace(EngineConfig(kernels="torch", threads=1, max_num_seqs=2, max_num_batched_tokens=8), **changes)


def test_what_a_runner_tells() -> None:
    runner = load_runner(checkpoint(), config())
    assert (runner.kernels_name, runner.precision, runner.vocab_size, runner.max_model_len) == (
        "torch",
        "float32",
        50,
        64,
    )
    assert runner.capacity.num_blocks == 2 * 4
    assert runner.kv_bytes == 2 * 64 * (2 * 2 * 2 * 16 * 4)
    assert torch.get_num_threads() == 1


def test_a_plan_that_wants_no_token_yields_none() -> None:
    runner = load_runner(checkpoint(), config())
    step = ScheduledSequence(seq_id=0, start=0, tokens=[1, 2, 3], block_table=[4], sampling=None)
    assert list(runner.begin(StepPlan((step,)))().tokens) == []


@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_dummy_weights_generate(quantization: str) -> None:
    runner = load_runner(checkpoint(), config(quantization=quantization))
    assert runner.precision == {"none": "float32", "int8": "int8"}[quantization]
    step = ScheduledSequence(0, 0, [1, 2, 3], [4], SamplingParams(max_tokens=1, temperature=0.0))
    (token,) = runner.begin(StepPlan((step,)))().tokens
    assert 0 <= token < 50


def test_without_the_extension_torch_computes_and_says_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cpu, "available", lambda: False)
    monkeypatch.setattr(cpu, "unavailable_reason", lambda: "not built")
    with caplog.at_level(logging.WARNING):
        runner = load_runner(checkpoint(), config(kernels="auto"))
    assert runner.kernels_name == "torch"
    assert "not built" in caplog.text
    with pytest.raises(UsageError, match="--kernels native: not built; use auto or torch"):
        load_runner(checkpoint(), config(kernels="native"))


@pytest.mark.parametrize(("qtype", "expected"), [("Q4_K", "int8"), ("BF16", "float32")])
def test_auto_is_int8_for_what_is_quantised_already(qtype: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = GGUFWeights(Path("m.gguf"), "qwen3", (GGUFTensor("output.weight", (50, 64), qtype, 0, 1),))
    monkeypatch.setattr("batchgen.model.prepare.open_weights", lambda *_: DummySource(torch.float32))
    assert load_runner(checkpoint(weights), config(quantization="auto")).precision == expected
