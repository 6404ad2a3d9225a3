"""A loop over a runner without the scheduler: random mixes, chunks and scattered blocks, everything by hand."""

from __future__ import annotations

import random
from collections.abc import Sequence

from batchgen.core.sampling import SamplingParams
from batchgen.core.step import ModelRunner, ScheduledSequence, StepPlan

__all__ = ["generate"]


def generate(
    runner: ModelRunner, prompts: Sequence[Sequence[int]], params: SamplingParams, *, seed: int = 0
) -> list[list[int]]:
    """`params.max_tokens` tokens for each prompt, whatever they are.

    Each step takes some of the sequences, in random order, and of those that are behind a random chunk.
    """
    rng = random.Random(seed)
    capacity = runner.capacity
    free = list(range(capacity.num_blocks))
    rng.shuffle(free)
    tables = [[free.pop() for _ in range(-(-(len(p) + params.max_tokens) // capacity.block_size))] for p in prompts]
    known = [list(prompt) for prompt in prompts]
    computed = [0] * len(prompts)
    while open_ := [i for i, p in enumerate(prompts) if len(known[i]) < len(p) + params.max_tokens]:
        chosen = rng.sample(open_, rng.randint(1, min(len(open_), capacity.max_num_seqs)))
        budget = capacity.max_num_batched_tokens
        scheduled = []
        for left, i in zip(range(len(chosen) - 1, -1, -1), chosen, strict=True):
            start = computed[i]
            count = rng.randint(1, min(len(known[i]) - start, budget - left))
            budget -= count
            computed[i] += count
            scheduled.append(
                ScheduledSequence(
                    seq_id=i,
                    start=start,
                    tokens=known[i][start : start + count],
                    block_table=tables[i],
                    sampling=params if computed[i] == len(known[i]) else None,
                )
            )
        plan = StepPlan(tuple(scheduled))
        for s, token in zip(plan.sampled, runner.begin(plan)().tokens, strict=True):
            known[s.seq_id].append(token)
    return [tokens[len(prompt) :] for tokens, prompt in zip(known, prompts, strict=True)]
