"""Whatever the blocks, budgets, order and neighbours: each sequence gets the tokens that it gets alone."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchgen.core.kv_manager import KVManager
from batchgen.core.policy import OFFLINE, Policy
from batchgen.core.prefix_index import PrefixIndex
from batchgen.core.sampling import SamplingParams
from batchgen.core.scheduler import Refusal, Scheduler
from batchgen.core.sequence import FinishReason, Sequence, Status
from batchgen.core.step import Answer, Capacity, StepPlan
from tests.fakes import FakeRunner, LateRunner, expected_output, scheduler_for

Request = tuple[tuple[int, ...], SamplingParams]


@st.composite
def workloads(draw: st.DrawFn) -> list[Request]:
    """Requests whose prompts grow from a few stems, so that beginnings of many lengths are shared."""
    stems = draw(st.lists(st.lists(st.integers(0, 3), min_size=6, max_size=24), min_size=1, max_size=3))
    requests: list[Request] = []
    for _ in range(draw(st.integers(1, 12))):
        stem = draw(st.sampled_from(stems))
        own = draw(st.lists(st.integers(0, 3), max_size=10))
        prompt = tuple(stem[: draw(st.integers(1, len(stem)))] + own)
        stop_ids = draw(st.sampled_from([frozenset[int](), frozenset(range(0, 1000, 20))]))
        params = SamplingParams(
            max_tokens=draw(st.integers(1, 24)), seed=draw(st.integers(0, 1)), stop_token_ids=stop_ids
        )
        requests.append((prompt, params))
    return requests


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[Request], Capacity]:
    """Requests, and a cache for them that is too small for the largest one, holds hardly two at once, or all."""
    requests = draw(workloads())
    block_size = draw(st.integers(1, 6))
    needs = [-(-(len(prompt) + params.max_tokens) // block_size) for prompt, params in requests]
    num_blocks = draw(st.integers(max(1, max(needs) - 2), 2 * max(needs)) | st.integers(1, sum(needs)))
    seqs = draw(st.integers(1, 8))
    # Small budgets make small chunks, so that a prompt may be given up before it was computed to its end.
    budget = draw(st.integers(seqs, seqs + 3) | st.integers(seqs, 40))
    return requests, Capacity(
        num_blocks=num_blocks,
        block_size=block_size,
        max_num_seqs=seqs,
        max_num_batched_tokens=budget,
        steps_ahead=draw(st.integers(0, 1)),
    )


def drive(
    scheduler: Scheduler,
    kv: KVManager,
    runner: FakeRunner,
    arrivals: list[list[Sequence]],
    patience: Callable[[], bool] = lambda: True,
) -> tuple[list[Sequence], list[Refusal]]:
    """Run to the end; each further list of arrivals is added after one more step.

    As many steps are planned ahead as the runner takes, and as `patience` allows.
    """
    under_way: deque[tuple[StepPlan, Answer]] = deque()
    finished: list[Sequence] = []
    refused: list[Refusal] = []
    pending = list(arrivals)
    total = sum(s.length + s.params.max_tokens for batch in arrivals for s in batch)
    # Generous, and finite: a preemption costs a whole sequence at most, and the oldest always moves on.
    for _ in range(10 + len(arrivals) + total * (1 + sum(map(len, arrivals)))):
        refused += scheduler.add(pending.pop(0) if pending else [])
        plan = scheduler.schedule()
        kv.check_invariants()
        if plan is not None:
            under_way.append((plan, runner.begin(plan)))
        elif not under_way:
            stats = scheduler.stats()
            assert (stats.running, stats.waiting) == (0, 0), "there is work, and no plan"
            if not pending:
                return finished, refused
            continue
        if plan is None or len(under_way) > runner.capacity.steps_ahead or not patience():
            begun, answer = under_way.popleft()
            finished += scheduler.commit(begun, answer())
            kv.check_invariants()
    raise AssertionError("no end in sight")


def at_random(rng: random.Random) -> Policy:
    """No plan at all: any order, admission by the toss of a coin, any victim."""
    return Policy(
        order=lambda tree, _: rng.sample(tree.sequences(), len(tree.node_of)),
        fits=lambda *_: rng.random() < 0.5,
        victim=lambda running: rng.randrange(len(running)),
    )


@given(
    cases(),
    st.sampled_from([True, True, False]),
    st.booleans(),
    st.integers(1, 4),
    st.sampled_from([FakeRunner, LateRunner]),
    st.randoms(use_true_random=False),
)
def test_outputs_do_not_depend_on_scheduling(
    case: tuple[list[Request], Capacity],
    shared: bool,
    planned: bool,
    waves: int,
    kind: type[FakeRunner],
    rng: random.Random,
) -> None:
    requests, capacity = case
    kv = KVManager(capacity.num_blocks, capacity.block_size, PrefixIndex() if shared else None)
    scheduler = Scheduler(capacity, kv, OFFLINE if planned else at_random(rng))
    runner = kind(capacity)
    sequences = [Sequence(i, prompt, params) for i, (prompt, params) in enumerate(requests)]
    arrivals = [sequences[i::waves] for i in range(waves)]

    finished, refused = drive(scheduler, kv, runner, arrivals, patience=lambda: rng.random() < 0.7)

    assert sorted([s.seq_id for s in finished] + [r.sequence.seq_id for r in refused]) == list(range(len(requests)))
    for refusal in refused:
        assert refusal.blocks_needed > capacity.num_blocks
    for sequence in finished:
        prompt, params = requests[sequence.seq_id]
        assert sequence.output == expected_output(prompt, params)
        stopped = sequence.output[-1] in params.stop_token_ids
        assert sequence.finish_reason == (FinishReason.STOP if stopped else FinishReason.LENGTH)
        assert sequence.status is Status.FINISHED
        assert 0 <= sequence.cached < len(prompt)
    stats = scheduler.stats()
    assert (stats.running, stats.waiting, stats.blocks_used) == (0, 0, 0)
    assert stats.computed_tokens == runner.computed_tokens
    assert stats.steps == runner.steps
    assert stats.preemptions == sum(s.preemptions for s in sequences)


@given(workloads(), st.integers(1, 4), st.integers(1, 8))
def test_a_step_ahead_costs_one_token_of_each_sequence_that_stops(
    requests: list[Request], block_size: int, seqs: int
) -> None:
    """With room for all, and no other difference to steps that wait for each other."""
    capacity = Capacity(num_blocks=1_000, block_size=block_size, max_num_seqs=seqs, max_num_batched_tokens=1_000)
    computed = []
    for steps_ahead in (0, 1):
        scheduler, kv = scheduler_for(replace(capacity, steps_ahead=steps_ahead), None)
        sequences = [Sequence(i, prompt, params) for i, (prompt, params) in enumerate(requests)]
        finished, _ = drive(scheduler, kv, LateRunner(replace(capacity, steps_ahead=steps_ahead)), [sequences])
        assert len(finished) == len(requests)
        computed.append(scheduler.stats().computed_tokens)
    early = sum(len(sequence.output) < sequence.params.max_tokens for sequence in sequences)
    assert computed[1] - computed[0] == early


@given(workloads(), st.integers(1, 8))
def test_with_room_for_all_every_shared_block_is_computed_once(requests: list[Request], block_size: int) -> None:
    capacity = Capacity(num_blocks=500, block_size=block_size, max_num_seqs=64, max_num_batched_tokens=2_000)
    scheduler, kv = scheduler_for(capacity, PrefixIndex())
    sequences = [Sequence(i, prompt, SamplingParams(max_tokens=1)) for i, (prompt, _) in enumerate(requests)]

    finished, _ = drive(scheduler, kv, FakeRunner(capacity), [sequences])

    known: set[tuple[int, ...]] = set()
    expected = 0
    for prompt in (tuple(sequence.prompt) for sequence in finished):  # all in one step, so in the order of admission
        ends = range(block_size, len(prompt) + 1, block_size)
        # A whole prompt is never taken from the cache: its last token must be computed for its logits.
        shared = sum(prompt[:end] in known for end in ends if end < len(prompt))
        expected += len(prompt) - shared * block_size
        known |= {prompt[:end] for end in ends}
    assert len(finished) == len(requests)
    assert scheduler.stats().computed_tokens == expected


@given(cases())
def test_a_preempted_sequence_keeps_its_tokens(case: tuple[list[Request], Capacity]) -> None:
    """Output is only ever appended to, and each token is shown to the probe once."""
    requests, capacity = case
    seen: dict[int, list[int]] = {}

    class Probe:
        def __init__(self, seq_id: int) -> None:
            self.tokens = seen.setdefault(seq_id, [])

        def push(self, token: int) -> bool:
            self.tokens.append(token)
            return len(self.tokens) == 5

    scheduler, kv = scheduler_for(capacity, PrefixIndex())
    sequences = [
        Sequence(i, prompt, SamplingParams(max_tokens=params.max_tokens, seed=params.seed), Probe(i))
        for i, (prompt, params) in enumerate(requests)
    ]
    finished, _ = drive(scheduler, kv, FakeRunner(capacity), [sequences])
    for sequence in finished:
        assert seen[sequence.seq_id] == sequence.output
        assert len(sequence.output) == min(5, sequence.params.max_tokens)
        assert (sequence.finish_reason is FinishReason.STOP) == (len(sequence.output) == 5)


@pytest.mark.parametrize("steps_ahead", [0, 1])
def test_what_was_generated_is_found_in_the_cache(steps_ahead: int) -> None:
    """A block whose last token was awaited when its step was planned, too."""
    capacity = Capacity(num_blocks=20, block_size=4, max_num_seqs=2, max_num_batched_tokens=8, steps_ahead=steps_ahead)
    scheduler, kv = scheduler_for(capacity, PrefixIndex())
    first = Sequence(0, [1, 2], SamplingParams(max_tokens=7))
    drive(scheduler, kv, runner := LateRunner(capacity), [[first]])
    second = Sequence(1, [*first.prompt, *first.output, 3], SamplingParams(max_tokens=1))
    drive(scheduler, kv, runner, [[second]])
    assert second.cached == 8
