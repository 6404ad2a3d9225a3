"""The display on a terminal: three lines at 80 columns, more where it is narrower."""

from __future__ import annotations

import time
from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from batchgen.progress import Progress
from batchgen.ui import words
from batchgen.ui.rates import Rates, RateWindow, mean_rates

__all__ = ["LiveReporter"]

_WINDOW_S = 10.0
_SAMPLE_EVERY_S = 0.5
_WIDEST = 100
"""Columns that are used, however many there are: a bar across two screens is no help."""
_BETWEEN = " | "


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
        """Show the stage beside a spinner, until there is progress in it."""
        self._stage, self._stage_began = text, time.monotonic()
        self._progress, self._window, self._sample_due = None, RateWindow(_WINDOW_S), 0.0

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
        width = min(self._live.console.width, _WIDEST)
        if progress.rows_done == progress.rows_total:
            rates = mean_rates(progress)
        return Group(_bar_line(progress, rates, width), *_flow([*_parts(progress, rates), self._stage], width))


def _bar_line(progress: Progress, rates: Rates, width: int) -> RenderableType:
    if rates.remaining_s is None:
        clock = f"after {words.duration(progress.elapsed_s)}"
    else:
        clock = f"left {words.duration(rates.remaining_s)}"
    line = Table.grid(padding=(0, 1), expand=True)
    line.width = width
    line.add_column(ratio=1)
    line.add_column(no_wrap=True)
    # The bar keeps its end while the clock runs, where there is room for that.
    line.add_column(no_wrap=True, justify="right", min_width=12 if width > 60 else None)
    total = progress.rows_total
    bar = ProgressBar(total=total, completed=progress.rows_done, pulse=total is None)
    line.add_row(bar, Text(words.rows(progress), style="bold"), Text(clock, style="cyan"))
    return line


def _parts(progress: Progress, rates: Rates) -> list[str]:
    return [
        words.speed(rates),
        *words.load(progress),
        *words.some(progress.rows_failed, "failed"),
        *words.some(progress.rows_resumed, "resumed"),
        words.totals(progress),
        *words.some(progress.preemptions, "preempted"),
    ]


def _flow(parts: SequenceOf[str], width: int) -> Iterator[Text]:
    """Parts side by side, in as many lines as they need."""
    line = ""
    for part in parts:
        if line and len(line) + len(_BETWEEN) + len(part) > width:
            yield _line(line)
            line = part
        else:
            line = f"{line}{_BETWEEN}{part}" if line else part
    yield _line(line)


def _line(text: str) -> Text:
    return Text(text, no_wrap=True, overflow="ellipsis")
