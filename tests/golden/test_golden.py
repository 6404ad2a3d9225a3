"""Greedy output equal, token for token, to transformers' `generate` in float32."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from batchgen.checkpoint.types import Checkpoint
from batchgen.config import EngineConfig, Kernels
from batchgen.core.sampling import SamplingParams
from batchgen.model.runner import load_runner
from batchgen_kernels import cpu
from tests.golden.driver import generate
from tests.golden.models import NAMES, make_model, save_checkpoint

KERNELS: tuple[Kernels, ...] = ("torch", "native") if cpu.available() else ("torch",)
NEW_TOKENS = 24


def engine(kernels: Kernels, **changes: int) -> EngineConfig:
    settings = {
        "max_num_seqs": 6,
        "max_num_batched_tokens": 17,
        "block_size": 4,
        "kv_cache_memory": 8 << 20,
        "threads": 1,
    }
    return EngineConfig(kernels=kernels, **(settings | changes))  # type: ignore[arg-type]


def random_prompts(count: int, longest: int, vocab: int) -> list[list[int]]:
    rng = random.Random(5)
    return [[rng.randrange(vocab) for _ in range(rng.randint(1, longest))] for _ in range(count)]


def expected_tokens(model: PreTrainedModel, prompt: list[int]) -> list[int]:
    out = model.generate(torch.tensor([prompt]), max_new_tokens=NEW_TOKENS, do_sample=False)
    return [int(token) for token in out[0, len(prompt) :]]


@pytest.fixture(params=NAMES)
def saved(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[PreTrainedModel, Checkpoint]:
    model = make_model(request.param)
    return model, save_checkpoint(model, tmp_path)


@pytest.mark.parametrize("kernels", KERNELS)
def test_greedy_tokens_are_those_of_transformers(saved: tuple[PreTrainedModel, Checkpoint], kernels: Kernels) -> None:
    model, checkpoint = saved
    prompts = random_prompts(8, 40, model.config.vocab_size)
    runner = load_runner(checkpoint, engine(kernels))
    tokens = generate(runner, prompts, SamplingParams(max_tokens=NEW_TOKENS, temperature=0.0))
    assert tokens == [expected_tokens(model, prompt) for prompt in prompts]
