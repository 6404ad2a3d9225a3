"""A model runner in plain Python that checks what the scheduler asks of it."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, replace
from hashlib import blake2b

from batchgen.core.kv_manager import KVManager
from batchgen.core.logprobs import TokenLogprobs
from batchgen.core.prefix_index import PrefixIndex
from batchgen.core.sampling import SamplingParams
from batchgen.core.scheduler import Refusal, Scheduler
from batchgen.core.sequence import Sequence
from batchgen.core.step import Answer, Capacity, ScheduledSequence, StepPlan, StepResult

VOCAB = 1_000


def history_after(history: bytes, token: int) -> bytes:
    """A digest that stands for all tokens so far, chained token by token."""
    return blake2b(history + token.to_bytes(8, "little"), digest_size=8).digest()


def next_token(history: bytes, params: SamplingParams, allowed: SequenceOf[int] = range(VOCAB)) -> int:
    """The fake model: a function of everything before and of the request's own settings."""
    digest = blake2b(history + params.seed.to_bytes(8, "little"), digest_size=8).digest()
    return allowed[int.from_bytes(digest, "little") % len(allowed)]


def fake_logprobs(history: bytes, token: int) -> TokenLogprobs:
    """What the fake model says of a token after a history."""
    return TokenLogprobs(token, -float(int.from_bytes(history_after(history, token), "little")), 1)


def hidden_state(history: bytes) -> float:
    """The fake model's one hidden value at the last token of a history."""
    return float(int.from_bytes(history[:4], "little"))


def mask_of(allowed: SequenceOf[int]) -> bytes:
    """A guide's mask that allows these tokens."""
    return sum(1 << token for token in set(allowed)).to_bytes(-(-VOCAB // 32) * 4, "little")


@dataclass(frozen=True, slots=True)
class _Slot:
    """What stands for the keys and values of one token."""

    position: int
    token: int
    history: bytes
    """Of all tokens up to and including this one."""


class FakeRunner:
    """Remembers what each cache slot holds, and fails when what a sequence reads is not one unbroken history.

    Whose history it is shows in the answer, a digest of all of it. As in a real layer, all slots of a step are written
    before any is read.
    """

    def __init__(self, capacity: Capacity) -> None:
        self._capacity = capacity
        self._slots: dict[int, _Slot] = {}
        self._chosen: list[tuple[int, int]] = []
        """(seq_id, token) of the last step."""
        self.steps = 0
        self.computed_tokens = 0

    @property
    def capacity(self) -> Capacity:
        return self._capacity

    def begin(self, plan: StepPlan) -> Answer:
        result = self._execute(plan)
        return lambda: result

    def _execute(self, plan: StepPlan) -> StepResult:
        self._check_plan(plan)
        plan = replace(plan, scheduled=tuple(map(self._with_token, plan.scheduled)))
        self._copy(plan)
        self._write(plan)
        self.steps += 1
        self.computed_tokens += plan.num_tokens
        for s in plan.scheduled:
            self._read(s)
        tokens = [self._choose(s, s.sampling) for s in plan.scheduled if s.sampling is not None]
        self._chosen = [(s.seq_id, token) for s, token in zip(plan.sampled, tokens, strict=True)]
        return StepResult(
            tokens,
            [
                fake_logprobs(self._history(s, s.stop - 1), token) if s.sampling and s.sampling.logprobs else None
                for s, token in zip(plan.sampled, tokens, strict=True)
            ],
            [
                [fake_logprobs(self._history(s, p), token) for p, token in enumerate(span.tokens, start=span.start)]
                for s, span in plan.scored
            ],
            [
                array(
                    "d",
                    [sum((hidden_state(self._history(s, p)) for p in range(span.start, s.stop)), *span.so_far or ())],
                )
                for s, span in plan.pooled
            ],
        )

    def _with_token(self, s: ScheduledSequence) -> ScheduledSequence:
        """The same with the token that was not known when it was planned."""
        if s.follows is None:
            return s
        assert self._capacity.steps_ahead
        assert s.tokens == (0,)
        owner, token = self._chosen[s.follows]
        assert owner == s.seq_id, "it follows another sequence's token"
        return replace(s, tokens=(token,))

    def _choose(self, s: ScheduledSequence, params: SamplingParams) -> int:
        mask = None if s.guide is None else s.guide.mask()
        allowed = [token for token in range(VOCAB) if mask is None or mask[token // 8] >> token % 8 & 1]
        if s.counts is not None:
            context = [self._slots[self._slot(s, position)].token for position in range(s.stop)]
            generated = Counter(context[s.stop - sum(s.counts.generated) :])
            expected = {token: generated[token] for token in (generated if params.repetition_penalty == 1 else context)}
            assert dict(zip(s.counts.ids, s.counts.generated, strict=True)) == expected, "counts of another context"
        return next_token(self._history(s, s.stop - 1), params, [t for t in allowed if t not in s.banned])

    def close(self) -> None:
        self._slots.clear()

    def _check_plan(self, plan: StepPlan) -> None:
        capacity = self._capacity
        assert 0 < plan.num_tokens <= capacity.max_num_batched_tokens
        assert 0 < len(plan.scheduled) <= capacity.max_num_seqs
        assert len({s.seq_id for s in plan.scheduled}) == len(plan.scheduled), "a sequence twice in one step"
        for s in plan.scheduled:
            assert s.tokens
            assert len(s.block_table) * capacity.block_size >= s.stop, "the table does not cover the tokens"
            assert len(set(s.block_table)) == len(s.block_table), "a block twice in one table"
            assert all(0 <= block < capacity.num_blocks for block in s.block_table)
            if s.scored is not None:
                assert s.start <= s.scored.start
                assert s.scored.tokens
                assert s.scored.start + len(s.scored.tokens) <= s.stop, "a position is scored that is not computed"
            if s.pooled is not None:
                assert s.start <= s.pooled.start < s.stop
        assert sum(s.rows for s in plan.scheduled) <= capacity.max_num_seqs, (
            "more rows of logits than there is room for"
        )
        written = [
            block
            for s in plan.scheduled
            for block in s.block_table[s.start // capacity.block_size : -(-s.stop // capacity.block_size)]
        ]
        assert len(set(written)) == len(written), "a block is written by two sequences"

    def _copy(self, plan: StepPlan) -> None:
        size = self._capacity.block_size
        for copy in plan.copies:
            assert 0 < copy.tokens < size
            for offset in range(size):
                self._slots.pop(copy.target * size + offset, None) if copy.target != copy.source else None
            for offset in range(copy.tokens):
                self._slots[copy.target * size + offset] = self._slots[copy.source * size + offset]

    def _write(self, plan: StepPlan) -> None:
        """Fill the step's slots. The histories need their predecessors, which another sequence of the step may write;
        so tokens go in order of position."""
        entries = sorted(
            ((s.start + i, token, s) for s in plan.scheduled for i, token in enumerate(s.tokens)), key=lambda e: e[0]
        )
        for position, _, s in entries:
            self._slots.pop(self._slot(s, position), None)
        for position, token, s in entries:
            before = b"" if position == 0 else self._history(s, position - 1)
            self._slots[self._slot(s, position)] = _Slot(position, token, history_after(before, token))

    def _read(self, s: ScheduledSequence) -> bytes:
        """Walk all that the last token attends to; every slot must continue the one before."""
        history = b""
        for position in range(s.stop):
            slot = self._slots.get(self._slot(s, position))
            assert slot is not None, f"sequence {s.seq_id} reads position {position}, which nobody wrote"
            assert slot.position == position
            assert slot.history == history_after(history, slot.token), f"sequence {s.seq_id} reads foreign keys"
            if position >= s.start:
                assert slot.token == s.tokens[position - s.start]
            history = slot.history
        return history

    def _history(self, s: ScheduledSequence, position: int) -> bytes:
        slot = self._slots.get(self._slot(s, position))
        assert slot is not None, f"sequence {s.seq_id} builds on position {position}, which nobody wrote"
        assert slot.position == position
        return slot.history

    def _slot(self, s: ScheduledSequence, position: int) -> int:
        size = self._capacity.block_size
        return s.block_table[position // size] * size + position % size


class LateRunner(FakeRunner):
    """Computes a plan only when it is asked for the answer."""

    def begin(self, plan: StepPlan) -> Answer:
        return lambda: self._execute(plan)


def expected_output(prompt: SequenceOf[int], params: SamplingParams) -> list[int]:
    """What the fake model generates for a prompt alone, without any engine."""
    history = b""
    for token in prompt:
        history = history_after(history, token)
    output: list[int] = []
    while len(output) < params.max_tokens:
        token = next_token(history, params)
        output.append(token)
        if token in params.stop_token_ids:
            break
        history = history_after(history, token)
    return output


def scheduler_for(capacity: Capacity, index: PrefixIndex | None) -> tuple[Scheduler, KVManager]:
    """A scheduler and its KV manager."""
    kv = KVManager(capacity.num_blocks, capacity.block_size, index)
    return Scheduler(capacity, kv), kv


__all__ = [
    "VOCAB",
    "FakeRunner",
    "LateRunner",
    "Refusal",
    "Sequence",
    "expected_output",
    "fake_logprobs",
    "hidden_state",
    "history_after",
    "mask_of",
    "next_token",
    "scheduler_for",
]
