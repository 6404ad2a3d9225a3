"""The loop over scheduler and runner: sequences in, finished sequences out."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from batchgen.core.scheduler import Refusal, Scheduler, SchedulerStats
from batchgen.core.sequence import Sequence
from batchgen.core.step import Answer, ModelRunner, StepPlan

__all__ = ["Engine", "Outcome"]

Outcome = Sequence | Refusal


class Engine:
    """Drives one runner through everything that a source holds.

    The engine knows the runner by its Protocol alone, and nothing of text, files or requests.
    """

    def __init__(self, scheduler: Scheduler, runner: ModelRunner) -> None:
        self.scheduling_s = 0.0
        """Seconds spent on deciding who computes what, while the runner had nothing to compute."""
        self.hidden_s = 0.0
        """Seconds spent on that while it had."""
        self._scheduler = scheduler
        self._runner = runner

    def stats(self) -> SchedulerStats:
        """Where the scheduler stands."""
        return self._scheduler.stats()

    def describe(self) -> dict[str, Any]:
        """All of it for a report: the counts, and every running sequence. Safe to call from another thread."""
        return {**asdict(self.stats()), "sequences": self._scheduler.running()}

    def run(self, windows: Iterable[list[Sequence]], ahead: int | None = None) -> Iterator[list[Outcome]]:
        """Run all sequences; yield, a step at a time, those that are finished and those that can't run at all.

        What the caller does with them, and what the source does for its next window, is done while the runner computes
        the step after; so is the planning where the runner takes plans ahead. A window is read when fewer than `ahead`
        sequences wait; None: than a step can hold, so that steps stay full across the seam. A source may yield an empty
        window to be asked again after the next step.
        """
        remaining = iter(windows)
        capacity = self._runner.capacity
        enough = capacity.max_num_seqs if ahead is None else ahead
        exhausted = False
        outcomes: list[Outcome] = []
        under_way: deque[tuple[StepPlan, Answer]] = deque()
        while True:
            with self._scheduling(under_way):
                plan = self._scheduler.schedule()
            if plan is not None:
                under_way.append((plan, self._runner.begin(plan)))
            yield outcomes
            outcomes = []
            if not exhausted and self._scheduler.stats().waiting < enough:
                window = next(remaining, None)
                exhausted = window is None
                with self._scheduling(under_way):
                    outcomes += self._scheduler.add(window or [])
            if under_way and (plan is None or len(under_way) > capacity.steps_ahead):
                begun, answer = under_way.popleft()
                result = answer()
                with self._scheduling(under_way):
                    outcomes += self._scheduler.commit(begun, result)
            elif plan is None and exhausted:
                return

    @contextmanager
    def _scheduling(self, under_way: Collection[object]) -> Iterator[None]:
        began = time.perf_counter()
        yield
        seconds = time.perf_counter() - began
        if under_way:
            self.hidden_s += seconds
        else:
            self.scheduling_s += seconds
