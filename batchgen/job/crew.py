"""Who computes the rows of a job, as the job sees them: this process, or workers elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from batchgen.checkpoint.types import Checkpoint
from batchgen.config import JobConfig
from batchgen.core.scheduler import SchedulerStats
from batchgen.job.arrivals import Arrival
from batchgen.job.passing import Emit
from batchgen.job.summary import Counts, Effort
from batchgen.progress import Progress

__all__ = ["Assignment", "Crew", "OpenCrew"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What a crew is asked to do."""

    config: JobConfig
    checkpoint: Checkpoint
    home: Path
    run_id: str
    created: int
    emit: Emit
    counts: Counts
    """Has the results of earlier runs; those of this one are added."""
    rows_total: Callable[[], int | None]


class Crew(Protocol):
    """Computes rows. The model is loaded when the crew is opened."""

    @property
    def elapsed_s(self) -> float:
        """Seconds of generation so far."""
        ...

    def facts(self) -> Mapping[str, Any]:
        """What answers depend on and is known only now."""
        ...

    def about(self) -> Mapping[str, Any]:
        """What runs and where, for reports: `engine`, `machine`."""
        ...

    def describe(self) -> Mapping[str, Any]:
        """Where it stands, for a report. Safe to call from another thread."""
        ...

    def steps(self, rows: Iterable[Arrival]) -> Iterator[Progress]:
        """Compute all rows that are not done; where the run stands, after each step or several times a second."""
        ...

    def stats(self) -> SchedulerStats:
        """What was scheduled, of all that compute."""
        ...

    def effort(self) -> Effort:
        """Where the time went."""
        ...


OpenCrew = Callable[[Assignment], AbstractContextManager[Crew]]
"""Raises a `BatchgenError` where the model can't be loaded."""
