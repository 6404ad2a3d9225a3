"""What is counted, logged and told of rows and results that pass by."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import orjson

from batchgen.core.scheduler import SchedulerStats
from batchgen.job.arrivals import Arrival
from batchgen.job.summary import Counts
from batchgen.progress import Progress
from batchgen.protocol.result import ResultRow

__all__ = ["Emit", "counted", "logged", "progress_of"]

Row = TypeVar("Row", Arrival, Arrival | None)
_logger = logging.getLogger(__name__)

Emit = Callable[[int, str, ResultRow], None]
"""Takes a result: the number of the input's row, counted from 0, the digest of its request, the row."""


def logged(rows: Iterable[Row]) -> Iterator[Row]:
    """The rows; those that are to be computed are logged."""
    for arrival in rows:
        if arrival is not None and not arrival.done:
            row = arrival.row
            _logger.info("line %d: request %s", row.line, orjson.dumps(row.data, default=str).decode())
        yield arrival


def counted(emit: Emit, counts: Counts, *, log_requests: bool) -> Emit:
    """Hands results on that it has counted; `log_requests`: faults are logged with their text."""

    def take(number: int, digest: str, row: ResultRow) -> None:
        if row.error is None:
            counts.completed += 1
            counts.prompt_tokens += row.prompt_tokens or 0
            counts.cached_tokens += row.cached_tokens or 0
            counts.completion_tokens += row.completion_tokens or 0
        else:
            counts.failed += 1
            said = row.error.message if log_requests else f"{row.error.code} {row.error.param or ''}"
            _logger.debug("line %d: %s", row.line, said)
        emit(number, digest, row)

    return take


def progress_of(
    stats: SchedulerStats,
    counts: Counts,
    rows_total: int | None,
    *,
    elapsed_s: float,
    kernels_s: float,
    scheduling_s: float,
) -> Progress:
    """Where a job stands."""
    return Progress(
        rows_total=rows_total,
        rows_done=counts.total,
        rows_failed=counts.failed,
        rows_resumed=counts.resumed,
        running=stats.running,
        waiting=stats.waiting,
        kv_used=stats.blocks_used / max(1, stats.blocks_total),
        prompt_tokens=counts.prompt_tokens,
        computed_tokens=stats.computed_tokens,
        cached_tokens=counts.cached_tokens,
        output_tokens=stats.generated_tokens,
        distinct_tokens=stats.work.distinct_tokens,
        needed_tokens=stats.work.tokens,
        steps=stats.steps,
        preemptions=stats.preemptions,
        elapsed_s=elapsed_s,
        kernels_s=kernels_s,
        scheduling_s=scheduling_s,
    )
