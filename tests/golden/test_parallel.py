"""A model in two processes on the CPU against the same model in one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from batchgen.config import EngineConfig
from batchgen.core.sampling import SamplingParams
from batchgen.errors import UsageError
from batchgen.model.runner import load_runner
from tests.golden.driver import generate
from tests.golden.models import make_model, save_checkpoint

GREEDY = SamplingParams(max_tokens=12, temperature=0.0)
ALONE = EngineConfig(
    device="cpu", kernels="torch", threads=1, max_num_seqs=4, max_num_batched_tokens=17, block_size=4,
    kv_cache_memory=1 << 20,
)  # fmt: skip


@pytest.mark.parametrize("name", ["llama-biases-linear-rope", "gemma3"])
def test_two_processes_give_the_tokens_of_one(name: str, tmp_path: Path) -> None:
    """Biases that are added once; sandwich norms after the sum; the chunks, blocks and company are the same."""
    checkpoint = save_checkpoint(make_model(name), tmp_path)
    prompts = [list(range(7, 7 + 5 * length, 5)) for length in (20, 1, 9)]
    expected = generate(load_runner(checkpoint, ALONE), prompts, GREEDY)
    runner = load_runner(checkpoint, replace(ALONE, tensor_parallel_size=2))
    try:
        assert generate(runner, prompts, GREEDY) == expected
        assert runner.kernels_name == "torch, 2 processes"
    finally:
        runner.close()


def test_what_cannot_be_shared_out_is_refused(tmp_path: Path) -> None:
    checkpoint = save_checkpoint(make_model("mistral"), tmp_path)
    with pytest.raises(UsageError, match="does not divide the model's 1 key/value heads"):
        load_runner(checkpoint, replace(ALONE, tensor_parallel_size=2))
