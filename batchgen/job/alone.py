"""This process as the crew of a job."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

from batchgen.core.scheduler import SchedulerStats
from batchgen.job.arrivals import Arrival
from batchgen.job.crew import Assignment, Crew
from batchgen.job.generation import Generation, make_frontend
from batchgen.job.loading import LoadedEngine, load_engine
from batchgen.job.summary import Effort
from batchgen.job.tracking import Frontend
from batchgen.job.worker import RunnerInThread, Worker
from batchgen.progress import Progress
from batchgen.protocol.response import Responder

__all__ = ["open_alone"]


@contextmanager
def open_alone(job: Assignment) -> Iterator[Crew]:
    """Load the model into this process, in the thread that will compute."""
    worker, close = Worker(), _nothing
    try:
        loaded = worker.call(load_engine, job.checkpoint, job.config.engine)
        close = loaded.close
        responder = Responder(job.run_id, job.created)
        frontend = make_frontend(loaded, job.config.model, job.config.input, responder)
        with closing(frontend.grammars):
            yield _Alone(job, loaded, frontend, worker)
    finally:
        worker.end_with(close)


class _Alone:
    """`Crew` of one."""

    def __init__(self, job: Assignment, loaded: LoadedEngine, frontend: Frontend, worker: Worker) -> None:
        self._home = job.home
        self._loaded = loaded
        self._generation = Generation(
            loaded,
            loaded.engine(RunnerInThread(loaded.runner, worker)),
            frontend,
            job.emit,
            job.counts,
            job.rows_total,
            window=job.config.input.window,
            log_requests=job.config.log_requests,
        )

    @property
    def elapsed_s(self) -> float:
        """Seconds of generation so far."""
        return self._generation.elapsed_s

    def facts(self) -> Mapping[str, Any]:
        """What answers depend on and is known only now."""
        return self._loaded.facts()

    def about(self) -> Mapping[str, Any]:
        """What runs here."""
        return {"engine": self._loaded.describe(), "machine": self._loaded.machine()}

    def describe(self) -> Mapping[str, Any]:
        """The counts, and every running sequence."""
        return self._generation.engine.describe()

    def steps(self, rows: Iterable[Arrival]) -> Iterator[Progress]:
        """Compute all rows that are not done; where the run stands, after each step."""
        return self._generation.steps(rows)

    def stats(self) -> SchedulerStats:
        """What was scheduled."""
        return self._generation.engine.stats()

    def effort(self) -> Effort:
        """Where the time went."""
        return self._generation.effort(self._home)


def _nothing() -> None:
    pass
