"""Workers somewhere else, as a job sees them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from batchgen.config import EngineConfig, InputConfig, ModelConfig
from batchgen.core.scheduler import SchedulerStats
from batchgen.job.arrivals import Arrival
from batchgen.protocol.result import ResultRow

__all__ = ["Event", "Fleet", "LogLine", "Lost", "OpenFleet", "Orders", "Ready", "Report"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """What a worker has to know before its first row."""

    model: ModelConfig
    engine: EngineConfig
    input: InputConfig
    home: Path
    """Folder of models and calibrated rates, on the worker's machine."""
    run_id: str
    created: int
    """Of the run; ids and times in results are made of them."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """What a worker wants the log of the job to say."""

    logger: str
    level: int
    message: str


@dataclass(frozen=True, slots=True)
class Ready:
    """A worker has its model."""

    place: str
    """Where it runs, for messages."""
    about: Mapping[str, Any]
    """What runs there, for reports: `engine`, `machine`."""
    facts: Mapping[str, Any]
    """What answers depend on; must be the same for all workers."""
    checkpoint: str
    """Its fingerprint, likewise."""
    log: Sequence[LogLine] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a worker did in a turn."""

    results: Sequence[tuple[int, str, ResultRow]]
    """Numbers of rows, digests, results; each row once."""
    stats: SchedulerStats
    """Since the worker's start, as all below."""
    scheduling_s: float
    kernels_s: float
    bound_s: float | None
    """See `batchgen.job.summary.Effort`."""
    log: Sequence[LogLine] = ()
    """Of this turn."""


@dataclass(frozen=True, slots=True)
class Lost:
    """A worker is gone, and all that it had."""

    why: str


Event = Ready | Report | Lost


class Fleet(Protocol):
    """Workers with numbers in [0, workers), of which none is there at first. All calls come from one thread.

    A worker answers its turns in their order. After `Lost` it answers nothing more, until it is started again.
    """

    @property
    def workers(self) -> int:
        """How many there are to be."""
        ...

    def start(self, worker: int) -> None:
        """Have a worker begin: `Ready` will tell when it has its model."""
        ...

    def send(self, worker: int, rows: Sequence[Arrival]) -> None:
        """Give a worker rows and a turn, in which it goes on with all that it has; a `Report` follows."""
        ...

    def wait(self, timeout_s: float) -> Sequence[tuple[int, Event]]:
        """What has happened since the last call, each with its worker; waits for the first one.

        Raises a `BatchgenError` where no worker can be begun, and what a worker raised.
        """
        ...

    def close(self) -> None:
        """Let all workers go, whatever they are at."""
        ...


OpenFleet = Callable[[Orders], Fleet]
