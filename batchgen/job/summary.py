"""What a finished job says of itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from batchgen.core.scheduler import SchedulerStats

__all__ = ["Counts", "Effort", "Summary", "failures_exceed"]


@dataclass(slots=True)
class Counts:
    """Rows so far, and the tokens of this run."""

    completed: int = 0
    failed: int = 0
    resumed: int = 0
    """Completed or failed in an earlier run."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0

    @property
    def total(self) -> int:
        """Rows with a result."""
        return self.completed + self.failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """Where the seconds of generation went."""

    seconds: float
    """Of all who computed: with several workers more than have passed."""
    scheduling_s: float
    """Deciding who computes what, while nothing was computed."""
    kernels_s: float
    bound_s: float | None
    """The least that the same tokens take at the machine's rates; None where it was not calibrated."""
    hidden_scheduling_s: float | None = None
    """Deciding while a step was computed. None where other processes compute; `first_step_s` likewise."""
    first_step_s: float | None = None
    """Until the first step was begun."""

    @property
    def efficiency(self) -> float | None:
        """The part of the seconds that could not be done without."""
        return _ratio(self.bound_s, self.seconds)

    def to_json(self) -> dict[str, float | None]:
        """With what is left over: tokenising, detokenising, arrays, writing, and waiting for rows."""
        host_s = self.seconds - self.scheduling_s - self.kernels_s
        return {
            "bound_s": _rounded(self.bound_s),
            "kernels_s": round(self.kernels_s, 3),
            "scheduling_s": round(self.scheduling_s, 3),
            "host_s": round(host_s, 3),
            "hidden_scheduling_s": _rounded(self.hidden_scheduling_s),
            "first_step_s": _rounded(self.first_step_s),
            "worker_s": round(self.seconds, 3),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The figures of the last line."""

    counts: Counts
    stats: SchedulerStats | None
    """None where no row was left to compute; `effort` likewise."""
    effort: Effort | None
    generation_s: float
    """Seconds from the first row to the last."""
    elapsed_s: float
    """Seconds of the whole job, loading included."""
    output: str
    model: str
    kernels: str | None
    precision: str | None
    too_many_failed: bool
    skip_exit_code: int | None = None

    @property
    def exit_code(self) -> int:
        """3 where more rows failed than the job allows; where nothing was to be done, what was asked for; else 0."""
        if self.too_many_failed:
            return 3
        nothing_done = self.counts.total == self.counts.resumed
        return self.skip_exit_code if nothing_done and self.skip_exit_code is not None else 0

    def to_json(self) -> dict[str, Any]:
        """The summary as PROTOCOL names its keys. Tokens a second are over generation alone."""
        counts, stats, effort, seconds = self.counts, self.stats, self.effort, max(self.generation_s, 1e-9)
        return {
            "status": "too_many_failed" if self.too_many_failed else "completed",
            "request_counts": {
                "total": counts.total,
                "completed": counts.completed,
                "failed": counts.failed,
                "resumed": counts.resumed,
            },
            "usage": {
                "prompt_tokens": counts.prompt_tokens,
                "cached_tokens": counts.cached_tokens,
                "completion_tokens": counts.completion_tokens,
                "computed_tokens": 0 if stats is None else stats.computed_tokens,
            },
            "throughput": {
                "requests_per_s": round((counts.total - counts.resumed) / seconds, 3),
                "output_tokens_per_s": round(counts.completion_tokens / seconds, 1),
                "total_tokens_per_s": round((counts.prompt_tokens + counts.completion_tokens) / seconds, 1),
            },
            "steps": 0 if stats is None else stats.steps,
            "preemptions": 0 if stats is None else stats.preemptions,
            "redundancy": None if stats is None else _ratio(stats.computed_tokens, stats.work.tokens),
            "efficiency": None if effort is None else effort.efficiency,
            "time": None if effort is None else effort.to_json(),
            "output": self.output,
            "elapsed_s": round(self.elapsed_s, 3),
            "generation_s": round(self.generation_s, 3),
            "model": self.model,
            "kernels": self.kernels,
            "precision": self.precision,
        }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def _ratio(part: float | None, whole: float) -> float | None:
    return round(part / whole, 3) if part is not None and whole else None


def failures_exceed(counts: Counts, allowed: str | None) -> bool:
    """Whether more rows failed than `N` or `P%` allow; without a limit, whether all did."""
    if allowed is None:
        return counts.failed > 0 and counts.completed == 0
    if allowed.endswith("%"):
        return counts.failed * 100 > float(allowed[:-1]) * counts.total
    return counts.failed > int(allowed)
