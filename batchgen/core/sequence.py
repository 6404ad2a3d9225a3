"""One stream of tokens on its way through the engine."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Protocol

from batchgen.core.logprobs import TokenCounts, TokenLogprobs
from batchgen.core.sampling import SamplingParams

__all__ = ["FinishReason", "Pooling", "Sequence", "Status", "StopProbe", "TokenGuide"]


class Status(Enum):
    """Where a sequence is. Only the scheduler changes it."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class FinishReason(StrEnum):
    """Why a sequence ended, in the words of the request format."""

    STOP = "stop"
    LENGTH = "length"


class Pooling(Enum):
    """Which hidden states make up the embedding of a prompt."""

    LAST = "last"
    """That of the last token."""
    MEAN = "mean"
    """The sum over all tokens, which points where the mean does."""


class StopProbe(Protocol):
    """Watches the text of one sequence for its stop strings. Kept by the sequence, implemented in `batchgen.text`."""

    def push(self, token: int) -> bool:
        """Take the next generated token; return whether the text now contains a stop string.

        Called exactly once for each generated token, in order, also across preemptions.
        """
        ...


class TokenGuide(Protocol):
    """Says which tokens may follow: the grammar of one sequence. Kept by the sequence, implemented in `batchgen.text`.

    Where the grammar accepts nothing but the end, only tokens that end the sequence are allowed.
    """

    def mask(self) -> bytes | None:
        """The tokens that may come next; None: all. A query, asked after the step before has been computed.

        Bit i % 32 of the little-endian 32-bit word i // 32 is token id i; ceil(vocab_size / 32) words.
        """
        ...

    def push(self, token: int) -> None:
        """Take the next generated token, chosen or forced: each exactly once, in order, also across preemptions."""
        ...

    def forced(self) -> SequenceOf[int]:
        """The tokens that must follow now, as far as they are certain; empty where there is a choice. A query.

        Each of them is the only one that `mask` allows at its place, so that choosing one by one gives the same.
        """
        ...


@dataclass(eq=False, slots=True)
class Sequence:
    """A prompt and what was generated for it.

    `computed` is the one counter that the engine needs: how many leading tokens have their keys and values in the
    cache. It catches up with `length`, in one step or in many; there is no prefill phase and no decode phase. Planning
    a step moves it; the tokens that the step chooses are awaited until it is committed.
    """

    seq_id: int
    """Unique within a run; also the order of arrival."""
    prompt: SequenceOf[int]
    """Prompt token ids, at least one."""
    params: SamplingParams
    probe: StopProbe | None = None
    """Stop strings of this sequence; None where it has none."""
    guide: TokenGuide | None = None
    """The grammar of this sequence; None where it has none."""
    pooling: Pooling | None = None
    """What to embed; None where no embedding is wanted. Beside it `params.max_tokens` is 0."""
    output: list[int] = field(default_factory=list)
    """Generated token ids. Only `Scheduler.commit` appends."""
    awaited: int = 0
    """Tokens after those that plans under way choose."""
    computed: int = 0
    """Tokens of prompt, output and awaited ones, from the start, whose keys and values are in the cache once all plans
    under way are computed."""
    reached: int = 0
    """The most that `computed` has ever been: nothing is read from those positions again after a preemption."""
    cached: int = 0
    """Prompt tokens that the first admission found in the cache already."""
    status: Status = Status.WAITING
    finish_reason: FinishReason | None = None
    preemptions: int = 0
    """How often this sequence gave its blocks back under memory pressure."""
    counts: TokenCounts | None = None
    """What the penalties need; kept while the sequence runs, if it has any."""
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    """Of each output token, where `params.logprobs` asks for them."""
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    """Of each prompt token but the first, and but those before `params.prompt_logprobs_start`, where
    `params.prompt_logprobs` asks for them."""
    pooled: array[float] | None = None
    """Sum of hidden states, doubles, where an embedding is wanted: so far, or of a finished sequence."""

    def __post_init__(self) -> None:
        if not self.prompt:
            raise ValueError(f"sequence {self.seq_id}: the prompt is empty")
        if self.params.prompt_logprobs is not None:
            # A token's log-probability is read one position before it.
            self.reached = min(max(0, self.params.prompt_logprobs_start - 1), len(self.prompt) - 1)

    @property
    def length(self) -> int:
        """Tokens known so far: prompt and output."""
        return len(self.prompt) + len(self.output)

    @property
    def reusable(self) -> int:
        """Leading tokens that may be taken from the cache without being computed: nothing more is read from them.

        The last token never is, since its logits choose the next one.
        """
        reads_all = self.params.prompt_logprobs is not None or self.pooling is Pooling.MEAN
        return min(self.reached, self.length - 1) if reads_all else self.length - 1

    def tokens(self, start: int, stop: int) -> list[int]:
        """Token ids of positions [start, stop), 0 <= start <= stop <= length."""
        split = len(self.prompt)
        if stop <= split:
            return list(self.prompt[start:stop])
        if start >= split:
            return self.output[start - split : stop - split]
        return [*self.prompt[start:], *self.output[: stop - split]]
