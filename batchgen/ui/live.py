"""The display on a terminal: three lines that fit 80 columns."""

from __future__ import annotations

import time
from collections.abc import Iterator

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from batchgen.progress import Progress
from batchgen.ui import words
from batchgen.ui.rates import Rates, RateWindow

__all__ = ["LiveReporter"]

_WINDOW_S = 10.0
_SAMPLE_EVERY_S = 0.5


class LiveReporter:
    """Redraws the state of the job twice a second, from a thread of rich's; `update` only keeps it."""

    def __init__(self, console: Console) -> None:
        self._spinner = Spinner("line")
        self._stage, self._stage_began = "starting", time.monotonic()
        self._progress: Progress | None = None
        self._window = RateWindow(_WINDOW_S)
        self._rates = Rates()
        self._sample_due = 0.0
        self._live = Live(console=console, get_renderable=self._render, refresh_per_second=2)
        self._live.start()

    def stage(self, text: str) -> None:
        """Show the stage beside a spinner, and above the bar once there is progress."""
        self._stage, self._stage_began = text, time.monotonic()

    def update(self, progress: Progress) -> None:
        """Keep the progress for the next redraw."""
        self._progress = progress
        if progress.elapsed_s >= self._sample_due:
            self._sample_due = progress.elapsed_s + _SAMPLE_EVERY_S
            self._window.push(progress)
            self._rates = self._window.rates()

    def close(self) -> None:
        """Leave the last state on the terminal."""
        self._live.stop()

    def _render(self) -> RenderableType:
        progress, rates = self._progress, self._rates
        if progress is None:
            self._spinner.update(text=f"{self._stage} {words.duration(time.monotonic() - self._stage_began)}")
            return self._spinner
        return Group(_bar_line(progress, rates), *_text_lines(self._stage, progress, rates))


def _bar_line(progress: Progress, rates: Rates) -> RenderableType:
    finished = progress.rows_done == progress.rows_total
    if finished or rates.remaining_s is None:
        clock = f"after {words.duration(progress.elapsed_s)}"
    else:
        clock = f"left {words.duration(rates.remaining_s)}"
    line = Table.grid(padding=(0, 1), expand=True)
    line.add_column(ratio=1)
    line.add_column(no_wrap=True)
    line.add_column(no_wrap=True, justify="right", min_width=12)
    total = progress.rows_total
    bar = ProgressBar(total=total, completed=progress.rows_done, pulse=total is None)
    line.add_row(bar, Text(words.rows(progress), style="bold"), Text(clock, style="cyan"))
    return line


def _text_lines(stage: str, progress: Progress, rates: Rates) -> Iterator[Text]:
    yield _line(words.speed(rates), *words.load(progress), *words.some(progress.rows_failed, "failed"))
    yield _line(stage, words.totals(progress), *words.some(progress.preemptions, "preempted"))


def _line(*parts: str) -> Text:
    return Text(" | ".join(parts), no_wrap=True, overflow="ellipsis")
