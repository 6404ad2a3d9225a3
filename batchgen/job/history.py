"""A run over time: samples of its progress, few enough for a picture, kept beside the results."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from batchgen.io.history import next_run_file, write_run
from batchgen.progress import Progress

__all__ = ["COUNTERS", "GAUGES", "RunHistory", "Samples"]

COUNTERS = (
    "elapsed_s",
    "rows_done",
    "rows_failed",
    "rows_resumed",
    "prompt_tokens",
    "computed_tokens",
    "cached_tokens",
    "output_tokens",
    "steps",
    "preemptions",
    "kernels_s",
    "scheduling_s",
)
"""Fields of `Progress` that only grow: a sample has them as they are at its end."""
GAUGES = ("running", "waiting", "kv_used")
"""Fields that come and go: a sample has their mean over its steps."""
_FIRST_EVERY_S = 0.125
_MOST = 512
_WRITE_EVERY_S = 20.0

_logger = logging.getLogger(__name__)


class Samples:
    """At most 512 samples of a run of any length: when they are that many, every two become one, and from then on
    each covers twice the time."""

    def __init__(self) -> None:
        self.columns: dict[str, list[float]] = {name: [] for name in (*COUNTERS, *GAUGES)}
        self._every_s = _FIRST_EVERY_S
        self._due = 0.0
        self._sums = [0.0] * len(GAUGES)
        self._states = 0

    def push(self, progress: Progress) -> None:
        """Take one more state; `elapsed_s` never goes back."""
        for number, name in enumerate(GAUGES):
            self._sums[number] += getattr(progress, name)
        self._states += 1
        if progress.elapsed_s >= self._due:
            self.close(progress)

    def close(self, progress: Progress) -> None:
        """End a sample with this state, if any came since the last one."""
        if not self._states:
            return
        self._due = progress.elapsed_s + self._every_s
        for name in COUNTERS:
            self.columns[name].append(round(getattr(progress, name), 4))
        for number, name in enumerate(GAUGES):
            self.columns[name].append(round(self._sums[number] / self._states, 4))
        self._sums, self._states = [0.0] * len(GAUGES), 0
        if len(self.columns["elapsed_s"]) >= _MOST:
            self._halve()

    def _halve(self) -> None:
        # The first sample stays: what grows is measured from there.
        ends = self.columns["elapsed_s"]
        for name in GAUGES:
            column = self.columns[name]
            for at in range(1, len(column) - 1, 2):
                first, second = ends[at] - ends[at - 1], ends[at + 1] - ends[at]
                whole = first + second
                column[at + 1] = (
                    round((column[at] * first + column[at + 1] * second) / whole, 4) if whole else column[at]
                )
        for column in self.columns.values():
            del column[1 : len(column) - 1 : 2]
        self._every_s *= 2


class RunHistory:
    """Keeps the story of one run in a file of its own: from its first step on, every 20 s, and at its end.

    A file that can't be written is logged once and ends no job.
    """

    def __init__(self, folder: Path, shard: str | None, clock: Callable[[], float] = time.time) -> None:
        """`folder`: the output's; `shard`: such as `3 of 8`, of a job that has some."""
        self._folder = folder
        self._path: Path | None = None
        self._clock = clock
        self._samples = Samples()
        self._progress: Progress | None = None
        self._stages: dict[str, float] = {}
        self._stage, self._stage_began = "", clock()
        self._written_at = 0.0
        self._failed = False
        began = round(clock(), 3)
        self._told: dict[str, Any] = {"format": 1, "began": began, "shard": shard, "workers": 1, "bound_s": None}

    def stage(self, text: str) -> None:
        """A new part of the run begins."""
        self._leave_stage()
        self._stage = text

    def tell(self, **facts: Any) -> None:
        """Note facts of the run: `engine`, `machine`, `workers`, `bound_s`."""
        self._told.update(facts)

    def update(self, progress: Progress) -> None:
        """Take one more state."""
        self._progress = progress
        self._samples.push(progress)
        if self._clock() - self._written_at >= _WRITE_EVERY_S:
            self._write("running")

    def ended(self, state: Literal["finished", "stopped"]) -> None:
        """Write the last of it, if the run computed anything."""
        if self._progress is not None:
            self._leave_stage()
            self._samples.close(self._progress)
            self._write(state)

    def _leave_stage(self) -> None:
        now = self._clock()
        if self._stage:
            self._stages[self._stage] = round(self._stages.get(self._stage, 0.0) + now - self._stage_began, 3)
        self._stage_began = now

    def _write(self, state: str) -> None:
        assert self._progress is not None
        self._written_at = self._clock()
        run: Mapping[str, Any] = {
            **self._told,
            "state": state,
            "updated": round(self._written_at, 3),
            "stages": self._stages,
            "progress": asdict(self._progress),
            "samples": self._samples.columns,
        }
        try:
            if self._path is None:
                self._path = next_run_file(self._folder)
            write_run(self._path, run)
        except OSError as error:
            if not self._failed:
                _logger.warning("%s: the run cannot be recorded there: %s", self._folder, error)
            self._failed = True
