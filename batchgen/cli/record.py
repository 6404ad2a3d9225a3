"""What a job leaves for schedulers, however it ends: the last line, the summary file, the metrics file."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from batchgen.cli.streams import READER_GONE, print_summary, write_file
from batchgen.errors import BatchgenError, StalledError
from batchgen.progress import Progress, Reporter

if TYPE_CHECKING:
    from batchgen.ui.metrics import MetricsFile

__all__ = ["JobRecord", "exit_code_of"]

_INTERRUPTED = frozenset({130, 143})


class JobRecord:
    """Keeps the last progress, so that a job that ends early is summed up too."""

    def __init__(self, output: str, summary_file: Path | None, metrics: MetricsFile | None) -> None:
        self._output = output
        self._summary_file = summary_file
        self._metrics = metrics
        self._progress = Progress()
        self._began = time.monotonic()

    @property
    def reporters(self) -> tuple[Reporter, ...]:
        """Who must hear of the progress for it."""
        return (self,) if self._metrics is None else (self, self._metrics)

    def stage(self, text: str) -> None:
        """Nothing."""

    def update(self, progress: Progress) -> None:
        """Keep the progress."""
        self._progress = progress

    def close(self) -> None:
        """Nothing."""

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Record an exception that ends the job."""
        try:
            yield
        except BaseException as error:
            # The streams turn an error into an exit code, and keep it as the cause.
            cause = error.__cause__ if isinstance(error, typer.Exit) and error.__cause__ is not None else error
            self.ended(self._early(cause), exit_code_of(error))
            raise

    def ended(self, summary: Mapping[str, Any], exit_code: int) -> None:
        """Record the end: print the summary, write the files."""
        line = json.dumps({**summary, "exit_code": exit_code}, ensure_ascii=False)
        if exit_code != READER_GONE:
            print_summary(line, to_stderr=self._output == "-")
        if self._metrics is not None:
            self._metrics.ended(exit_code)
        if self._summary_file is not None:
            write_file("--summary-file", self._summary_file, line + "\n")

    def _early(self, error: BaseException) -> dict[str, Any]:
        if isinstance(error, StalledError):
            status = "stalled"
        else:
            status = "interrupted" if exit_code_of(error) in _INTERRUPTED else "failed"
        done, failed = self._progress.rows_done, self._progress.rows_failed
        counts = {"total": done, "completed": done - failed, "failed": failed}
        return {
            "status": status,
            "error": str(error) if isinstance(error, BatchgenError) else None,
            "request_counts": counts,
            "output": self._output,
            "elapsed_s": round(time.monotonic() - self._began, 3),
        }


def exit_code_of(error: BaseException) -> int:
    """The code that the process ends with when nobody catches this."""
    if isinstance(error, BatchgenError | typer.Exit):
        return error.exit_code
    if isinstance(error, KeyboardInterrupt):
        return 130
    if isinstance(error, SystemExit) and isinstance(error.code, int | None):
        return error.code or 0
    return 1
