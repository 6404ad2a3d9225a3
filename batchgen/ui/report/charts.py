"""Pictures as numbers: what the page's templates turn into SVG. Places are percent of a plot's width and height, so
that a plot stretches to any size while its words, which are HTML, keep theirs."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

import numpy as np

from batchgen.ui import words
from batchgen.ui.report.timeline import Floats, Span, Timeline

__all__ = ["Bar", "Chart", "Histogram", "Line", "Series", "Tick", "histogram", "line_chart", "preemptions", "quantile"]

_WIDTH, _HEIGHT = 1000.0, 100.0
"""Of a plot, in the units of its SVG."""
_TABLE_ROWS = 40
_BARS = 32
_TIME_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)


@dataclass(frozen=True, slots=True)
class Tick:
    """A label at an axis."""

    at: float
    """Percent from the left, or from the bottom."""
    label: str


@dataclass(frozen=True, slots=True)
class Series:
    """What a line shows: a column of the timeline under a name."""

    name: str
    column: str
    show: Callable[[float], str]


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a chart."""

    name: str
    mean: str
    path: str
    area: str


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines over time."""

    name: str
    title: str
    note: str
    lines: tuple[Line, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    edges: tuple[float, ...]
    """Where a run ends and the next one begins."""
    marks: tuple[Tick, ...]
    """What happened at a moment."""
    pointed: str
    """JSON for the reader who points: places, times, and values in words."""
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    """The same as a table, in fewer intervals."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of a histogram."""

    left: float
    width: float
    height: float
    label: str
    count: int


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many rows are how long."""

    name: str
    title: str
    bars: tuple[Bar, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    facts: Mapping[str, str]


def line_chart(
    time: Timeline,
    name: str,
    title: str,
    note: str,
    series: SequenceOf[Series],
    also: SequenceOf[Series] = (),
    top: float | None = None,
    marks: SequenceOf[Tick] = (),
) -> Chart | None:
    """A chart of columns of the timeline; None where none of them has a value. `also`: columns that the table alone
    has. `top`: the end of the axis; None: what the values need. `marks`: what happened at a moment."""
    drawn = [one for one in series if not np.isnan(time.values[one.column]).all()]
    if not drawn:
        return None
    highest = max(float(np.nanmax(time.values[one.column])) for one in drawn)
    ticks = _ticks(highest if top is None else top)
    scale = ticks[-1] or 1.0
    lines = []
    for one in drawn:
        line, area = _path(time, time.values[one.column] / scale)
        mean = time.means[one.column]
        lines.append(Line(one.name, "\u2013" if mean is None else one.show(mean), line, area))
    return Chart(
        name=name,
        title=title,
        note=note,
        lines=tuple(lines),
        x_ticks=_time_ticks(time.spans),
        y_ticks=tuple(Tick(100 * tick / scale, drawn[0].show(tick)) for tick in ticks),
        edges=tuple(50 * (a.stop + b.start) for a, b in zip(time.spans, time.spans[1:], strict=False)),
        marks=tuple(marks),
        pointed=_pointed(time, drawn),
        head=("time", *(one.name for one in (*drawn, *also))),
        rows=_table(time, (*drawn, *also)),
    )


def preemptions(time: Timeline) -> list[Tick]:
    """A mark wherever sequences were preempted."""
    return [
        Tick(50 * (at.start + at.stop), f"{round(count)} preempted, {at.label}")
        for at, count in zip(time.intervals, time.values["preemptions"], strict=True)
        if round(count)
    ]


def histogram(name: str, title: str, counts: Mapping[int, int]) -> Histogram | None:
    """Rows by their length; None where there are none."""
    if not counts:
        return None
    edges = _bin_edges(max(counts), quantile(counts, 0.5))
    heights = [0] * (len(edges) - 1)
    for length, rows in counts.items():
        heights[int(np.searchsorted(edges, length, side="right")) - 1] += rows
    ticks = _ticks(max(heights))
    width = 100 / len(heights)
    bars = tuple(
        Bar(at * width, width, 100 * rows / ticks[-1], _range(edges[at], edges[at + 1]), rows)
        for at, rows in enumerate(heights)
    )
    every = -(-len(heights) // 8)
    total = sum(counts.values())
    mean = sum(length * rows for length, rows in counts.items()) / total
    return Histogram(
        name=name,
        title=title,
        bars=bars,
        x_ticks=tuple(Tick(at * width, f"{edges[at]:,}") for at in range(0, len(heights), every)),
        y_ticks=tuple(Tick(100 * tick / ticks[-1], words.short(tick)) for tick in ticks if tick == int(tick)),
        facts={
            "shortest": f"{min(counts):,}",
            "median": f"{quantile(counts, 0.5):,}",
            "mean": f"{mean:,.1f}",
            "90% up to": f"{quantile(counts, 0.9):,}",
            "99% up to": f"{quantile(counts, 0.99):,}",
            "longest": f"{max(counts):,}",
        },
    )


def quantile(counts: Mapping[int, int], share: float) -> int:
    """The least length that so many of the rows do not exceed."""
    wanted, before = share * sum(counts.values()), 0
    for length in sorted(counts):
        before += counts[length]
        if before >= wanted:
            return length
    return max(counts)


def _ticks(highest: float) -> list[float]:
    """Round numbers from 0 up to the first one that is not below."""
    step = _nice(highest / 4) if highest > 0 else 0.25
    return [step * number for number in range(max(1, math.ceil(highest / step - 1e-9)) + 1)]


def _nice(value: float) -> float:
    """The least of 1, 2, 2.5, 5, 10 times a power of ten that is not below."""
    power = 10.0 ** math.floor(math.log10(value))
    return power * next(factor for factor in (1.0, 2.0, 2.5, 5.0, 10.0) if factor * power >= value * (1 - 1e-9))


def _bin_edges(longest: int, median: int) -> list[int]:
    """Edges of half-open intervals from 0 on: equal ones, but doubling ones where a few are far longer than most."""
    if longest > 20 * max(1, median):
        return [0, *(1 << power for power in range(longest.bit_length() + 1))]
    step = max(1, math.ceil(_nice((longest + 1) / _BARS)))
    return list(range(0, longest + step + 1, step))


def _range(start: int, stop: int) -> str:
    return f"{start:,}" if stop == start + 1 else f"{start:,}\u2013{stop - 1:,}"


def _path(time: Timeline, heights: Floats) -> tuple[str, str]:
    """A line through the middle of the intervals, and the area below it; both break off where there is no value."""
    line, area = [], []
    for span in time.spans:
        for run in _known(span.intervals, heights):
            places = [time.intervals[at] for at in run]
            x = [places[0].start, *((one.start + one.stop) / 2 for one in places), places[-1].stop]
            y = [heights[run[0]], *(heights[at] for at in run), heights[run[-1]]]
            points = [f"{_WIDTH * a:.1f} {_HEIGHT * (1 - min(b, 1.0)):.2f}" for a, b in zip(x, y, strict=True)]
            line.append("M" + "L".join(points))
            area.append(f"{line[-1]}V{_HEIGHT:g}H{_WIDTH * x[0]:.1f}Z")
    return "".join(line), "".join(area)


def _known(intervals: slice, heights: Floats) -> list[list[int]]:
    """Numbers of intervals that have a value, neighbours together."""
    found: list[list[int]] = []
    for at in range(intervals.start, intervals.stop):
        if np.isnan(heights[at]):
            continue
        if found and found[-1][-1] == at - 1:
            found[-1].append(at)
        else:
            found.append([at])
    return found


def _time_ticks(spans: SequenceOf[Span]) -> tuple[Tick, ...]:
    if len(spans) > 1:
        # Those too narrow for their number have it in the table.
        wide = [span for span in spans if span.stop - span.start > 0.03]
        return tuple(Tick(100 * s.start, f"run {s.run}" if s.stop - s.start > 0.12 else str(s.run)) for s in wide)
    (span,) = spans
    step = next((step for step in _TIME_STEPS if span.seconds / step <= 6), 86400 * math.ceil(span.seconds / 518400))
    return tuple(
        Tick(100 * step * number / span.seconds, words.duration(step * number))
        for number in range(int(span.seconds / step) + 1)
    )


def _pointed(time: Timeline, series: SequenceOf[Series]) -> str:
    return json.dumps(
        {
            "x": [round(50 * (one.start + one.stop), 2) for one in time.intervals],
            "time": [one.label for one in time.intervals],
            "values": [[_shown(one, value) for value in time.values[one.column]] for one in series],
        },
        separators=(",", ":"),
        ensure_ascii=False,
    )


def _table(time: Timeline, series: SequenceOf[Series]) -> tuple[tuple[str, ...], ...]:
    """Intervals of the same run taken together, so that a table of them can be read."""
    group = -(-len(time.intervals) // _TABLE_ROWS)
    rows = []
    for span in time.spans:
        for first in range(span.intervals.start, span.intervals.stop, group):
            last = min(first + group, span.intervals.stop) - 1
            begin, end = time.intervals[first].label.rpartition("\u2013")[0], time.intervals[last].label
            values = [time.values[one.column][first : last + 1] for one in series]
            means = [np.nan if np.isnan(some).all() else float(np.nanmean(some)) for some in values]
            label = f"{begin}\u2013{end.rpartition(chr(0x2013))[2]}"
            rows.append((label, *(_shown(one, mean) for one, mean in zip(series, means, strict=True))))
    return tuple(rows)


def _shown(series: Series, value: float) -> str:
    return "\u2013" if np.isnan(value) else series.show(float(value))
