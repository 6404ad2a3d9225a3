"""One stream of tokens on its way through the engine."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Protocol

from batchgen.core.sampling import SamplingParams

__all__ = ["FinishReason", "Sequence", "Status", "StopProbe"]


class Status(Enum):
    """Where a sequence is. Only the scheduler changes it."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class FinishReason(StrEnum):
    """Why a sequence ended, in the words of the request format."""

    STOP = "stop"
    LENGTH = "length"


class StopProbe(Protocol):
    """Watches the text of one sequence for its stop strings. Kept by the sequence, implemented in `batchgen.text`."""

    def push(self, token: int) -> bool:
        """Take the next generated token; return whether the text now contains a stop string.

        Called exactly once for each generated token, in order, also across preemptions.
        """
        ...


@dataclass(eq=False, slots=True)
class Sequence:
    """A prompt and what was generated for it.

    `computed` is the one counter that the engine needs: how many leading tokens have their keys and values in the
    cache. It catches up with `length`, in one step or in many; there is no prefill phase and no decode phase.
    """

    seq_id: int
    """Unique within a run; also the order of arrival."""
    prompt: SequenceOf[int]
    """Prompt token ids, at least one."""
    params: SamplingParams
    probe: StopProbe | None = None
    """Stop strings of this sequence; None where it has none."""
    output: list[int] = field(default_factory=list)
    """Generated token ids. Only `Scheduler.commit` appends."""
    computed: int = 0
    """Tokens of prompt + output, from the start, whose keys and values are in the cache."""
    cached: int = 0
    """Prompt tokens that the first admission found in the cache already."""
    status: Status = Status.WAITING
    finish_reason: FinishReason | None = None
    preemptions: int = 0
    """How often this sequence gave its blocks back under memory pressure."""

    def __post_init__(self) -> None:
        if not self.prompt:
            raise ValueError(f"sequence {self.seq_id}: the prompt is empty")

    @property
    def length(self) -> int:
        """Tokens known so far: prompt and output."""
        return len(self.prompt) + len(self.output)

    def tokens(self, start: int, stop: int) -> list[int]:
        """Token ids of positions [start, stop), 0 <= start <= stop <= length."""
        split = len(self.prompt)
        if stop <= split:
            return list(self.prompt[start:stop])
        if start >= split:
            return self.output[start - split : stop - split]
        return [*self.prompt[start:], *self.output[: stop - split]]
