"""What a running job tells the person who watches it. Data and a Protocol; the display is `batchgen.ui`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

__all__ = ["Progress", "Reporter"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a job stands. Counts are totals since the job began, not differences; rates are the display's business."""

    rows_total: int | None = None
    """Rows of the input; None while that is not known."""
    rows_done: int = 0
    """Rows with a result, failed and resumed ones included."""
    rows_failed: int = 0
    """Rows whose result is an error."""
    rows_resumed: int = 0
    """Rows of `rows_done` whose result an earlier run has written."""
    running: int = 0
    """Sequences with blocks in the cache."""
    waiting: int = 0
    """Sequences that wait for admission."""
    kv_used: float = 0.0
    """Share of the KV-cache blocks that running sequences hold, in [0, 1]."""
    prompt_tokens: int = 0
    """Prompt tokens taken in: computed, or found in the cache."""
    computed_tokens: int = 0
    """Tokens that went through the model, recomputation after preemption included."""
    cached_tokens: int = 0
    """Prompt tokens found in the cache."""
    output_tokens: int = 0
    """Tokens generated."""
    distinct_tokens: int = 0
    """Prompt tokens of all that was read, every shared beginning counted once."""
    needed_tokens: int = 0
    """Those, and the tokens of finished outputs that had to be computed too: `computed_tokens` at the least."""
    steps: int = 0
    """Batches computed."""
    preemptions: int = 0
    """How often a sequence gave its blocks back under memory pressure."""
    elapsed_s: float = 0.0
    """Seconds since generation began."""
    kernels_s: float = 0.0
    """Seconds of them within the kernels."""
    scheduling_s: float = 0.0
    """Seconds of them spent on deciding who computes what, while nothing was computed."""


class Reporter(Protocol):
    """Takes the news of a job. Cheap to call at every step: an implementation limits its own rate."""

    def stage(self, text: str) -> None:
        """A new part of the job begins, such as "loading model"."""
        ...

    def update(self, progress: Progress) -> None:
        """The job has moved on."""
        ...

    def close(self) -> None:
        """The job is over, well or not; give the terminal back. A second call does nothing."""
        ...
