"""Who computes what in the next step."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from batchgen.core.kv_manager import KVManager
from batchgen.core.logprobs import TokenCounts
from batchgen.core.ordering import victim
from batchgen.core.sequence import FinishReason, Pooling, Sequence, Status
from batchgen.core.step import Capacity, PooledSpan, ScheduledSequence, ScoredSpan, StepPlan, StepResult

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


class Scheduler:
    """Continuous batching over one counter a sequence: `computed` catches up with `length`, in chunks or at once.

    Running sequences come first, then waiting ones in the order in which they were added. A sequence is admitted when
    its blocks are free and one more for each sequence that then runs. When a running sequence finds no free block, the
    one admitted last gives its blocks back and waits at the front. The oldest is never preempted and fits alone, so
    every step makes progress and every sequence ends.
    """

    def __init__(self, capacity: Capacity, kv: KVManager) -> None:
        """Raises `ValueError` where the capacity and the manager's blocks differ."""
        if (kv.num_blocks, kv.block_size) != (capacity.num_blocks, capacity.block_size):
            raise ValueError("the KV manager's blocks are not the runner's")
        self._capacity = capacity
        self._kv = kv
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self._by_id: dict[int, Sequence] = {}
        self._outstanding: StepPlan | None = None
        self._steps = self._computed = self._cached = self._generated = self._preemptions = 0

    def add(self, sequence: Sequence) -> Refusal | None:
        """Queue a sequence, or say why it can never run. Its id must be new."""
        # The last token that is generated needs no place: nothing is computed after it.
        needed = self._kv.blocks_for(len(sequence.prompt) + max(0, sequence.params.max_tokens - 1))
        if needed > self._kv.num_blocks:
            return Refusal(sequence, needed, self._kv.num_blocks, self._kv.block_size)
        if sequence.seq_id in self._by_id:
            raise ValueError(f"sequence {sequence.seq_id} was added before")
        self._by_id[sequence.seq_id] = sequence
        self._waiting.append(sequence)
        return None

    def schedule(self) -> StepPlan | None:
        """Plan the next step; None where nothing is left to do.

        Raises `RuntimeError` while a plan is not committed: the index has the blocks that it fills already, so it can't
        be dropped for another one.
        """
        if self._outstanding is not None:
            raise RuntimeError("the last plan was not committed")
        planned: list[ScheduledSequence] = []
        budget = self._capacity.max_num_batched_tokens
        # Of the rows of logits one is kept for each running sequence, so that all of them move on.
        rows = self._capacity.max_num_seqs - len(self._running)
        preempted_before = self._preemptions
        while len(planned) < len(self._running) and budget > 0:
            sequence = self._running[len(planned)]
            stop = _stop(sequence, budget, rows + 1)
            if not self._make_room(sequence, stop):
                break
            planned.append(self._plan(sequence, stop))
            budget -= stop - sequence.computed
            rows -= planned[-1].rows - 1
        # Sequences behind the budget stay for the next step, and nobody is admitted past them.
        if len(planned) == len(self._running) and self._preemptions == preempted_before:
            self._admit(planned, budget, rows)
        if planned:
            self._outstanding = StepPlan(tuple(planned))
        return self._outstanding

    def commit(self, plan: StepPlan, result: StepResult) -> list[Sequence]:
        """Take the step's result: advance counters, append tokens. Returns the sequences that are finished now."""
        if plan is not self._outstanding:
            raise ValueError("the plan is not the one that schedule() returned last")
        self._outstanding = None
        for scheduled in plan.scheduled:
            sequence = self._by_id[scheduled.seq_id]
            sequence.computed = scheduled.stop
            sequence.reached = max(sequence.reached, scheduled.stop)
        for (scheduled, _), scores in zip(plan.scored, result.scores, strict=True):
            self._by_id[scheduled.seq_id].prompt_logprobs += scores
        for (scheduled, _), pooled in zip(plan.pooled, result.pooled, strict=True):
            self._by_id[scheduled.seq_id].pooled = pooled
        logprobs = result.logprobs or [None] * len(plan.sampled)
        for scheduled, token, logprob in zip(plan.sampled, result.tokens, logprobs, strict=True):
            sequence = self._by_id[scheduled.seq_id]
            if logprob is not None:
                sequence.logprobs.append(logprob)
            if not self._append(sequence, token):
                self._append_forced(sequence)
        finished = [sequence for s in plan.scheduled if _is_complete(sequence := self._by_id[s.seq_id])]
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

    def _make_room(self, sequence: Sequence, stop: int) -> bool:
        """Reserve blocks for the tokens before `stop`, preempting as needed; False where that hit the sequence itself.

        Only sequences behind this one are preempted, none that this step has planned.
        """
        while self._kv.missing(sequence, stop) > self._kv.num_free:
            loser = victim(self._running)
            self._preempt(loser)
            if loser is sequence:
                return False
        self._kv.extend(sequence, stop)
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self._running.remove(sequence)
        self._kv.release(sequence)
        sequence.computed = 0
        sequence.status = Status.WAITING
        sequence.preemptions += 1
        self._preemptions += 1
        self._waiting.appendleft(sequence)

    def _admit(self, planned: list[ScheduledSequence], budget: int, rows: int) -> None:
        while self._waiting and min(budget, rows) > 0 and len(self._running) < self._capacity.max_num_seqs:
            sequence = self._waiting[0]
            match = self._kv.match(sequence)
            # All blocks of the known tokens are reserved at once, so that a prompt in chunks never waits halfway. One
            # more is left for each sequence that then runs, so that the next step does not undo the admission; only a
            # sequence that is alone may fill the cache.
            needed = self._kv.blocks_for(sequence.length) - len(match) + match.idle
            headroom = len(self._running) + 1 if self._running else 0
            if needed + headroom > self._kv.num_free:
                return
            self._waiting.popleft()
            sequence.computed = self._kv.open(sequence, match, sequence.length)
            if sequence.preemptions == 0:
                sequence.cached = sequence.computed
                self._cached += sequence.cached
            sequence.status = Status.RUNNING
            self._running.append(sequence)
            stop = _stop(sequence, budget, rows)
            planned.append(self._plan(sequence, stop))
            budget -= stop - sequence.computed
            rows -= planned[-1].rows

    def _plan(self, sequence: Sequence, stop: int) -> ScheduledSequence:
        self._kv.publish(sequence, stop)
        params = sequence.params
        samples = stop == sequence.length and params.max_tokens > 0
        if samples and params.penalised and sequence.counts is None:
            # Only repetition_penalty looks at the prompt.
            sequence.counts = TokenCounts(() if params.repetition_penalty == 1.0 else sequence.prompt)
        return ScheduledSequence(
            seq_id=sequence.seq_id,
            start=sequence.computed,
            tokens=sequence.tokens(sequence.computed, stop),
            block_table=tuple(self._kv.table(sequence)),
            sampling=params if samples else None,
            guide=sequence.guide,
            counts=sequence.counts,
            banned=params.stop_token_ids if len(sequence.output) < params.min_tokens else frozenset(),
            scored=_scored(sequence, stop),
            pooled=_pooled(sequence, stop),
        )

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
        self._kv.release(sequence)
        self._kv.forget(sequence)
        del self._by_id[sequence.seq_id]


def _stop(sequence: Sequence, budget: int, rows: int) -> int:
    """Where the next chunk ends that keeps to a budget of tokens and of rows of logits, both at least 1."""
    stop = min(sequence.length, sequence.computed + budget)
    # Each position that was not reached before takes a row, the last one for the next token.
    return stop if sequence.params.prompt_logprobs is None else min(stop, sequence.reached + rows)


def _scored(sequence: Sequence, stop: int) -> ScoredSpan | None:
    top, last = sequence.params.prompt_logprobs, min(stop, len(sequence.prompt) - 1)
    if top is None or sequence.reached >= last:
        return None
    return ScoredSpan(sequence.reached, sequence.prompt[sequence.reached + 1 : last + 1], top)


def _pooled(sequence: Sequence, stop: int) -> PooledSpan | None:
    if sequence.pooling is Pooling.MEAN and sequence.reached < stop:
        return PooledSpan(sequence.reached, sequence.pooled)
    return PooledSpan(stop - 1, None) if sequence.pooling is Pooling.LAST and stop == sequence.length else None


def _is_complete(sequence: Sequence) -> bool:
    scored_only = sequence.params.max_tokens == 0 and sequence.computed == sequence.length
    return sequence.finish_reason is not None or scored_only


def _finish_reason(sequence: Sequence, token: int) -> FinishReason | None:
    found = sequence.probe is not None and sequence.probe.push(token)
    params, generated = sequence.params, len(sequence.output)
    if generated >= params.min_tokens and (found or token in params.stop_token_ids):
        return FinishReason.STOP
    return FinishReason.LENGTH if generated == params.max_tokens else None
