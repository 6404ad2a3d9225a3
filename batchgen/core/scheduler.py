"""Who computes what in the next step."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from batchgen.core.kv_manager import KVManager
from batchgen.core.ordering import victim
from batchgen.core.sequence import FinishReason, Sequence, Status
from batchgen.core.step import Capacity, ScheduledSequence, StepPlan, StepResult

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
        needed = self._kv.blocks_for(len(sequence.prompt) + sequence.params.max_tokens - 1)
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
        preempted_before = self._preemptions
        while len(planned) < len(self._running) and budget > 0:
            sequence = self._running[len(planned)]
            stop = min(sequence.length, sequence.computed + budget)
            if not self._make_room(sequence, stop):
                break
            planned.append(self._plan(sequence, stop))
            budget -= stop - sequence.computed
        # Sequences behind the budget stay for the next step, and nobody is admitted past them.
        if len(planned) == len(self._running) and self._preemptions == preempted_before:
            self._admit(planned, budget)
        if planned:
            self._outstanding = StepPlan(tuple(planned))
        return self._outstanding

    def commit(self, plan: StepPlan, result: StepResult) -> list[Sequence]:
        """Take the step's result: advance counters, append tokens. Returns the sequences that are finished now."""
        if plan is not self._outstanding:
            raise ValueError("the plan is not the one that schedule() returned last")
        self._outstanding = None
        for scheduled in plan.scheduled:
            self._by_id[scheduled.seq_id].computed = scheduled.stop
        finished: list[Sequence] = []
        for scheduled, token in zip(plan.sampled, result.tokens, strict=True):
            sequence = self._by_id[scheduled.seq_id]
            sequence.output.append(token)
            sequence.finish_reason = _finish_reason(sequence, token)
            if sequence.finish_reason is not None:
                sequence.status = Status.FINISHED
                self._kv.release(sequence)
                self._kv.forget(sequence)
                del self._by_id[sequence.seq_id]
                finished.append(sequence)
        if finished:
            self._running = [sequence for sequence in self._running if sequence.status is Status.RUNNING]
        self._steps += 1
        self._computed += plan.num_tokens
        self._generated += len(plan.sampled)
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

    def _admit(self, planned: list[ScheduledSequence], budget: int) -> None:
        while self._waiting and budget > 0 and len(self._running) < self._capacity.max_num_seqs:
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
            stop = min(sequence.length, sequence.computed + budget)
            planned.append(self._plan(sequence, stop))
            budget -= stop - sequence.computed

    def _plan(self, sequence: Sequence, stop: int) -> ScheduledSequence:
        self._kv.publish(sequence, stop)
        return ScheduledSequence(
            seq_id=sequence.seq_id,
            start=sequence.computed,
            tokens=sequence.tokens(sequence.computed, stop),
            block_table=tuple(self._kv.table(sequence)),
            sampling=sequence.params if stop == sequence.length else None,
        )


def _finish_reason(sequence: Sequence, token: int) -> FinishReason | None:
    found = sequence.probe is not None and sequence.probe.push(token)
    if found or token in sequence.params.stop_token_ids:
        return FinishReason.STOP
    return FinishReason.LENGTH if len(sequence.output) == sequence.params.max_tokens else None
