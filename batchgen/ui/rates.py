"""Speeds over the last seconds, and when the job will be done."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from batchgen.progress import Progress

__all__ = ["RateWindow", "Rates", "mean_rates"]


@dataclass(frozen=True, slots=True)
class Rates:
    """None where too little is known."""

    computed: float | None = None
    """Tokens that went through the model, prompts included, a second."""
    output: float | None = None
    """Output tokens a second."""
    remaining_s: float | None = None
    """Seconds until all rows are done, at the mean speed so far."""


class RateWindow:
    """Takes progress as it comes and measures over the last `window_s` seconds of it."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._first: Progress | None = None
        self._recent: deque[Progress] = deque()

    def push(self, progress: Progress) -> None:
        """Take one more state; `elapsed_s` never goes back."""
        # Rows that an earlier run had done arrive with the first state: they say nothing about this run's speed.
        self._first = self._first or progress
        self._recent.append(progress)
        while len(self._recent) > 2 and self._recent[1].elapsed_s <= progress.elapsed_s - self._window_s:
            self._recent.popleft()

    def rates(self) -> Rates:
        """Speeds at the last state pushed."""
        if self._first is None:
            return Rates()
        old, new = self._recent[0], self._recent[-1]
        seconds = new.elapsed_s - old.elapsed_s
        if seconds <= 0:
            return Rates()
        return Rates(
            computed=(new.computed_tokens - old.computed_tokens) / seconds,
            output=(new.output_tokens - old.output_tokens) / seconds,
            remaining_s=self._remaining(self._first, new),
        )

    @staticmethod
    def _remaining(first: Progress, new: Progress) -> float | None:
        # Rows that fail do so at once, as a rule: what is left takes as long as those that were answered.
        answered = (new.rows_done - new.rows_failed) - (first.rows_done - first.rows_failed)
        if new.rows_total is None or answered <= 0:
            return None
        return (new.rows_total - new.rows_done) * (new.elapsed_s - first.elapsed_s) / answered


def mean_rates(progress: Progress) -> Rates:
    """Speeds from the beginning on, of a run that is over."""
    if progress.elapsed_s <= 0:
        return Rates()
    return Rates(progress.computed_tokens / progress.elapsed_s, progress.output_tokens / progress.elapsed_s)
