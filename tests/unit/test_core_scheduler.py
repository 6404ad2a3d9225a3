"""What the scheduler decides, one rule at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from batchgen.core.kv_manager import KVManager
from batchgen.core.policy import OFFLINE, Policy
from batchgen.core.prefix_index import PrefixIndex
from batchgen.core.sampling import SamplingParams
from batchgen.core.scheduler import Refusal, Scheduler
from batchgen.core.sequence import FinishReason, Sequence, Status
from batchgen.core.step import Capacity, StepPlan, StepResult
from tests.fakes import scheduler_for

Spans = dict[int, tuple[int, int]]


EAGER = replace(OFFLINE, fits=lambda *_: True)
"""Admits without looking ahead, and so has to preempt."""


def make(seq_id: int, prompt: list[int], max_tokens: int = 8, stop: frozenset[int] = frozenset()) -> Sequence:
    return Sequence(seq_id, prompt, SamplingParams(max_tokens=max_tokens, stop_token_ids=stop))


def scheduler(
    *sequences: Sequence,
    blocks: int = 100,
    block_size: int = 4,
    seqs: int = 8,
    tokens: int = 100,
    policy: Policy = OFFLINE,
) -> Scheduler:
    """A scheduler with a shared cache to which the sequences were added."""
    made = Scheduler(Capacity(blocks, block_size, seqs, tokens), KVManager(blocks, block_size, PrefixIndex()), policy)
    for one in sequences:
        assert made.add([one]) == []
    return made


def planned(plan: StepPlan | None) -> Spans:
    """seq_id -> (start, stop), in plan order."""
    assert plan is not None
    return {s.seq_id: (s.start, s.stop) for s in plan.scheduled}


def step(one: Scheduler, token: int = 1) -> Spans:
    """Run one step in which every next token is `token`."""
    plan = one.schedule()
    assert plan is not None
    one.commit(plan, StepResult([token] * len(plan.sampled)))
    return planned(plan)


def run_to_the_end(one: Scheduler) -> None:
    while one.stats().waiting or one.stats().running:
        step(one)


def test_a_long_prompt_comes_in_chunks_behind_everyones_next_token() -> None:
    one = scheduler(make(0, [1, 2]), make(1, list(range(10))), tokens=6)
    assert step(one) == {0: (0, 2), 1: (0, 4)}
    assert step(one) == {0: (2, 3), 1: (4, 9)}
    assert step(one) == {0: (3, 4), 1: (9, 10)}
    assert step(one) == {0: (4, 5), 1: (10, 11)}


def test_a_next_token_is_wanted_only_where_a_plan_reaches_the_end() -> None:
    one = scheduler(make(0, list(range(10))), tokens=6)
    plan = one.schedule()
    assert plan is not None
    assert plan.sampled == ()
    one.commit(plan, StepResult([]))
    plan = one.schedule()
    assert plan is not None
    assert [s.seq_id for s in plan.sampled] == [0]


def test_sequences_that_start_in_one_step_share_what_it_computes() -> None:
    one = scheduler(make(0, [1, 2, 3, 4, 5]), make(1, [1, 2, 3, 4, 6, 7]))
    plan = one.schedule()
    assert planned(plan) == {0: (0, 5), 1: (4, 6)}
    assert plan is not None
    assert plan.scheduled[0].block_table[0] == plan.scheduled[1].block_table[0]
    assert one.stats().cached_tokens == 4


def test_nothing_is_kept_of_a_finished_sequence() -> None:
    one = scheduler(make(0, list(range(9))), make(1, list(range(9))))
    run_to_the_end(one)
    assert not one._by_id
    assert not one._kv._tables
    assert not one._kv._packed


def test_equal_prompts_share_all_but_the_last_block() -> None:
    one = scheduler(make(0, [1, 2, 3, 4, 5, 6, 7, 8]), make(1, [1, 2, 3, 4, 5, 6, 7, 8]))
    assert step(one) == {0: (0, 8), 1: (4, 8)}


def test_a_block_in_the_middle_of_a_chunk_is_not_shared_before_it_is_full() -> None:
    one = scheduler(make(0, list(range(10))), make(1, list(range(10))), tokens=6)
    assert step(one) == {0: (0, 6)}
    assert step(one) == {0: (6, 10), 1: (8, 10)}


def test_max_num_seqs_holds_and_the_next_one_takes_the_place() -> None:
    one = scheduler(make(0, [1]), make(1, [2], max_tokens=2), make(2, [3], max_tokens=1), seqs=2)
    assert [list(step(one)) for _ in range(3)] == [[0, 1], [0, 1], [0, 2]]


def test_the_last_admitted_gives_way_and_comes_back_in_order() -> None:
    # Five blocks of two tokens; each sequence takes a block for its prompt, its third and its fifth token.
    sequences = [make(i, [i, 9], max_tokens=5) for i in range(3)]
    one = scheduler(*sequences, blocks=5, block_size=2, policy=EAGER)
    # Two are admitted: a third would not leave one more block for each.
    assert step(one) == {0: (0, 2), 1: (0, 2)}
    late = make(3, [3], max_tokens=1)
    one.add([late])
    assert step(one) == {0: (2, 3), 1: (2, 3)}
    assert step(one) == {0: (3, 4), 1: (3, 4)}
    assert step(one) == {0: (4, 5)}
    assert sequences[1].status is Status.WAITING
    assert sequences[1].preemptions == one.stats().preemptions == 1
    assert step(one) == {0: (5, 6)}
    # It comes back before those that never ran, with its generated tokens, and finds its full blocks in the cache.
    assert sequences[1].output == [1, 1, 1]
    assert step(one) == {1: (4, 5)}
    run_to_the_end(one)
    assert [s.output for s in (*sequences, late)] == [[1] * 5] * 3 + [[1]]


def test_a_prompt_given_up_halfway_leaves_only_what_was_computed() -> None:
    first, second = make(0, [1, 2], max_tokens=6), make(1, list(range(10, 20)), max_tokens=3)
    one = scheduler(first, second, blocks=14, block_size=1, tokens=3, policy=EAGER)
    assert step(one) == {0: (0, 2), 1: (0, 1)}
    assert step(one) == {0: (2, 3), 1: (1, 3)}
    assert step(one) == {0: (3, 4), 1: (3, 5)}
    assert step(one) == {0: (4, 5)}
    assert (second.computed, second.status) == (0, Status.WAITING)
    while first.finish_reason is None:
        step(one)
    assert step(one) == {1: (5, 8)}


def test_the_step_that_preempts_admits_nobody_even_where_nearly_all_is_shared() -> None:
    # Twins in lockstep fill a block each at every step, the second one's in vain: all its blocks are copies.
    twins = [make(0, [1]), make(1, [1])]
    one = scheduler(*twins, blocks=9, block_size=1, policy=EAGER)
    while not twins[1].preemptions:
        spans = step(one)
    assert spans == {0: (4, 5)}
    assert step(one) == {0: (5, 6), 1: (4, 5)}


def test_a_new_arrival_waits_behind_a_preempted_one() -> None:
    first, second = make(0, [1, 2], max_tokens=7), make(1, [3, 4], max_tokens=7)
    one = scheduler(first, second, blocks=4, block_size=2, seqs=2, policy=EAGER)
    while not second.preemptions:
        step(one)
    one.add([make(2, [5])])
    while first.finish_reason is None:
        step(one)
    assert next(iter(step(one))) == 1


def test_what_can_never_fit_is_refused_at_once() -> None:
    one = scheduler(blocks=3, block_size=4)
    # The last generated token is never computed: 12 places are enough for 13 tokens.
    assert one.add([make(0, [1] * 5, max_tokens=8)]) == []
    big = make(1, [1] * 6, max_tokens=8)
    assert one.add([big]) == [Refusal(big, blocks_needed=4, blocks_available=3, block_size=4)]
    assert one.stats().waiting == 1
    run_to_the_end(one)


def test_stop_wins_over_length_and_the_stop_token_is_kept() -> None:
    sequences = [make(0, [1], max_tokens=1, stop=frozenset({7})), make(1, [1], max_tokens=1)]
    one = scheduler(*sequences)
    step(one, token=7)
    assert [s.finish_reason for s in sequences] == [FinishReason.STOP, FinishReason.LENGTH]
    assert [s.output for s in sequences] == [[7], [7]]
    assert one.stats().blocks_used == 0


def test_the_probe_sees_every_token_once_the_stop_token_too() -> None:
    class Probe:
        def __init__(self) -> None:
            self.seen: list[int] = []

        def push(self, token: int) -> bool:
            self.seen.append(token)
            return token == 5

    probes = [Probe(), Probe()]
    sequences = [
        Sequence(i, [i], SamplingParams(max_tokens=9, stop_token_ids=frozenset({7})), probes[i]) for i in range(2)
    ]
    one = scheduler(*sequences)
    step(one, token=3)
    plan = one.schedule()
    assert plan is not None
    one.commit(plan, StepResult([5, 7]))
    assert [probe.seen for probe in probes] == [[3, 5], [3, 7]]
    assert [s.finish_reason for s in sequences] == [FinishReason.STOP, FinishReason.STOP]
    assert one.schedule() is None


def test_a_plan_is_committed_before_the_next() -> None:
    one = scheduler(make(0, [1, 2]))
    plan = one.schedule()
    assert plan is not None
    with pytest.raises(RuntimeError, match="under way"):
        one.schedule()
    one.commit(plan, StepResult([1]))
    with pytest.raises(ValueError, match="under way"):
        one.commit(plan, StepResult([1]))


def test_a_plan_does_not_change_after_it_is_made() -> None:
    one = scheduler(make(0, [1, 2, 3, 4]))
    plan = one.schedule()
    assert plan is not None
    table = list(plan.scheduled[0].block_table)
    one.commit(plan, StepResult([1]))
    step(one)
    assert list(plan.scheduled[0].block_table) == table
    assert plan.scheduled[0].tokens == [1, 2, 3, 4]


def test_wiring_faults_are_told() -> None:
    _, kv = scheduler_for(Capacity(4, 4, 1, 1), None)
    with pytest.raises(ValueError, match="not the runner's"):
        Scheduler(Capacity(5, 4, 1, 1), kv)
    one = scheduler(make(0, [1]))
    with pytest.raises(ValueError, match="0 or 1 ahead"):
        Scheduler(Capacity(4, 4, 1, 1, steps_ahead=2), kv)
    with pytest.raises(ValueError, match="added before"):
        one.add([make(0, [2])])
