"""What a step computes of one sequence."""

from __future__ import annotations

from batchgen.core.sequence import Pooling, Sequence
from batchgen.core.step import PooledSpan, ScheduledSequence, ScoredSpan

__all__ = ["chunk_stop", "is_complete", "known_tokens", "pooled_span", "scored_span"]


def chunk_stop(sequence: Sequence, budget: int, rows: int) -> int:
    """Where the next chunk ends that keeps to a budget of tokens and of rows of logits, both at least 1."""
    stop = min(known_tokens(sequence), sequence.computed + budget)
    # Each position that was not reached before takes a row, the last one for the next token.
    return stop if sequence.params.prompt_logprobs is None else min(stop, sequence.reached + rows)


def known_tokens(sequence: Sequence) -> int:
    """Tokens that can be computed by now: nothing is after the last one that may be generated."""
    params = sequence.params
    return min(sequence.length + sequence.awaited, len(sequence.prompt) + max(0, params.max_tokens - 1))


def scored_span(sequence: Sequence, stop: int) -> ScoredSpan | None:
    """The prompt's tokens that are scored when all before `stop` are computed."""
    top, last = sequence.params.prompt_logprobs, min(stop, len(sequence.prompt) - 1)
    if top is None or sequence.reached >= last:
        return None
    return ScoredSpan(sequence.reached, sequence.prompt[sequence.reached + 1 : last + 1], top)


def pooled_span(sequence: Sequence, stop: int) -> PooledSpan | None:
    """The positions before `stop` whose hidden states are added up."""
    if sequence.pooling is Pooling.MEAN and sequence.reached < stop:
        return PooledSpan(sequence.reached, sequence.pooled)
    return PooledSpan(stop - 1, None) if sequence.pooling is Pooling.LAST and stop == sequence.length else None


def is_complete(sequence: Sequence, scheduled: ScheduledSequence) -> bool:
    """Whether nothing is left to do after this part of it."""
    scored_only = sequence.params.max_tokens == 0 and scheduled.stop == sequence.length
    return sequence.finish_reason is not None or scored_only
