"""What a person sees on standard error while a job runs: a live display, or log lines."""

from __future__ import annotations

from batchgen.ui.console import stderr_console
from batchgen.ui.live import LiveReporter
from batchgen.ui.logs import logs
from batchgen.ui.reporters import LineReporter, QuietReporter, reporter
from batchgen.ui.ticker import Together

__all__ = [
    "LineReporter",
    "LiveReporter",
    "MetricsFile",
    "QuietReporter",
    "Together",
    "logs",
    "reporter",
    "stderr_console",
]
