"""Tiny models end to end on the Triton kernels: under the interpreter, or on a GPU where the tests are run on one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from batchgen.config import EngineConfig
from batchgen.core.sampling import SamplingParams
from batchgen.model.runner import load_runner
from tests.golden.driver import generate
from tests.golden.models import make_model, save_checkpoint
from tests.kernels.triton.pair import DEVICE

NEW_TOKENS = 4
GREEDY = SamplingParams(max_tokens=NEW_TOKENS, temperature=0.0)
CONFIG = EngineConfig(
    device=DEVICE.type,  # type: ignore[arg-type]
    dtype="float32",
    kernels="triton",
    max_num_seqs=3,
    max_num_batched_tokens=9,
    block_size=4,
    kv_cache_memory=1 << 20,
)


@pytest.mark.parametrize("name", ["gemma3", "qwen2"])
def test_greedy_tokens_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    """Norms of all kinds, windows, biases, grouped heads; prompts in random chunks beside single tokens."""
    model = make_model(name)
    runner = load_runner(save_checkpoint(model, tmp_path), CONFIG)
    # The first is longer than the trial cache that a full step is measured with.
    prompts = [list(range(7, 300, 11)), [301], [5, 6, 7]]
    expected = [
        model.generate(torch.tensor([prompt]), max_new_tokens=NEW_TOKENS, do_sample=False)[0, len(prompt) :].tolist()
        for prompt in prompts
    ]
    assert generate(runner, prompts, GREEDY) == expected
    assert runner.kernels_name.startswith("triton")
    assert (runner.precision, runner.max_model_len) == ("float32", 256)
    runner.close()
