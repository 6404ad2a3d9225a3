"""The state of a job in a file that a monitoring agent collects: Prometheus text, or JSON."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from batchgen.progress import Progress

if TYPE_CHECKING:
    from prometheus_client.core import Metric

__all__ = ["MetricsFile"]

_WRITE_EVERY_S = 5.0

_FAMILIES: tuple[tuple[Literal["gauge", "counter"], str, str, str], ...] = (
    ("gauge", "rows", "Rows of the input, where that is known.", "rows_total"),
    ("gauge", "rows_done", "Rows with a result.", "rows_done"),
    ("gauge", "rows_failed", "Rows whose result is an error.", "rows_failed"),
    ("gauge", "sequences_running", "Sequences with blocks in the cache.", "running"),
    ("gauge", "sequences_waiting", "Sequences that wait for admission.", "waiting"),
    ("gauge", "kv_cache_usage_ratio", "Share of the KV-cache blocks in use.", "kv_used"),
    ("gauge", "generation_seconds", "Seconds since generation began.", "elapsed_s"),
    ("counter", "prompt_tokens", "Prompt tokens taken in.", "prompt_tokens"),
    ("counter", "computed_tokens", "Tokens that went through the model.", "computed_tokens"),
    ("counter", "cached_tokens", "Prompt tokens found in the cache.", "cached_tokens"),
    ("counter", "output_tokens", "Tokens generated.", "output_tokens"),
    ("counter", "preemptions", "Sequences that gave their blocks back.", "preemptions"),
)
"""Kind, name without `batchgen_`, help, and field of `Progress`."""

_log = logging.getLogger(__name__)


class MetricsFile:
    """Replaces the file every 5 s and at the end, each time as a whole: a reader never sees half of it.

    A file that can't be written is logged once and ends no job.
    """

    def __init__(self, path: Path, output: str, clock: Callable[[], float] = time.time) -> None:
        """`path` ends in `.prom` (text format of Prometheus) or `.json`. `output` labels the job."""
        self._path = path
        self._output = output
        self._clock = clock
        self._stage = "starting"
        self._progress = Progress()
        self._exit_code: int | None = None
        self._written_at = 0.0
        self._failed = False

    def stage(self, text: str) -> None:
        """Keep the stage for the next write."""
        self._stage = text

    def update(self, progress: Progress) -> None:
        """Keep the progress for the next write."""
        self._progress = progress

    def tick(self) -> None:
        """Write, if the file is 5 s old."""
        if self._clock() - self._written_at >= _WRITE_EVERY_S:
            self.write()

    def close(self) -> None:
        """Nothing: the last word is `ended`, which comes later."""

    def ended(self, exit_code: int) -> None:
        """Write the last state, and how the job ended. Comes after the last tick."""
        self._stage, self._exit_code = "ended", exit_code
        self.write()

    def collect(self) -> Iterator[Metric]:
        """The state as Prometheus' client library takes it."""
        yield self._family("gauge", "up", "1 while the job runs.", float(self._exit_code is None))
        yield self._family("gauge", "updated_timestamp_seconds", "When this was written.", self._written_at)
        if self._exit_code is not None:
            yield self._family("gauge", "exit_code", "How the job ended.", self._exit_code)
        for kind, name, text, field in _FAMILIES:
            value = getattr(self._progress, field)
            if value is not None:
                yield self._family(kind, name, text, value)

    def _family(self, kind: Literal["gauge", "counter"], name: str, text: str, value: float) -> Metric:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        family = GaugeMetricFamily if kind == "gauge" else CounterMetricFamily
        metric = family(f"batchgen_{name}", text, labels=["output"])
        metric.add_metric([self._output], value)
        return metric

    def write(self) -> None:
        """Write the state as it is now."""
        self._written_at = self._clock()
        try:
            if self._path.suffix == ".json":
                temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}.tmp")
                temporary.write_text(json.dumps(self._record(), ensure_ascii=False) + "\n", encoding="utf-8")
                temporary.replace(self._path)
            else:
                from prometheus_client import CollectorRegistry, write_to_textfile

                registry = CollectorRegistry()
                registry.register(self)
                write_to_textfile(str(self._path), registry)
        except OSError as error:
            if not self._failed:
                _log.warning("%s: the state of the job cannot be written there: %s", self._path, error)
            self._failed = True

    def _record(self) -> dict[str, Any]:
        return {
            "output": self._output,
            "stage": self._stage,
            "updated": self._written_at,
            "exit_code": self._exit_code,
            "progress": asdict(self._progress),
        }
