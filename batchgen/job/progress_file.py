"""The state of a run within its output, for `batchgen status` and `batchgen inspect`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from batchgen.io.manifest import BOOKKEEPING
from batchgen.progress import Progress, Reporter
from batchgen.ui.metrics import MetricsFile

__all__ = ["PROGRESS_FILE", "recorded"]

PROGRESS_FILE = f"{BOOKKEEPING}/progress.json"


@contextmanager
def recorded(reporter: Reporter, folder: Path | None) -> Iterator[Reporter]:
    """A reporter that also keeps the progress in the output's folder: every few seconds, and at the end."""
    if folder is None:
        yield reporter
        return
    recording = _Recording(reporter, MetricsFile(folder / PROGRESS_FILE, str(folder)))
    try:
        yield recording
    finally:
        recording.file.write()


class _Recording:
    def __init__(self, reporter: Reporter, file: MetricsFile) -> None:
        self.file = file
        self._reporter = reporter

    def stage(self, text: str) -> None:
        self._reporter.stage(text)
        self.file.stage(text)

    def update(self, progress: Progress) -> None:
        self._reporter.update(progress)
        self.file.update(progress)
        self.file.tick()

    def close(self) -> None:
        self._reporter.close()
