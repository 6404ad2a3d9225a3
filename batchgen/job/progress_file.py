"""What a run leaves of itself within its output: its state for `batchgen status` and `batchgen inspect`, its story for
`batchgen report`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from batchgen.io.manifest import BOOKKEEPING
from batchgen.job.history import RunHistory
from batchgen.progress import Progress, Reporter
from batchgen.ui.metrics import MetricsFile

__all__ = ["PROGRESS_FILE", "Recording", "recorded"]

PROGRESS_FILE = f"{BOOKKEEPING}/progress.json"


class Recording:
    """A reporter whose news are also kept in the output's folder."""

    def __init__(self, reporter: Reporter, state: MetricsFile | None, history: RunHistory | None) -> None:
        self._reporter = reporter
        self._state, self._history = state, history

    def stage(self, text: str) -> None:
        """A new part of the job begins."""
        self._reporter.stage(text)
        if self._state is not None:
            self._state.stage(text)
        if self._history is not None:
            self._history.stage(text)

    def tell(self, **facts: Any) -> None:
        """Note facts for the story: `engine`, `machine`, `bound_s`."""
        if self._history is not None:
            self._history.tell(**facts)

    def update(self, progress: Progress) -> None:
        """The job has moved on."""
        self._reporter.update(progress)
        if self._state is not None:
            self._state.update(progress)
            self._state.tick()
        if self._history is not None:
            self._history.update(progress)

    def close(self) -> None:
        """The job is over."""
        self._reporter.close()


@contextmanager
def recorded(reporter: Reporter, folder: Path | None, shard: str | None) -> Iterator[Recording]:
    """A reporter that also keeps the progress in the output's folder, where there is one: every few seconds, and at
    the end. `shard`: which one this is."""
    if folder is None:
        yield Recording(reporter, None, None)
        return
    state, history = MetricsFile(folder / PROGRESS_FILE, str(folder)), RunHistory(folder, shard)
    try:
        yield Recording(reporter, state, history)
    except BaseException:
        history.ended("stopped")
        raise
    else:
        history.ended("finished")
    finally:
        state.write()
