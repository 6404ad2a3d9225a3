"""One set of requests, run several times and with several batch sizes, with a model that is loaded once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import Any, Protocol

from batchgen.bench.datasets import BenchRequest
from batchgen.bench.throughput import Throughput, measure
from batchgen.config import EngineConfig
from batchgen.core.sampling import SamplingParams
from batchgen.core.sequence import Sequence
from batchgen.errors import UsageError
from batchgen.progress import Reporter

__all__ = ["Point", "RunsConfig", "SweptEngine", "fastest", "measure_points", "point_lines"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsConfig:
    """How often, and with which batch sizes. Raises `UsageError` for sizes that are none."""

    num_runs: int = 1
    sweep_max_num_seqs: str | None = None
    """Sizes with commas between them; None: the engine's own alone."""

    def __post_init__(self) -> None:
        if self.sweep_max_num_seqs is not None and not re.fullmatch(r"[1-9]\d*(,[1-9]\d*)*", self.sweep_max_num_seqs):
            raise UsageError(
                f"--sweep-max-num-seqs {self.sweep_max_num_seqs}: write numbers with commas, such as 8,32,128"
            )

    def sizes(self, settings: EngineConfig) -> tuple[int, ...]:
        """The batch sizes, smallest first. A step of so many tokens has no more sequences."""
        named = self.sweep_max_num_seqs or str(settings.max_num_seqs)
        return tuple(sorted({min(int(size), settings.max_num_batched_tokens) for size in named.split(",")}))


class SweptEngine(Protocol):
    """The part of an engine that is measured."""

    def generate(
        self,
        prompts: Iterable[SequenceOf[int]],
        params: Iterable[SamplingParams],
        *,
        max_num_seqs: int | None = None,
    ) -> Iterator[Sequence]:
        """Run prompts with an empty cache, and as an engine would that was loaded with this limit."""
        ...


@dataclass(frozen=True, slots=True)
class _Limited:
    """An engine that runs so many sequences in a step, at most."""

    engine: SweptEngine
    max_num_seqs: int

    def generate(self, prompts: Iterable[SequenceOf[int]], params: Iterable[SamplingParams]) -> Iterator[Sequence]:
        return self.engine.generate(prompts, params, max_num_seqs=self.max_num_seqs)


@dataclass(frozen=True, slots=True)
class Point:
    """What one batch size came to, in one run or several."""

    max_num_seqs: int
    runs: SequenceOf[Throughput]

    @property
    def median(self) -> Throughput:
        """The run in the middle by its time; of two the faster one of those in the middle."""
        return sorted(self.runs, key=lambda run: run.elapsed_s)[(len(self.runs) - 1) // 2]

    def to_json(self, bound_s: float | None) -> dict[str, Any]:
        """The figures of the median run, then those of each; `bound_s`: seconds that the work takes at least."""
        return {
            "max_num_seqs": self.max_num_seqs,
            **self.median.to_json(),
            "efficiency": None if bound_s is None else bound_s / self.median.elapsed_s,
            "runs": [run.to_json() for run in self.runs],
        }


def measure_points(
    engine: SweptEngine, requests: SequenceOf[BenchRequest], sizes: Iterable[int], num_runs: int, reporter: Reporter
) -> list[Point]:
    """Time the requests with each batch size, `num_runs` times.

    Sizes take turns, so that a machine that slows down meanwhile slows all of them down. Raises what `measure` raises.
    """
    runs: Mapping[int, list[Throughput]] = {size: [] for size in sizes}
    for number in range(num_runs):
        for size, done in runs.items():
            reporter.stage(f"generating, {size} sequences at once, run {number + 1} of {num_runs}")
            done.append(measure(_Limited(engine, size), requests, reporter))
    return [Point(size, done) for size, done in runs.items()]


def fastest(points: Iterable[Point]) -> Point:
    """The batch size with most tokens a second."""
    return min(points, key=lambda point: point.median.elapsed_s)


def point_lines(points: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """A table of points, as `to_json` gives them."""
    head = f"{'max-num-seqs':>12}{'requests/s':>12}{'total tok/s':>13}{'output tok/s':>14}"
    yield f"{head}{'spread':>9}{'efficiency':>12}"
    for point in points:
        times = [run["elapsed_time"] for run in point["runs"]]
        spread = "" if len(times) == 1 else f"{(max(times) - min(times)) / point['elapsed_time']:.1%}"
        efficiency = "" if point["efficiency"] is None else f"{point['efficiency']:.1%}"
        yield (
            f"{point['max_num_seqs']:>12}{point['requests_per_second']:>12.2f}{point['tokens_per_second']:>13.1f}"
            f"{point['output_tokens_per_second']:>14.1f}{spread:>9}{efficiency:>12}"
        )
