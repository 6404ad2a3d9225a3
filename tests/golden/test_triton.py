"""Tiny models end to end on the Triton kernels: under the interpreter, or on a GPU where the tests are run on one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from batchgen.config import EngineConfig
from batchgen.core.kv_manager import KVManager
from batchgen.core.prefix_index import PrefixIndex
from batchgen.core.sampling import SamplingParams
from batchgen.core.scheduler import Scheduler
from batchgen.core.sequence import Sequence
from batchgen.core.step import Answer, Capacity, StepPlan
from batchgen.engine import Engine
from batchgen.job.worker import RunnerInThread, Worker
from batchgen.model.runner import Runner, load_runner
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


def test_an_int8_cache_gives_the_references_tokens(tmp_path: Path) -> None:
    checkpoint = save_checkpoint(make_model("qwen2"), tmp_path)
    prompts = [list(range(7, 90, 11)), [301]]
    tokens, sizes = [], []
    for kernels in ("torch", "triton"):
        config = replace(CONFIG, device="cpu" if kernels == "torch" else CONFIG.device, kernels=kernels)
        runner = load_runner(checkpoint, replace(config, kv_cache_dtype="int8", block_size=16))
        tokens.append(generate(runner, prompts, GREEDY))
        sizes.append((runner.kv_precision, runner.capacity.num_blocks))
        runner.close()
    assert tokens[0] == tokens[1]
    assert sizes[0] == sizes[1]


class Watched(RunnerInThread):
    """Takes so many steps ahead; counts the plans that go on from tokens which nobody has read."""

    def __init__(self, runner: Runner, worker: Worker, steps_ahead: int) -> None:
        super().__init__(runner, worker)
        self.ahead = 0
        self._capacity = replace(runner.capacity, steps_ahead=steps_ahead)

    @property
    def capacity(self) -> Capacity:
        return self._capacity

    def begin(self, plan: StepPlan) -> Answer:
        self.ahead += any(s.follows is not None for s in plan.scheduled)
        return super().begin(plan)


def test_steps_are_begun_before_the_tokens_of_the_last_are_read(tmp_path: Path) -> None:
    """Greedy, sampled, with log-probabilities, and one that has ended when its next step is begun."""
    runner = load_runner(save_checkpoint(make_model("qwen2"), tmp_path), CONFIG)
    assert runner.capacity.steps_ahead == 1
    worker = Worker()
    sampled = SamplingParams(max_tokens=NEW_TOKENS, seed=3)
    requests = [([7, 18, 29, 40], GREEDY), ([301], replace(sampled, logprobs=1)), ([5, 6], sampled)]

    def run(steps_ahead: int) -> tuple[list[Sequence], int]:
        watched = Watched(runner, worker, steps_ahead)
        blocks = KVManager(watched.capacity.num_blocks, watched.capacity.block_size, PrefixIndex())
        work = [Sequence(i, *request) for i, request in enumerate(requests)]
        assert [s for done in Engine(Scheduler(watched.capacity, blocks), watched).run([work]) for s in done]
        return work, watched.ahead

    expected, ahead = run(0)
    assert ahead == 0
    stop = expected[0].output[1]
    assert stop not in expected[0].output[:1]
    requests[0] = requests[0][0], replace(GREEDY, stop_token_ids=frozenset({stop}))
    found, ahead = run(1)
    assert ahead == NEW_TOKENS - 1
    assert [s.output for s in found] == [expected[0].output[:2], *(s.output for s in expected[1:])]
    assert [len(s.logprobs) for s in found] == [0, NEW_TOKENS, 0]
    worker.end_with(runner.close)
