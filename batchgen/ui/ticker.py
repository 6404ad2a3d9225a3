"""One job, several watchers, and a clock for those that speak by themselves."""

from __future__ import annotations

import threading
from collections.abc import Sequence as SequenceOf
from typing import Protocol, runtime_checkable

from batchgen.progress import Progress, Reporter

__all__ = ["Ticking", "Together"]

_TICK_S = 1.0


@runtime_checkable
class Ticking(Protocol):
    """A reporter that also has something to say while the job says nothing, as in a long load or a stall."""

    def tick(self) -> None:
        """Called about once a second, from another thread than the reporter's other methods."""
        ...


class Together:
    """Hands the news of a job to several reporters, and ticks those that want it until it is closed."""

    def __init__(self, reporters: SequenceOf[Reporter]) -> None:
        self._reporters = tuple(reporters)
        self._ticking = [reporter for reporter in reporters if isinstance(reporter, Ticking)]
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._tick, name="batchgen ticker", daemon=True)
        if self._ticking:
            self._thread.start()

    def stage(self, text: str) -> None:
        """Pass on a new stage."""
        for reporter in self._reporters:
            reporter.stage(text)

    def update(self, progress: Progress) -> None:
        """Pass on the progress."""
        for reporter in self._reporters:
            reporter.update(progress)

    def close(self) -> None:
        """Close all of them; no tick comes afterwards."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join()
        for reporter in self._reporters:
            reporter.close()

    def _tick(self) -> None:
        while not self._closed.wait(_TICK_S):
            for reporter in self._ticking:
                reporter.tick()
