"""The embedded model: greedy output is transformers' own, and the same however the engine runs."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from batchgen.bench.quality import PRECISIONS, perplexity_of, windows_of
from batchgen.checkpoint.types import Checkpoint, GGUFWeights
from batchgen.config import EngineConfig
from batchgen.core.sampling import SamplingParams
from batchgen.io.readers import open_rows
from batchgen.job.loading import LoadedEngine, load_engine
from batchgen.protocol.parse import Parser
from batchgen.protocol.request import ChatPrompt
from batchgen_kernels import cpu

pytestmark = pytest.mark.slow

TIE = 1e-4
"""Logits closer than this may be in either order: two orders of summation."""
TASKS = (
    "Write a short poem about {}.",
    "Explain {} to a child.",
    "List five facts about {}.",
    "Write an email that asks a friend about {}.",
)
TOPICS = ("the sea", "volcanoes", "chess", "baking bread", "photosynthesis", "trains", "the moon", "money")


@pytest.fixture(scope="module")
def oracle(smollm2: Checkpoint) -> PreTrainedModel:
    assert isinstance(smollm2.weights, GGUFWeights)
    file = smollm2.weights.file
    loaded = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    return loaded.eval()


@pytest.fixture(scope="module")
def messages(pytestconfig: pytest.Config) -> list[list[Mapping[str, Any]]]:
    """32 chats: made here, or the first ones of `--chat-requests FILE`."""
    file = pytestconfig.getoption("--chat-requests")
    if file is None:
        return [[{"role": "user", "content": task.format(topic)}] for task, topic in product(TASKS, TOPICS)]
    from batchgen.config import InputConfig

    requests = [Parser().parse(row).request for row in open_rows(InputConfig(input_file=file))]
    prompts = [request.prompts[0] for request in requests if request is not None]
    return [list(prompt.messages) for prompt in prompts if isinstance(prompt, ChatPrompt)][:32]


def config(**changes: Any) -> EngineConfig:
    return replace(EngineConfig(max_model_len=1024, kv_cache_memory=256 << 20), **changes)


def generate(
    engine: LoadedEngine, prompts: list[list[int]], params: list[SamplingParams], order: list[int] | None = None
) -> list[list[int]]:
    """Output of each prompt; `order` is the order in which they arrive."""
    order = order or list(range(len(prompts)))
    outputs: list[list[int]] = [[] for _ in prompts]
    for sequence in engine.generate([prompts[i] for i in order], [params[i] for i in order]):
        outputs[order[sequence.seq_id]] = sequence.output
    return outputs


@torch.inference_mode()
def test_greedy_tokens_are_those_of_transformers(
    smollm2: Checkpoint, oracle: PreTrainedModel, messages: list[list[Mapping[str, Any]]]
) -> None:
    """Each token is the arg-max of transformers' logits after the same tokens, so `generate` yields the same text."""
    engine = load_engine(smollm2, config())
    prompts = [list(engine.encode_prompt(ChatPrompt(tuple(chat)))) for chat in messages]
    params = SamplingParams(max_tokens=64, temperature=0.0, stop_token_ids=frozenset({2}))
    ties = tokens = 0
    for prompt, output in zip(prompts, generate(engine, prompts, [params] * len(prompts)), strict=True):
        assert len(output) == 64 or output[-1] == 2
        logits = oracle(torch.tensor([prompt + output[:-1]])).logits[0, len(prompt) - 1 :]
        best = logits.max(dim=-1).values
        chosen = logits.gather(1, torch.tensor(output)[:, None])[:, 0]
        assert (best - chosen).max() < TIE
        ties += int((best != chosen).sum())
        tokens += len(output)
    print(f"{ties} ties within {TIE} among {tokens} tokens of {len(prompts)} requests")


def mixed_requests() -> tuple[list[list[int]], list[SamplingParams]]:
    """64 prompts of many lengths, some with a common beginning, greedy and sampled; many answers end early.

    So the others are expected to end early too, and memory that is meant for them runs out.
    """
    rng = random.Random(1)
    stem = [rng.randrange(100, 40_000) for _ in range(40)]
    prompts = [
        stem[: rng.choice((0, 20, 40))] + [rng.randrange(100, 40_000) for _ in range(rng.randint(1, 30))]
        for _ in range(64)
    ]
    params = [
        SamplingParams(
            max_tokens=rng.choice((4, 36)),
            temperature=rng.choice((0.0, 0.8)),
            top_p=0.95,
            seed=i,
            stop_token_ids=frozenset(range(0, 49_152, 2)) if i % 2 else frozenset(),
        )
        for i in range(64)
    ]
    return prompts, params


@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_a_request_has_the_same_tokens_however_it_runs(smollm2: Checkpoint, quantization: str) -> None:
    if not cpu.available():
        quantization = "none"  # without native kernels, tokens are compared in float32 alone
    prompts, params = mixed_requests()
    together = generate(load_engine(smollm2, config(quantization=quantization)), prompts, params)

    def check(order: list[int] | None = None, **changes: Any) -> LoadedEngine:
        engine = load_engine(smollm2, config(quantization=quantization, **changes))
        assert generate(engine, prompts, params, order) == together, changes
        return engine

    check(max_num_seqs=1)
    check(max_num_seqs=7, max_num_batched_tokens=7)
    check(threads=1, block_size=32)
    check(enable_prefix_caching=False, order=random.Random(2).sample(range(64), 64))
    token_bytes = 30 * 2 * 3 * {"none": 4 * 64, "int8": 64 + 4}[quantization]
    scarce = check(kv_cache_memory=8 * 16 * token_bytes, max_model_len=128)
    assert scarce.runner.capacity.num_blocks == 8


def test_memory_pressure_does_preempt(smollm2: Checkpoint) -> None:
    """The case above would prove nothing if eight blocks were enough."""
    prompts, params = mixed_requests()
    engine = load_engine(smollm2, config(kv_cache_memory=8 * 16 * 46_080, max_model_len=128))
    assert sum(s.preemptions for s in engine.generate(prompts, params)) > 0


def test_int8_costs_little_perplexity(smollm2: Checkpoint, oracle: PreTrainedModel) -> None:
    """And float32 has transformers' own."""
    engines = [
        load_engine(smollm2, config(quantization=p.quantization, kv_cache_dtype=p.kv_cache_dtype)) for p in PRECISIONS
    ]
    tokenizer = engines[0].tokenizer
    assert tokenizer is not None
    text = (Path(__file__).parents[2] / "docs" / "lifecycle.md").read_text(encoding="utf-8")
    windows = windows_of(tokenizer.encode(text)[:1500], 250, tokenizer.added_bos)
    exact, *rounded = [perplexity_of(engine, windows).value for engine in engines]
    with torch.inference_mode():
        losses = [oracle(torch.tensor([w]), labels=torch.tensor([w])).loss.double() * (len(w) - 1) for w in windows]
    predicted = sum(len(window) - 1 for window in windows)
    assert exact == pytest.approx(math.exp(sum(losses) / predicted), rel=1e-4)
    assert rounded == pytest.approx([exact] * 2, rel=0.02)  # on so short a text; docs/performance.md has a long one
