"""The rows of a job through the workers of a fleet."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

from batchgen.core.scheduler import SchedulerStats
from batchgen.errors import OutOfResourcesError, UsageError
from batchgen.io.signals import rearm
from batchgen.job.arrivals import Arrival
from batchgen.job.backlog import Backlog
from batchgen.job.crew import Assignment, Crew, OpenCrew
from batchgen.job.dealing import Dealer
from batchgen.job.fingerprint import differences
from batchgen.job.fleet import Fleet, LogLine, Lost, OpenFleet, Orders, Ready, Report
from batchgen.job.passing import counted, logged, progress_of
from batchgen.job.roster import Roster
from batchgen.job.summary import Effort
from batchgen.job.worker import Worker
from batchgen.progress import Progress
from batchgen.protocol.faults import Code, RowFault
from batchgen.protocol.parse import custom_id_of
from batchgen.protocol.response import Responder

__all__ = ["crew_of"]

_logger = logging.getLogger(__name__)

_HEARING_S = 0.25
_TURNS = 2
"""That a worker has before it: while one is reported and answered it goes on with the next."""
_AHEAD = 3
"""Times the sequences of a full step that a worker is to hold: those that run, those that wait, and as many that are
being encoded."""
_MOST_STARTS = 3
"""Of a worker that is lost before it has its model, one after another."""


def crew_of(open_fleet: OpenFleet) -> OpenCrew:
    """A crew of the workers of a fleet."""

    @contextmanager
    def open_crew(job: Assignment) -> Iterator[Crew]:
        thread = Worker()
        close = _nothing
        try:
            fleet = thread.call(open_fleet, _orders(job))
            close = fleet.close
            rearm()  # what a cluster's client brings may have handlers of its own
            pool = _Pool(job, fleet, thread)
            pool.gather()
            yield pool
            thread.call(close)
            close = _nothing
        finally:
            thread.end_with(close)

    return open_crew


class _Pool:
    """Deals rows to the workers, and starts lost ones again."""

    def __init__(self, job: Assignment, fleet: Fleet, thread: Worker) -> None:
        """`thread`: makes the calls to the fleet, so that this one hears signals."""
        self._job = job
        self._fleet = fleet
        self._thread = thread
        self._full = min(job.config.engine.max_num_seqs, job.config.engine.max_num_batched_tokens)
        self._dealer = Dealer(fleet.workers, self._full)
        self._roster = Roster(fleet.workers)
        self._emit = counted(job.emit, job.counts, log_requests=job.config.log_requests)
        self._first: Ready | None = None
        self._began = self._ended = 0.0

    @property
    def elapsed_s(self) -> float:
        """Seconds of generation so far."""
        return (self._ended or time.monotonic()) - self._began

    def facts(self) -> Mapping[str, Any]:
        """What answers depend on, of every worker."""
        assert self._first is not None
        return self._first.facts

    def about(self) -> Mapping[str, Any]:
        """What runs at the first worker, and where."""
        assert self._first is not None
        return {**self._first.about, "workers": self._fleet.workers}

    def describe(self) -> Mapping[str, Any]:
        """Where each worker stands."""
        return {**asdict(self.stats()), "undealt": self._dealer.undealt, "workers": self._roster.describe()}

    def stats(self) -> SchedulerStats:
        """What was scheduled, of all workers together."""
        return self._roster.stats()

    def effort(self) -> Effort:
        """Where the time of all workers went."""
        return self._roster.effort()

    def gather(self) -> None:
        """Start the workers and wait for the first one; then for the others as long again."""
        began = time.monotonic()
        for worker in range(self._fleet.workers):
            self._thread.call(self._fleet.start, worker)
        while not self._roster.any_ready:
            self._hear(_HEARING_S)
        until = time.monotonic() + (time.monotonic() - began)
        while not self._roster.all_ready and time.monotonic() < until:
            self._hear(_HEARING_S)

    def steps(self, rows: Iterable[Arrival]) -> Iterator[Progress]:
        """Compute all rows that are not done; where the run stands, several times a second."""
        self._began = time.monotonic()
        self._roster.begin(self._began)
        enough = (_AHEAD + 1) * self._full * self._fleet.workers
        rows = logged(rows) if self._job.config.log_requests else rows
        self._backlog = Backlog(rows, self._dealer, self._job.config.input.window, enough)
        while True:
            self._backlog.read()
            self._send()
            if self._backlog.over:
                break
            self._hear(0.0 if self._backlog.has_room else _HEARING_S)
            yield self._progress()
        self._ended = time.monotonic()
        self._roster.end(self._ended)

    def _send(self) -> None:
        """Keep the workers busy: whoever has rows has turns before it."""
        for worker, member in self._roster.ready():
            while member.turns < _TURNS:
                ahead = _AHEAD * self._full + _TURNS * member.answered
                numbers = self._dealer.deal(worker, ahead)
                if not self._dealer.holds(worker):
                    break
                self._thread.call(self._fleet.send, worker, self._backlog.rows(numbers))
                member.turns += 1

    def _hear(self, timeout_s: float) -> None:
        for worker, event in self._thread.call(self._fleet.wait, timeout_s):
            match event:
                case Ready():
                    _repeat(worker, event.log)
                    self._compare(event)
                    self._roster.joined(worker, time.monotonic())
                    self._dealer.joined(worker)
                case Report():
                    self._roster.reported(worker, event)
                    self._take(worker, event)
                case Lost():
                    self._lost(worker, event.why)

    def _compare(self, ready: Ready) -> None:
        """Raise `UsageError` where a worker would answer other than the first one."""
        facts = {**ready.facts, "checkpoint": ready.checkpoint}
        self._first = self._first or ready
        ours = {**self._first.facts, "checkpoint": self._job.checkpoint.fingerprint}
        if found := list(differences(ours, facts)):
            message = (
                f"the worker on {ready.place} would give other answers than the others; give all the same model and "
                "machines of one kind (--max-model-len where it was left to the memory):"
            )
            raise UsageError("\n".join([message, *found]))

    def _take(self, worker: int, report: Report) -> None:
        _repeat(worker, report.log)
        for number, digest, row in report.results:
            # Of rows that two workers computed the first answer counts; they are the same.
            if self._dealer.answered(number):
                self._emit(number, digest, replace(row, extra=self._backlog.take(number).row.extra))

    def _lost(self, worker: int, why: str) -> None:
        had = self._dealer.holds(worker)
        _logger.warning("worker %d was lost with %d rows under way, which are run again: %s", worker, had, why)
        if self._roster.lost(worker, time.monotonic()) >= _MOST_STARTS:
            raise OutOfResourcesError(
                f"worker {worker} was lost {_MOST_STARTS} times while it loaded the model ({why}); finished rows are "
                "kept. Give each worker more memory, and run again"
            )
        for number in self._dealer.lost(worker):
            self._give_up(self._backlog.take(number))
        self._thread.call(self._fleet.start, worker)

    def _give_up(self, arrival: Arrival) -> None:
        row = arrival.row
        message = (
            "each of the workers that ran this row was lost, at last one that ran nothing else; see the log for why, "
            "and run again to try it again"
        )
        responder = Responder(self._job.run_id, self._job.created)
        fault = RowFault(Code.INTERNAL_ERROR, message)
        result = responder.refused(row.line, custom_id_of(row), fault, row.extra)
        self._emit(arrival.number, arrival.digest, result)

    def _progress(self) -> Progress:
        stats, effort = self.stats(), self.effort()
        workers = self._fleet.workers
        return progress_of(
            replace(stats, waiting=stats.waiting + self._dealer.undealt),
            self._job.counts,
            self._job.rows_total(),
            elapsed_s=self.elapsed_s,
            # Of a worker, so that they can be seen beside the time that has passed.
            kernels_s=effort.kernels_s / workers,
            scheduling_s=effort.scheduling_s / workers,
        )


def _orders(job: Assignment) -> Orders:
    config = job.config
    # A template may be a file here that is not there.
    template = None if config.model.chat_template is None else job.checkpoint.chat_template
    return Orders(
        model=replace(config.model, chat_template=template),
        engine=config.engine,
        input=config.input,
        home=job.home,
        run_id=job.run_id,
        created=job.created,
    )


def _repeat(worker: int, lines: Iterable[LogLine]) -> None:
    for line in lines:
        logging.getLogger(line.logger).log(line.level, "worker %d: %s", worker, line.message)


def _nothing() -> None:
    pass
