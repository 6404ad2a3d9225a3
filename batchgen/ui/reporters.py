"""The three ways to watch a job: live on a terminal, in log lines, not at all."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import asdict

from rich.console import Console

from batchgen.progress import Progress, Reporter
from batchgen.ui import words
from batchgen.ui.live import LiveReporter
from batchgen.ui.rates import RateWindow

__all__ = ["LineReporter", "QuietReporter", "reporter"]

_LINE_EVERY_S = 30.0

_log = logging.getLogger(__name__)


def reporter(console: Console, *, quiet: bool, live: bool) -> Reporter:
    """The reporter for standard error as it is."""
    if quiet:
        return QuietReporter()
    return LiveReporter(console) if live else LineReporter()


class QuietReporter:
    """Says nothing."""

    def stage(self, text: str) -> None:
        """Nothing."""

    def update(self, progress: Progress) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class LineReporter:
    """Logs a line for each stage, one every 30 s whether or not anything moved, and one for the end."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._window = RateWindow(_LINE_EVERY_S)
        self._stage, self._stage_began = "starting", clock()
        self._said_at = clock()
        self._progress: Progress | None = None
        self._unsaid = False

    def stage(self, text: str) -> None:
        """Log the stage, after what was not yet logged of the one before."""
        self.close()
        self._progress, self._window = None, RateWindow(_LINE_EVERY_S)
        self._stage, self._stage_began = text, self._clock()
        _log.info("%s", text)

    def update(self, progress: Progress) -> None:
        """Keep the progress for the next line."""
        if self._progress is None:
            self._window.push(progress)
        self._progress, self._unsaid = progress, True

    def tick(self) -> None:
        """Log where the job stands, if the last line is 30 s old."""
        if self._clock() - self._said_at < _LINE_EVERY_S:
            return
        if self._progress is None:
            self._said_at = self._clock()
            _log.info("%s for %s", self._stage, words.duration(self._said_at - self._stage_began))
        else:
            self._say(self._progress)

    def close(self) -> None:
        """Log the last progress, if it was not logged."""
        if self._progress is not None and self._unsaid:
            self._say(self._progress)

    def _say(self, progress: Progress) -> None:
        self._said_at, self._unsaid = self._clock(), False
        self._window.push(progress)
        rates = self._window.rates()
        parts = [
            words.rows(progress),
            words.speed(rates),
            *words.load(progress),
            *words.some(progress.rows_failed, "failed"),
            *words.some(progress.preemptions, "preempted"),
        ]
        if rates.remaining_s is not None:
            parts.append(f"left {words.duration(rates.remaining_s)}")
        _log.info("%s", " | ".join(parts), extra={"progress": asdict(progress)})
