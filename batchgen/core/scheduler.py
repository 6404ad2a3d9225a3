"""Who computes what in the next step."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

from batchgen.core.bound import Work, work_of_output
from batchgen.core.chunk import chunk_stop, is_complete, known_tokens, pooled_span, scored_span
from batchgen.core.kv_manager import KVManager, Match
from batchgen.core.lengths import LengthEstimator, expected_tokens
from batchgen.core.logprobs import TokenCounts
from batchgen.core.policy import OFFLINE, Demand, Policy
from batchgen.core.prefix_tree import PrefixNode, PrefixTree
from batchgen.core.sequence import FinishReason, Pooling, Sequence, Status
from batchgen.core.step import BlockCopy, Capacity, ScheduledSequence, StepPlan, StepResult

__all__ = ["Refusal", "Scheduler", "SchedulerStats"]


@dataclass(frozen=True, slots=True)
class Refusal:
    """A sequence that can't run even with the whole cache to itself."""

    sequence: Sequence
    blocks_needed: int
    blocks_available: int
    block_size: int


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """Counts at one moment; totals are since the start."""

    running: int
    waiting: int
    blocks_used: int
    blocks_total: int
    steps: int
    computed_tokens: int
    """Tokens that went through the model, those computed again after a preemption included."""
    cached_tokens: int
    """Prompt tokens that first admissions found in the cache."""
    generated_tokens: int
    preemptions: int
    work: Work
    """What could not be done without: of the prompts of all that was added, and of the outputs that are finished."""


class Scheduler:
    """Continuous batching over one counter a sequence: `computed` catches up with `length`, in chunks or at once.

    Running sequences come first, then waiting ones in the policy's order. A sequence is admitted when the cache is
    expected to hold it and all others to their ends. When a running sequence finds no free block all the same, a victim
    behind it gives its blocks back and waits at the front. The oldest is never preempted for another and fits alone, so
    every step makes progress and every sequence ends.

    A step may be planned while the one before is under way. What it computes is certain: the tokens that it goes on
    from are awaited, and a sequence that turns out to have ended with them has been planned once too often, which its
    neighbours don't notice. What depends on the answer otherwise is left until it is there.
    """

    def __init__(self, capacity: Capacity, kv: KVManager, policy: Policy = OFFLINE) -> None:
        """Raises `ValueError` where the capacity and the manager's blocks differ."""
        if (kv.num_blocks, kv.block_size) != (capacity.num_blocks, capacity.block_size):
            raise ValueError("the KV manager's blocks are not the runner's")
        if capacity.steps_ahead not in (0, 1):
            raise ValueError(f"steps are planned 0 or 1 ahead, not {capacity.steps_ahead}")
        self._capacity = capacity
        self._kv = kv
        self._policy = policy
        self._lengths = LengthEstimator()
        self._node_of: dict[int, PrefixNode] = {}
        """seq_id -> the longest beginning that it shares, for all that run or wait."""
        self._waiting: deque[Sequence] = deque()
        """Preempted ones, then those that never ran."""
        self._running: list[Sequence] = []
        self._by_id: dict[int, Sequence] = {}
        self._promised = 0
        """Blocks that the running ones take at most, had each its own."""
        self._cache_is_full = False
        """The next sequence did not fit, and nothing has been freed since."""
        self._under_way: deque[StepPlan] = deque()
        """Plans that are not committed, in order."""
        self._steps = self._computed = self._cached = self._generated = self._preemptions = 0
        self._work = Work()

    def add(self, window: SequenceOf[Sequence]) -> list[Refusal]:
        """Queue sequences, and order them with all that wait already. Their ids must be new.

        Returns those that can never run.
        """
        refused: list[Refusal] = []
        taken: list[Sequence] = []
        for sequence in window:
            if (needed := self._at_most(sequence)) > self._kv.num_blocks:
                refused.append(Refusal(sequence, needed, self._kv.num_blocks, self._kv.block_size))
                continue
            if sequence.seq_id in self._by_id:
                raise ValueError(f"sequence {sequence.seq_id} was added before")
            self._by_id[sequence.seq_id] = sequence
            taken.append(sequence)
        if taken:
            self._replan(taken)
        return refused

    def schedule(self) -> StepPlan | None:
        """Plan the next step; None where nothing is left to do before a plan under way is committed.

        Raises `RuntimeError` where more plans are under way than the runner takes: the index has the blocks that they
        fill already, so none can be dropped for another one.
        """
        if len(self._under_way) > self._capacity.steps_ahead:
            raise RuntimeError("commit the plan under way first")
        if self._under_way and not self._is_certain():
            return None
        # The runner computes in order: all that was planned so far is there when this plan's copies are made.
        self._kv.settle()
        planned: list[ScheduledSequence] = []
        copies: list[BlockCopy] = []
        budget = self._capacity.max_num_batched_tokens
        # Of the rows of logits one is kept for each running sequence, so that all of them move on.
        rows = self._capacity.max_num_seqs - len(self._running)
        preempted_before = self._preemptions
        seen = 0
        while seen < len(self._running) and budget > 0:
            sequence = self._running[seen]
            stop = chunk_stop(sequence, budget, rows + 1)
            if stop > sequence.computed:
                if not self._make_room(sequence, stop, seen):
                    break
                planned.append(self._plan(sequence, stop))
                budget -= len(planned[-1].tokens)
                rows -= planned[-1].rows - 1
            seen += 1
        # Sequences behind the budget stay for the next step, and nobody is admitted past them.
        if seen == len(self._running) and self._preemptions == preempted_before:
            copies = self._admit(planned, budget, rows)
        if not planned:
            return None
        self._under_way.append(StepPlan(tuple(planned), tuple(copies)))
        return self._under_way[-1]

    def commit(self, plan: StepPlan, result: StepResult) -> list[Sequence]:
        """Take the step's result: advance counters, append tokens. Returns the sequences that are finished now."""
        if not self._under_way or plan is not self._under_way[0]:
            raise ValueError("the plan is not the first one under way")
        self._under_way.popleft()
        for (scheduled, _), scores in zip(plan.scored, result.scores, strict=True):
            self._by_id[scheduled.seq_id].prompt_logprobs += scores
        for (scheduled, _), pooled in zip(plan.pooled, result.pooled, strict=True):
            self._by_id[scheduled.seq_id].pooled = pooled
        logprobs = result.logprobs or [None] * len(plan.sampled)
        for scheduled, token, logprob in zip(plan.sampled, result.tokens, logprobs, strict=True):
            sequence = self._by_id.get(scheduled.seq_id)
            if sequence is None:  # ended while this was under way
                continue
            sequence.awaited -= 1
            if logprob is not None:
                sequence.logprobs.append(logprob)
            if not self._append(sequence, token):
                self._append_forced(sequence)
        finished = [
            sequence for s in plan.scheduled if (sequence := self._by_id.get(s.seq_id)) and is_complete(sequence, s)
        ]
        for sequence in finished:
            self._finish(sequence)
        if finished:
            self._running = [sequence for sequence in self._running if sequence.status is Status.RUNNING]
        self._steps += 1
        self._computed += plan.num_tokens
        return finished

    def stats(self) -> SchedulerStats:
        """Where the scheduler stands."""
        return SchedulerStats(
            running=len(self._running),
            waiting=len(self._waiting),
            blocks_used=self._kv.num_blocks - self._kv.num_free,
            blocks_total=self._kv.num_blocks,
            steps=self._steps,
            computed_tokens=self._computed,
            cached_tokens=self._cached,
            generated_tokens=self._generated,
            preemptions=self._preemptions,
            work=self._work,
        )

    def running(self) -> list[dict[str, int]]:
        """What each running sequence holds, for reports: tokens of its prompt, generated, computed; preemptions."""
        return [
            {
                "seq_id": sequence.seq_id,
                "prompt": len(sequence.prompt),
                "output": len(sequence.output),
                "computed": sequence.computed,
                "preemptions": sequence.preemptions,
            }
            for sequence in tuple(self._running)
        ]

    def _replan(self, arrived: list[Sequence]) -> None:
        """Order all that never ran, and count anew who will want which beginning."""
        known = [*self._running, *self._waiting]
        before, tree = PrefixTree(known, self._kv.block_size), PrefixTree([*known, *arrived], self._kv.block_size)
        self._work += Work(
            distinct_tokens=tree.distinct_tokens - before.distinct_tokens,
            distinct_depth=tree.distinct_depth - before.distinct_depth,
        )
        self._node_of = tree.node_of
        order = self._policy.order(tree, lambda one: expected_tokens(self._rate(one), one.params.max_tokens))
        preempted = [sequence for sequence in self._waiting if sequence.preemptions]
        fresh = (one for one in order if one.status is Status.WAITING and not one.preemptions)
        self._waiting = deque([*preempted, *fresh])
        self._kv.adopt(tree)
        tree.forget_sequences()
        self._cache_is_full = False

    def _is_certain(self) -> bool:
        """Whether the next step can be planned now: what runs depends on the answers to come by its last token alone,
        and the cache holds it without a preemption."""
        missing = 0
        for sequence in self._running:
            if sequence.guide is not None or sequence.params.penalised or sequence.pooling is Pooling.MEAN:
                return False
            missing += max(0, self._kv.missing(sequence, known_tokens(sequence)))
        return missing <= self._kv.num_free

    def _make_room(self, sequence: Sequence, stop: int, planned: int) -> bool:
        """Reserve blocks for the tokens before `stop`, preempting as needed; False where that hit the sequence itself.

        Only this sequence, the first that is not `planned`, and those behind it are preempted.
        """
        while self._kv.missing(sequence, stop) > self._kv.num_free:
            behind = self._running[planned + 1 :] if planned == 0 else self._running[planned:]
            loser = behind[self._policy.victim([self._demand(one) for one in behind])] if behind else sequence
            self._preempt(loser)
            if loser is sequence:
                return False
        self._kv.extend(sequence, stop)
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self._running.remove(sequence)
        self._promised -= self._at_most(sequence)
        for node in self._node_of[sequence.seq_id].path():
            node.users += 1
        self._release(sequence)
        sequence.computed = 0
        sequence.status = Status.WAITING
        sequence.preemptions += 1
        self._preemptions += 1
        self._waiting.appendleft(sequence)
        self._cache_is_full = False

    def _release(self, sequence: Sequence) -> None:
        """Give its blocks back, those published before whose last token was not known when it was planned."""
        self._kv.publish(sequence, min(sequence.computed, sequence.length), self._node_of[sequence.seq_id])
        self._kv.release(sequence)

    def _admit(self, planned: list[ScheduledSequence], budget: int, rows: int) -> list[BlockCopy]:
        """Begin waiting sequences while they fit; returns what is to be copied for them."""
        copies: list[BlockCopy] = []
        while self._waiting and min(budget, rows) > 0 and len(self._running) < self._capacity.max_num_seqs:
            sequence = self._waiting[0]
            if self._cache_is_full or not self._fits(sequence, match := self._kv.match(sequence)):
                self._cache_is_full = True
                break
            self._waiting.popleft()
            for node in self._node_of[sequence.seq_id].path():
                node.users -= 1
            self._promised += self._at_most(sequence)
            # All blocks of the known tokens are reserved at once, so that a prompt in chunks never waits halfway.
            opened = self._kv.open(sequence, match, sequence.length)
            copies += () if opened.copy is None else (opened.copy,)
            sequence.computed = opened.tokens
            if sequence.preemptions == 0:
                sequence.cached = sequence.computed
                self._cached += sequence.cached
            sequence.status = Status.RUNNING
            self._running.append(sequence)
            planned.append(self._plan(sequence, chunk_stop(sequence, budget, rows)))
            budget -= len(planned[-1].tokens)
            rows -= planned[-1].rows
        return copies

    def _fits(self, sequence: Sequence, match: Match) -> bool:
        """Whether the cache has room for the sequence beside those that run. One that is alone may fill it."""
        needed = self._kv.blocks_for(sequence.length) - len(match) + match.idle
        # What others wait for is kept, beside what this one takes of it.
        free = self._kv.num_free - max(0, self._kv.num_wanted - match.idle)
        if not self._running:
            return needed <= self._kv.num_free
        if self._promised + self._at_most(sequence) + self._kv.num_wanted <= self._kv.num_blocks:
            return True
        # One block more for each, so that the next step does not undo the admission.
        if needed + len(self._running) + 1 > free:
            return False
        candidate = self._expectation(sequence, needed, needed - match.idle)
        return self._policy.fits([*map(self._demand, self._running)], candidate, free, self._kv.block_size)

    def _demand(self, sequence: Sequence) -> Demand:
        return self._expectation(sequence, *self._kv.held(sequence))

    def _expectation(self, sequence: Sequence, blocks: int, own: int) -> Demand:
        limit = sequence.params.max_tokens - len(sequence.output)
        return Demand(blocks, own, self._rate(sequence), limit)

    def _rate(self, sequence: Sequence) -> float:
        return self._lengths.rate(self._node_of[sequence.seq_id], self._generated)

    def _at_most(self, sequence: Sequence) -> int:
        """Blocks that a sequence takes in the end, had it all to itself."""
        # The last token that is generated needs no place: nothing is computed after it.
        return self._kv.blocks_for(len(sequence.prompt) + max(0, sequence.params.max_tokens - 1))

    def _plan(self, sequence: Sequence, stop: int) -> ScheduledSequence:
        self._kv.publish(sequence, min(stop, sequence.length), self._node_of[sequence.seq_id])
        params = sequence.params
        samples = stop == sequence.length + sequence.awaited and params.max_tokens > 0
        if samples and params.penalised and sequence.counts is None:
            # Only repetition_penalty looks at the prompt.
            sequence.counts = TokenCounts(() if params.repetition_penalty == 1.0 else sequence.prompt)
        follows = None if stop <= sequence.length else self._under_way[-1].row_of[sequence.seq_id]
        scheduled = ScheduledSequence(
            seq_id=sequence.seq_id,
            start=sequence.computed,
            tokens=sequence.tokens(sequence.computed, stop) if follows is None else (0,),
            block_table=tuple(self._kv.table(sequence)),
            sampling=params if samples else None,
            guide=sequence.guide,
            counts=sequence.counts,
            banned=params.stop_token_ids
            if len(sequence.output) + sequence.awaited < params.min_tokens
            else frozenset(),
            scored=scored_span(sequence, stop),
            pooled=pooled_span(sequence, stop),
            follows=follows,
        )
        sequence.computed = stop
        sequence.reached = max(sequence.reached, stop)
        sequence.awaited += samples
        return scheduled

    def _append(self, sequence: Sequence, token: int) -> bool:
        """Append a token; whether it ends the sequence."""
        sequence.output.append(token)
        self._generated += 1
        if sequence.counts is not None:
            sequence.counts.push(token)
        if sequence.guide is not None:
            sequence.guide.push(token)
        sequence.finish_reason = _finish_reason(sequence, token)
        return sequence.finish_reason is not None

    def _append_forced(self, sequence: Sequence) -> None:
        """Append what the guide leaves no choice about: those tokens are computed together in the next step.

        Not where log-probabilities are wanted, since each needs the logits before it.
        """
        if sequence.guide is not None and sequence.params.logprobs is None:
            for token in sequence.guide.forced():
                if self._append(sequence, token):
                    return

    def _finish(self, sequence: Sequence) -> None:
        sequence.finish_reason = sequence.finish_reason or FinishReason.LENGTH
        sequence.status = Status.FINISHED
        sequence.counts = None
        self._release(sequence)
        self._work += work_of_output(len(sequence.prompt), len(sequence.output))
        self._lengths.learn(sequence, self._node_of.pop(sequence.seq_id))
        self._promised -= self._at_most(sequence)
        self._kv.forget(sequence)
        del self._by_id[sequence.seq_id]
        self._cache_is_full = False


def _finish_reason(sequence: Sequence, token: int) -> FinishReason | None:
    found = sequence.probe is not None and sequence.probe.push(token)
    params, generated = sequence.params, len(sequence.output)
    if generated > params.min_tokens and (found or token in params.stop_token_ids):
        return FinishReason.STOP
    return FinishReason.LENGTH if generated == params.max_tokens else None
