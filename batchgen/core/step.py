"""The narrow waist: what the scheduler asks of a model runner in one step, and what comes back."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from batchgen.core.logprobs import TokenCounts, TokenLogprobs
from batchgen.core.sampling import SamplingParams
from batchgen.core.sequence import TokenGuide

__all__ = [
    "Answer",
    "BlockCopy",
    "Capacity",
    "ModelRunner",
    "PooledSpan",
    "ScheduledSequence",
    "ScoredSpan",
    "StepPlan",
    "StepResult",
]


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a runner has room for. The scheduler never plans more."""

    num_blocks: int
    """KV-cache blocks; ids are [0, num_blocks)."""
    block_size: int
    """Tokens a block holds."""
    max_num_seqs: int
    """Sequences in one step, at most; also the bound of positions whose logits are wanted."""
    max_num_batched_tokens: int
    """Tokens in one step, at most; at least max_num_seqs."""
    steps_ahead: int = 0
    """Plans that may be begun before the answer to the one before is known: 0 or 1."""


@dataclass(frozen=True, slots=True)
class ScoredSpan:
    """Prompt tokens whose log-probabilities are wanted."""

    start: int
    """The logits of positions [start, start + len(tokens)) are read; the step computes all of them."""
    tokens: SequenceOf[int]
    """tokens[i] is the prompt's token at position start + i + 1."""
    top: int
    """Report so many of the most probable tokens beside each."""


@dataclass(frozen=True, slots=True)
class PooledSpan:
    """Positions whose hidden states, after the final norm, are added up one by one."""

    start: int
    """From here to the last token that the step computes."""
    so_far: array[float] | None
    """The sum before, doubles; None: nothing."""


@dataclass(frozen=True, slots=True)
class ScheduledSequence:
    """The part of one sequence that a step computes: tokens at positions [start, start + len(tokens))."""

    seq_id: int
    start: int
    """Position of tokens[0]. Keys and values of [0, start) are in the block table's blocks when attention reads them:
    computed by an earlier step, or by another sequence of this same step that shares the block."""
    tokens: SequenceOf[int]
    """Token ids to compute, at least one."""
    block_table: SequenceOf[int]
    """Block ids; block_table[p // block_size] holds position p. Covers at least start + len(tokens) positions."""
    sampling: SamplingParams | None
    """How to choose the token that follows the last one, or None where no token is wanted yet."""
    guide: TokenGuide | None = None
    """Whose mask the next token has to keep to."""
    counts: TokenCounts | None = None
    """The context, where `sampling` has penalties."""
    banned: frozenset[int] = frozenset()
    """Tokens that must not come next."""
    scored: ScoredSpan | None = None
    pooled: PooledSpan | None = None
    follows: int | None = None
    """Where the token was not known when this was planned: `tokens` is one 0, which stands for what the plan before
    chooses for its `sampled[follows]`, the same sequence."""

    @property
    def stop(self) -> int:
        """Position after the last token: the context length that the last token sees, itself included."""
        return self.start + len(self.tokens)

    @property
    def rows(self) -> int:
        """Positions whose logits are wanted."""
        return (self.sampling is not None) + (0 if self.scored is None else len(self.scored.tokens))


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """Keys and values of the first tokens of a block, which another block begins with too."""

    source: int
    target: int
    tokens: int
    """How many, at least one and less than a block; what the other slots of the target hold does not matter."""


@dataclass(frozen=True)
class StepPlan:
    """A ragged batch: no sequence occurs twice, no block is written by two of them."""

    scheduled: tuple[ScheduledSequence, ...]
    copies: tuple[BlockCopy, ...] = ()
    """To be done first, in this order: a target may be the source of a copy before it."""

    @cached_property
    def num_tokens(self) -> int:
        """Tokens to compute in this step."""
        return sum(len(s.tokens) for s in self.scheduled)

    @cached_property
    def sampled(self) -> tuple[ScheduledSequence, ...]:
        """The scheduled sequences that want a next token, in plan order."""
        return tuple(s for s in self.scheduled if s.sampling is not None)

    @cached_property
    def reads(self) -> bool:
        """Whether more than the chosen tokens is wanted of the step: log-probabilities, scores or hidden states."""
        chosen = any(s.sampling is not None and s.sampling.logprobs is not None for s in self.scheduled)
        return chosen or bool(self.scored) or bool(self.pooled)

    @cached_property
    def row_of(self) -> Mapping[int, int]:
        """seq_id -> index in `sampled`."""
        return {s.seq_id: row for row, s in enumerate(self.sampled)}

    @cached_property
    def scored(self) -> tuple[tuple[ScheduledSequence, ScoredSpan], ...]:
        """The scheduled sequences whose prompt is scored, in plan order."""
        return tuple((s, s.scored) for s in self.scheduled if s.scored is not None)

    @cached_property
    def pooled(self) -> tuple[tuple[ScheduledSequence, PooledSpan], ...]:
        """The scheduled sequences that are embedded, in plan order."""
        return tuple((s, s.pooled) for s in self.scheduled if s.pooled is not None)


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a runner answers."""

    tokens: SequenceOf[int]
    """The chosen next token of each of `plan.sampled`, in that order."""
    logprobs: SequenceOf[TokenLogprobs | None] = ()
    """Of those tokens, where their `sampling.logprobs` asks for it; empty where none does."""
    scores: SequenceOf[SequenceOf[TokenLogprobs]] = ()
    """For each of `plan.scored` those of its span's tokens."""
    pooled: SequenceOf[array[float]] = ()
    """For each of `plan.pooled` the sum up to the end of its span."""


Answer = Callable[[], StepResult]
"""Waits until a plan is computed and gives its result, or raises what went wrong."""


class ModelRunner(Protocol):
    """Owns weights and KV tensors and computes one plan after another."""

    @property
    def capacity(self) -> Capacity:
        """What this runner has room for; constant over its life."""
        ...

    def begin(self, plan: StepPlan) -> Answer:
        """Begin to compute the plan: write keys and values of every planned token, choose the next tokens.

        Plans are computed in the order in which they are begun. `capacity` says how many may be under way.
        """
        ...

    def close(self) -> None:
        """Give back memory and threads. The runner is of no use afterwards."""
        ...
