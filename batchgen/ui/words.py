"""Progress in words: the parts that the live display and the log lines share."""

from __future__ import annotations

from batchgen.progress import Progress
from batchgen.ui.rates import Rates

__all__ = ["duration", "load", "rows", "short", "some", "speed", "totals"]


def short(number: float) -> str:
    """At most five characters: 999, 12.3k, 4.56M."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e4)):
        if number >= size * 0.99995:
            scaled = number / (1e3 if unit == "k" else size)
            return f"{scaled:.{2 if scaled < 9.995 else 1 if scaled < 99.95 else 0}f}{unit}"
    return f"{number:.0f}"


def duration(seconds: float) -> str:
    """1:02:03, 2:03 or 0:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def rows(progress: Progress) -> str:
    """Rows done, of how many."""
    if progress.rows_total is None:
        return f"{progress.rows_done} rows"
    share = f" ({progress.rows_done / progress.rows_total:.0%})" if progress.rows_total else ""
    return f"{progress.rows_done}/{progress.rows_total} rows{share}"


def speed(rates: Rates) -> str:
    """Tokens a second: computed, and generated."""
    computed, output = ("-" if rate is None else short(rate) for rate in (rates.computed, rates.output))
    return f"tok/s computed {computed} out {output}"


def load(progress: Progress) -> list[str]:
    """What the engine is busy with; empty where that is not known."""
    if not progress.running + progress.waiting:
        return []
    return [f"running {progress.running} waiting {progress.waiting}", f"KV {progress.kv_used:.0%}"]


def totals(progress: Progress) -> str:
    """Tokens of rows that are answered, and of all outputs so far."""
    cached = f" ({progress.cached_tokens / progress.prompt_tokens:.0%} cached)" if progress.cached_tokens else ""
    return f"tokens in {short(progress.prompt_tokens)}{cached} out {short(progress.output_tokens)}"


def some(count: int, word: str) -> list[str]:
    """The count, empty where it is 0."""
    return [f"{count} {word}"] if count else []
