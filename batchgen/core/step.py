"""The narrow waist: what the scheduler asks of a model runner in one step, and what comes back."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from batchgen.core.sampling import SamplingParams

__all__ = ["Capacity", "ModelRunner", "ScheduledSequence", "StepPlan", "StepResult"]


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a runner has room for. The scheduler never plans more."""

    num_blocks: int
    """KV-cache blocks; ids are [0, num_blocks)."""
    block_size: int
    """Tokens a block holds."""
    max_num_seqs: int
    """Sequences in one step, at most."""
    max_num_batched_tokens: int
    """Tokens in one step, at most; at least max_num_seqs."""


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

    @property
    def stop(self) -> int:
        """Position after the last token: the context length that the last token sees, itself included."""
        return self.start + len(self.tokens)


@dataclass(frozen=True)
class StepPlan:
    """A ragged batch: no sequence occurs twice, no block is written by two of them."""

    scheduled: tuple[ScheduledSequence, ...]

    @cached_property
    def num_tokens(self) -> int:
        """Tokens to compute in this step."""
        return sum(len(s.tokens) for s in self.scheduled)

    @cached_property
    def sampled(self) -> tuple[ScheduledSequence, ...]:
        """The scheduled sequences that want a next token, in plan order."""
        return tuple(s for s in self.scheduled if s.sampling is not None)


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a runner answers."""

    tokens: SequenceOf[int]
    """The chosen next token of each of `plan.sampled`, in that order."""


class ModelRunner(Protocol):
    """Owns weights and KV tensors and computes one plan at a time."""

    @property
    def capacity(self) -> Capacity:
        """What this runner has room for; constant over its life."""
        ...

    def execute(self, plan: StepPlan) -> StepResult:
        """Compute the plan: write keys and values of every planned token, choose the next tokens."""
        ...

    def close(self) -> None:
        """Give back memory and threads. The runner is of no use afterwards."""
        ...
