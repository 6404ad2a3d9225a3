"""Runs side by side on one axis of time, cut into intervals."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from batchgen.ui import words

__all__ = ["Interval", "Span", "Timeline", "timeline"]

_INTERVALS = 160
_FEWEST = 4
_GAP = 0.012
"""Between two runs, as a share of the width."""
_COUNTERS: Mapping[str, str] = {"computed": "computed_tokens", "output": "output_tokens", "prompt": "prompt_tokens"}
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Span:
    """A run's place on the axis, in [0, 1]."""

    run: int
    """Its number, from 1."""
    start: float
    stop: float
    seconds: float
    intervals: slice
    """Which of the timeline's intervals are the run's."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A piece of a run: where it is on the axis, and its time in words."""

    start: float
    stop: float
    label: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """Values for every interval; nan where there is none."""

    spans: tuple[Span, ...]
    intervals: tuple[Interval, ...]
    values: Mapping[str, Floats]
    """Tokens a second: computed, output, prompt. Rows a second: rows. Shares: running, step, kv. Counts: waiting,
    preemptions."""
    means: Mapping[str, float | None]
    """Of the same over all runs' time; preemptions: their number."""


def timeline(runs: SequenceOf[Mapping[str, Any]]) -> Timeline | None:
    """The runs of an output in order; None where none of them took any time."""
    timed = [(number, run) for number, run in enumerate(runs, 1) if _seconds(run) > 0]
    if not timed:
        return None
    total = sum(_seconds(run) for _, run in timed)
    width = 1.0 - _GAP * (len(timed) - 1) if len(timed) * _GAP < 0.5 else 0.5
    gap = (1.0 - width) / max(1, len(timed) - 1)
    spans: list[Span] = []
    intervals: list[Interval] = []
    pieces: list[Mapping[str, Floats]] = []
    at = 0.0
    for number, run in timed:
        seconds = _seconds(run)
        share = width * seconds / total
        count = min(len(run["samples"]["elapsed_s"]), max(_FEWEST, round(_INTERVALS * seconds / total)))
        edges = np.linspace(0.0, seconds, count + 1)
        label = _label(number, run) if len(runs) > 1 else ""
        spans.append(Span(number, at, at + share, seconds, slice(len(intervals), len(intervals) + count)))
        places = at + share * edges / seconds
        for start, stop, begin, end in zip(places, places[1:], edges, edges[1:], strict=False):
            time = f"{words.duration(begin)}\u2013{words.duration(end)}"
            intervals.append(Interval(float(start), float(stop), f"{label} {time}".strip()))
        pieces.append(_values(run, edges))
        at += share + gap
    values = {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
    weights = np.concatenate([np.full(s.intervals.stop - s.intervals.start, s.seconds) for s in spans])
    weights /= np.concatenate([np.full(n, n) for s in spans if (n := s.intervals.stop - s.intervals.start)])
    means = {name: _mean(column, weights) for name, column in values.items()}
    means["preemptions"] = float(values["preemptions"].sum())
    return Timeline(tuple(spans), tuple(intervals), values, means)


def _seconds(run: Mapping[str, Any]) -> float:
    ends = run["samples"]["elapsed_s"]
    return float(ends[-1]) if ends else 0.0


def _label(number: int, run: Mapping[str, Any]) -> str:
    return f"run {number}" if run["shard"] is None else f"run {number} (shard {run['shard']})"


def _values(run: Mapping[str, Any], edges: Floats) -> dict[str, Floats]:
    """The run's values between the edges, which are seconds since it began to generate."""
    samples, engine = run["samples"], run.get("engine", {})
    ends = np.array([0.0, *samples["elapsed_s"]])
    seconds = np.diff(edges)

    def grown(name: str) -> Floats:
        return np.diff(np.interp(edges, ends, np.array([0.0, *samples[name]])))

    def mean(name: str) -> Floats:
        area = np.cumsum([0.0, *(np.diff(ends) * np.array(samples[name]))])
        found: Floats = np.diff(np.interp(edges, ends, area)) / seconds
        return found

    def share(value: Floats, name: str) -> Floats:
        return value / (engine.get(name) or np.nan)

    steps = grown("steps")
    per_step = np.divide(grown("computed_tokens"), steps, out=np.full_like(steps, np.nan), where=steps > 0)
    return {
        **{name: grown(field) / seconds for name, field in _COUNTERS.items()},
        "rows": (grown("rows_done") - grown("rows_resumed")) / seconds,
        "running": share(mean("running") / run["workers"], "max_num_seqs"),
        "step": share(per_step, "max_num_batched_tokens"),
        "kv": mean("kv_used"),
        "waiting": mean("waiting"),
        "preemptions": grown("preemptions"),
    }


def _mean(column: Floats, weights: Floats) -> float | None:
    known = ~np.isnan(column)
    return float(np.average(column[known], weights=weights[known])) if known.any() else None
