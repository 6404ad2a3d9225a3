"""Estimates and decisions, one rule at a time."""

from __future__ import annotations

import random

import pytest

from batchgen.core.block_pool import BlockPool
from batchgen.core.kv_manager import KVManager
from batchgen.core.lengths import LengthEstimator, expected_tokens
from batchgen.core.policy import Demand, cheapest, fits_as_expected
from batchgen.core.prefix_index import PrefixIndex
from batchgen.core.prefix_tree import PrefixNode, PrefixTree
from batchgen.core.sampling import SamplingParams
from batchgen.core.scheduler import Scheduler
from batchgen.core.sequence import FinishReason, Sequence
from batchgen.core.step import Capacity, StepResult

ROOT = PrefixNode(0)


def sequence(seq_id: int, prompt: list[int], max_tokens: int = 100) -> Sequence:
    return Sequence(seq_id, prompt, SamplingParams(max_tokens=max_tokens))


def finished(length: int, reason: FinishReason) -> Sequence:
    one = sequence(0, [1])
    one.output += [0] * length
    one.finish_reason = reason
    return one


def demand(own: int, limit: int, rate: float = 0.0) -> Demand:
    return Demand(blocks=own, own=own, rate=rate, limit=limit)


def test_until_something_stopped_a_length_is_its_limit() -> None:
    lengths = LengthEstimator()
    lengths.learn(finished(100, FinishReason.LENGTH), ROOT)
    assert lengths.rate(ROOT, generated=200) == 0
    assert expected_tokens(0, 37) == 37


def test_the_rate_counts_tokens_of_those_that_still_run() -> None:
    lengths = LengthEstimator()
    for _ in range(10):
        lengths.learn(finished(10, FinishReason.STOP), ROOT)
    # The finished ones were the short ones: the others have generated 900 tokens and go on.
    rate = lengths.rate(ROOT, generated=1_000)
    assert rate == pytest.approx(1 / 100)
    assert expected_tokens(rate, 100_000) == pytest.approx(100)
    assert 4 < expected_tokens(rate, 5) < 5


def test_siblings_count_more_than_strangers() -> None:
    lengths, near, far = LengthEstimator(), PrefixNode(1, parent=ROOT), PrefixNode(1, parent=ROOT)
    rng = random.Random(0)
    for _ in range(200):
        lengths.learn(finished(rng.randint(1, 20), FinishReason.STOP), near)
        lengths.learn(finished(rng.randint(300, 500), FinishReason.STOP), far)
    generated = 200 * 410
    assert 1 / lengths.rate(near, generated) == pytest.approx(10.5, rel=0.4)
    assert 1 / lengths.rate(far, generated) == pytest.approx(400, rel=0.1)
    assert 1 / lengths.rate(ROOT, generated) == pytest.approx(205, rel=0.1)


def test_the_cache_is_simulated_to_the_end_of_all() -> None:
    # Two sequences of 4 blocks; the first ends before the second and the candidate grow into its place.
    running, candidate = [demand(4, limit=32), demand(4, limit=64)], demand(2, limit=64)
    # At token 32 all three have grown by two blocks; at 64 two of them by four, and the first one's four are free.
    assert fits_as_expected(running, candidate, free=2 + 6, block_size=16)
    assert not fits_as_expected(running, candidate, free=2 + 5, block_size=16)
    # What ends at once makes room for all that follows.
    assert fits_as_expected([demand(40, limit=1)], demand(1, limit=400), free=3, block_size=16)


def test_what_may_be_long_and_never_was_is_not_waited_for() -> None:
    running, candidate = [demand(8, limit=1_000)] * 9, demand(8, limit=1_000)
    assert not fits_as_expected(running, candidate, free=40, block_size=16)
    stops_soon = [demand(8, limit=1_000, rate=1 / 50)] * 9
    assert fits_as_expected(stops_soon, demand(8, limit=1_000, rate=1 / 50), free=40, block_size=16)


def test_the_victim_has_the_least_of_its_own_and_came_last() -> None:
    assert cheapest([demand(3, 1), demand(1, 50), demand(2, 1), demand(1, 2)]) == 3


def test_blocks_that_somebody_waits_for_are_taken_last_and_by_their_users() -> None:
    pool = BlockPool(4)
    held = [pool.take() for _ in range(4)]
    few, many, none = PrefixNode(1, users=1), PrefixNode(1, users=5), PrefixNode(1)
    for block, node in zip(held, (many, few, none, None), strict=True):
        block.node = node
        pool.release(block)
    assert (pool.num_free, pool.num_wanted) == (4, 2)
    assert [pool.take().block_id for _ in range(4)] == [2, 3, 1, 0]


def test_a_new_window_finds_what_the_cache_holds_for_it() -> None:
    kv = KVManager(num_blocks=4, block_size=2, index=PrefixIndex())
    old = sequence(0, [1, 2, 3, 4, 5])
    kv.open(old, kv.match(old), old.length)
    kv.publish(old, old.length, ROOT)
    kv.release(old)
    assert kv.num_wanted == 0
    kv.adopt(PrefixTree([sequence(1, [1, 2, 9]), sequence(2, [1, 2, 8])], block_size=2))
    assert (kv.num_free, kv.num_wanted) == (4, 1)
    # A stranger takes all but the block that the two will want.
    stranger = sequence(3, [7] * 6)
    kv.open(stranger, kv.match(stranger), stranger.length)
    assert len(kv.match(sequence(4, [1, 2, 9]))) == 1


def test_many_questions_behind_the_same_examples_compute_hardly_more_than_is_distinct() -> None:
    """As GSM8K with eight examples: 1,086 tokens in common, which end within a block."""
    rng = random.Random(0)
    examples = rng.choices(range(49_152), k=1_086)
    questions = [
        Sequence(
            number, [*examples, *rng.choices(range(49_152), k=rng.randint(30, 130))], SamplingParams(max_tokens=limit)
        )
        for number in range(1_100)
        for limit in [rng.randint(20, 60)]
    ]
    capacity = Capacity(num_blocks=4_096, block_size=16, max_num_seqs=128, max_num_batched_tokens=1_024)
    scheduler = Scheduler(capacity, KVManager(4_096, 16, PrefixIndex()))
    assert scheduler.add(questions) == []
    while (plan := scheduler.schedule()) is not None:
        scheduler.commit(plan, StepResult([0] * len(plan.sampled)))
    stats = scheduler.stats()
    assert stats.work.distinct_tokens < 1_086 + 1_100 * 130
    assert stats.computed_tokens / stats.work.tokens < 1.01
    prompts = stats.computed_tokens - stats.work.later_tokens
    assert prompts / stats.work.distinct_tokens < 1.03
