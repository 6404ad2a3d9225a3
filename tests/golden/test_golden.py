"""Tiny models of every family against transformers, in float32."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from batchgen.checkpoint.types import Checkpoint
from batchgen.config import EngineConfig, Kernels
from batchgen.core.kv_manager import KVManager
from batchgen.core.policy import OFFLINE, Policy
from batchgen.core.prefix_index import PrefixIndex
from batchgen.core.sampling import SamplingParams
from batchgen.core.scheduler import Scheduler
from batchgen.core.sequence import Sequence
from batchgen.core.step import ModelRunner
from batchgen.model.decoder import record_decoder
from batchgen.model.precision import Precisions
from batchgen.model.runner import load_runner
from batchgen.model.spec import read_spec
from batchgen.model.weights import open_weights
from batchgen_kernels import cpu, ops
from batchgen_kernels.reference import TorchProgram
from tests.golden.driver import generate
from tests.golden.models import NAMES, make_model, save_checkpoint

KERNELS: tuple[Kernels, ...] = ("torch", "native") if cpu.available() else ("torch",)
NEW_TOKENS = 24
GREEDY = SamplingParams(max_tokens=NEW_TOKENS, temperature=0.0)
SHAPE = ops.Shape(max_tokens=48, max_seqs=48, num_blocks=8, block_size=8, max_blocks_per_seq=6)


def engine(kernels: Kernels, **changes: Any) -> EngineConfig:
    settings = {"max_num_seqs": 6, "max_num_batched_tokens": 17, "block_size": 4, "kv_cache_memory": 8 << 20}
    return EngineConfig(kernels=kernels, threads=1, **(settings | changes))


def random_prompts(count: int, longest: int, vocab: int) -> list[list[int]]:
    rng = random.Random(5)
    return [[rng.randrange(vocab) for _ in range(rng.randint(1, longest))] for _ in range(count)]


def expected_tokens(model: PreTrainedModel, prompt: list[int]) -> list[int]:
    out = model.generate(torch.tensor([prompt]), max_new_tokens=NEW_TOKENS, do_sample=False)
    return [int(token) for token in out[0, len(prompt) :]]


def logits_of(checkpoint: Checkpoint, tokens: list[int], kernels: Kernels, precision: ops.Precision) -> torch.Tensor:
    """Logits after each token of one sequence, [T, V], computed in one step."""
    spec = read_spec(checkpoint.config)
    program: ops.Program = TorchProgram(SHAPE) if kernels == "torch" else cpu.NativeProgram(SHAPE, threads=1)
    logits = record_decoder(program, spec, open_weights(checkpoint, spec), Precisions(precision), positions=48).logits
    places = np.arange(len(tokens), dtype=np.int32)
    table = np.array([[5, 2, 7, 0, 3, 1]], dtype=np.int32)
    batch = ops.Batch(
        tokens=np.array(tokens, dtype=np.int32),
        positions=places,
        slots=table[0, places // 8] * 8 + places % 8,
        query_start=np.array([0, len(tokens)], dtype=np.int32),
        context_lens=np.array([len(tokens)], dtype=np.int32),
        block_tables=table,
        rows=places,
    )
    program.run(batch)
    return torch.from_numpy(logits.numpy(len(tokens)).copy())


@pytest.fixture(scope="module", params=NAMES)
def saved(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[PreTrainedModel, Checkpoint]:
    model = make_model(request.param)
    return model, save_checkpoint(model, tmp_path_factory.mktemp(request.param))


@pytest.mark.parametrize("kernels", KERNELS)
def test_logits_are_those_of_transformers(saved: tuple[PreTrainedModel, Checkpoint], kernels: Kernels) -> None:
    model, checkpoint = saved
    tokens = random_prompts(1, 1, 300)[0] + list(range(7, 300, 7))
    with torch.no_grad():
        expected = model(torch.tensor([tokens])).logits[0]
    difference = logits_of(checkpoint, tokens, kernels, "float32") - expected
    assert float(difference.abs().max()) < 1e-4 * float(expected.abs().max())


def test_int8_logits_are_near(saved: tuple[PreTrainedModel, Checkpoint]) -> None:
    """A wrong scale or sum would be far off; what is left is what 64 columns of random weights lose to int8."""
    model, checkpoint = saved
    tokens = list(range(7, 300, 7))
    with torch.no_grad():
        exact = model(torch.tensor([tokens])).logits[0]
    norm = float(exact.norm())
    reference = logits_of(checkpoint, tokens, "torch", "int8")
    assert 1e-3 < float((reference - exact).norm()) / norm < 0.15
    # Programs differ where a float sum rounds otherwise and one activation falls on the other side of a half.
    assert all(
        float((logits_of(checkpoint, tokens, kernels, "int8") - reference).norm()) / norm < 0.02 for kernels in KERNELS
    )


@pytest.mark.parametrize("kernels", KERNELS)
def test_greedy_tokens_are_those_of_transformers(saved: tuple[PreTrainedModel, Checkpoint], kernels: Kernels) -> None:
    model, checkpoint = saved
    prompts = random_prompts(8, 40, model.config.vocab_size)
    tokens = generate(load_runner(checkpoint, engine(kernels)), prompts, GREEDY)
    assert tokens == [expected_tokens(model, prompt) for prompt in prompts]


def scheduled(
    runner: ModelRunner, prompts: list[list[int]], params: SamplingParams, policy: Policy
) -> tuple[list[list[int]], int]:
    """Outputs through the scheduler, and how many preemptions there were."""
    kv = KVManager(runner.capacity.num_blocks, runner.capacity.block_size, PrefixIndex())
    scheduler = Scheduler(runner.capacity, kv, policy)
    sequences = [Sequence(seq_id=i, prompt=prompt, params=params) for i, prompt in enumerate(prompts)]
    assert not scheduler.add(sequences)
    for _ in count():
        plan = scheduler.schedule()
        if plan is None:
            break
        scheduler.commit(plan, runner.begin(plan)())
    return [sequence.output for sequence in sequences], scheduler.stats().preemptions


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_the_scheduler_changes_nothing(name: str, kernels: Kernels, tmp_path: Path) -> None:
    """Shared prefixes, also within one step and copied in part, planned for; then so few blocks that, with no plan,
    sequences are preempted."""
    model = make_model(name)
    checkpoint = save_checkpoint(model, tmp_path)
    stem = random_prompts(1, 40, 300)[0]
    prompts = [stem + tail for tail in random_prompts(6, 10, 300)] + [stem, stem]
    block_bytes = read_spec(checkpoint.config).kv_bytes_per_token("float32") * 4
    runner = load_runner(checkpoint, engine(kernels, kv_cache_memory=24 * block_bytes))
    expected = [expected_tokens(model, prompt) for prompt in prompts]
    assert scheduled(runner, prompts, GREEDY, OFFLINE) == (expected, 0)
    no_plan = replace(OFFLINE, order=lambda tree, _: tree.sequences(), fits=lambda *_: True)
    outputs, preemptions = scheduled(runner, prompts, GREEDY, no_plan)
    assert preemptions > 0
    assert outputs == expected


def test_sampled_tokens_do_not_depend_on_the_batch(tmp_path: Path) -> None:
    checkpoint = save_checkpoint(make_model("llama"), tmp_path)
    prompts = random_prompts(5, 30, 300)
    params = SamplingParams(max_tokens=NEW_TOKENS, temperature=0.9, top_p=0.95, top_k=40, min_p=0.01, seed=2**64 - 3)
    runner = load_runner(checkpoint, engine(KERNELS[-1]))
    first = generate(runner, prompts, params, seed=1)
    assert first == generate(runner, prompts, params, seed=2)
    assert first != generate(runner, prompts, GREEDY)


def test_shards_and_a_closed_runner(tmp_path: Path) -> None:
    model = make_model("qwen3")
    whole, sharded = tmp_path / "whole", tmp_path / "sharded"
    runners = [
        load_runner(save_checkpoint(model, whole), engine("torch")),
        load_runner(save_checkpoint(model, sharded, shard="100KB"), engine("torch")),
    ]
    assert len(list(sharded.glob("*.safetensors"))) > 2
    prompts = random_prompts(2, 9, 300)
    assert generate(runners[0], prompts, GREEDY) == generate(runners[1], prompts, GREEDY)
    runners[0].close()
    with pytest.raises(RuntimeError, match="closed"):
        generate(runners[0], prompts, GREEDY)
