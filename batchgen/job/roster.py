"""The workers of a distributed job: who is there, and what all of them have done."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from batchgen.core.bound import Work
from batchgen.core.scheduler import SchedulerStats
from batchgen.job.fleet import Report
from batchgen.job.summary import Effort

__all__ = ["Member", "Roster"]


@dataclass(slots=True)
class Member:
    """One worker."""

    is_ready: bool = False
    turns: int = 0
    """That it was given and has not reported."""
    answered: int = 0
    """Rows of its last report."""
    report: Report | None = None
    """The last one since its start."""
    since: float = 0.0
    """When it had its model."""
    failed_starts: int = 0
    """One after another."""


class Roster:
    """Workers by number, with totals over those that were lost as well."""

    def __init__(self, workers: int) -> None:
        self._members = [Member() for _ in range(workers)]
        self._past: list[Report] = []
        """The last reports of lost workers."""
        self._any_lost = False
        self._present_s = 0.0
        """Seconds that workers were there, of those that are no more."""

    @property
    def any_ready(self) -> bool:
        """Whether somebody can be given rows."""
        return any(member.is_ready for member in self._members)

    @property
    def all_ready(self) -> bool:
        """Whether all can."""
        return all(member.is_ready for member in self._members)

    def ready(self) -> Iterator[tuple[int, Member]]:
        """Those who can be given rows."""
        return ((number, member) for number, member in enumerate(self._members) if member.is_ready)

    def begin(self, now: float) -> None:
        """Rows come from now on: waiting for them before is no worker's time."""
        for _, member in self.ready():
            member.since = now

    def joined(self, worker: int, now: float) -> None:
        """A worker has its model."""
        self._members[worker] = Member(is_ready=True, since=now)

    def reported(self, worker: int, report: Report) -> None:
        """A worker has had its turn."""
        member = self._members[worker]
        member.turns -= 1
        member.answered = len(report.results)
        member.report = report

    def lost(self, worker: int, now: float) -> int:
        """A worker is gone. Returns how often in succession it was lost before it had its model."""
        member = self._members[worker]
        self._leave(member, now)
        self._any_lost |= member.is_ready
        self._members[worker] = Member(failed_starts=0 if member.is_ready else member.failed_starts + 1)
        return self._members[worker].failed_starts

    def end(self, now: float) -> None:
        """The job is over."""
        for _, member in self.ready():
            self._leave(member, now)
        self._members = [Member() for _ in self._members]

    def stats(self) -> SchedulerStats:
        """Counts of those who are there, totals of all."""
        now = [member.report.stats for member in self._members if member.report is not None]
        every = [*now, *(report.stats for report in self._past)]
        return SchedulerStats(
            running=sum(one.running for one in now),
            waiting=sum(one.waiting for one in now),
            blocks_used=sum(one.blocks_used for one in now),
            blocks_total=sum(one.blocks_total for one in now),
            steps=sum(one.steps for one in every),
            computed_tokens=sum(one.computed_tokens for one in every),
            cached_tokens=sum(one.cached_tokens for one in every),
            generated_tokens=sum(one.generated_tokens for one in every),
            preemptions=sum(one.preemptions for one in every),
            work=sum((one.work for one in every), Work()),
        )

    def effort(self) -> Effort:
        """Where the time of all workers went, those that waited for rows included. No bound where a worker was lost:
        what it had computed was computed again."""
        reports = [*self._past, *(member.report for member in self._members if member.report is not None)]
        bounds = [report.bound_s for report in reports if report.bound_s is not None]
        is_known = len(bounds) == len(reports) and not self._any_lost
        return Effort(
            seconds=self._present_s,
            scheduling_s=sum(report.scheduling_s for report in reports),
            kernels_s=sum(report.kernels_s for report in reports),
            bound_s=sum(bounds) if is_known else None,
        )

    def describe(self) -> list[dict[str, Any]]:
        """Where each worker stands."""
        return [
            {
                "worker": number,
                "ready": member.is_ready,
                "turns": member.turns,
                "stats": None if member.report is None else asdict(member.report.stats),
            }
            for number, member in enumerate(self._members)
        ]

    def _leave(self, member: Member, now: float) -> None:
        if member.is_ready:
            self._present_s += now - member.since
        if member.report is not None:
            self._past.append(member.report)
