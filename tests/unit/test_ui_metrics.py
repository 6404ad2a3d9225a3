"""The metrics file, read back by the client library's own parser."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from batchgen.progress import Progress
from batchgen.ui.metrics import MetricsFile

OUTPUT = 'out "x".jsonl'
PROGRESS = Progress(rows_total=10, rows_done=4, rows_failed=1, kv_used=0.5, output_tokens=77, elapsed_s=2.5)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def samples(path: Path) -> dict[str, float]:
    found = {}
    for family in text_string_to_metric_families(path.read_text()):
        for sample in family.samples:
            assert sample.labels == {"output": OUTPUT}
            found[sample.name] = sample.value
    return found


def test_prometheus_text(tmp_path: Path) -> None:
    path, clock = tmp_path / "job.prom", Clock()
    metrics = MetricsFile(path, OUTPUT, clock)
    metrics.tick()
    assert samples(path)["batchgen_up"] == 1
    assert "batchgen_rows" not in samples(path)  # not known yet
    metrics.update(PROGRESS)
    metrics.tick()
    assert samples(path)["batchgen_rows_done"] == 0  # not due
    clock.now += 5
    metrics.tick()
    found = samples(path)
    assert found["batchgen_rows"] == 10
    assert found["batchgen_rows_failed"] == 1
    assert found["batchgen_output_tokens_total"] == 77
    assert found["batchgen_updated_timestamp_seconds"] == 1005
    assert "batchgen_exit_code" not in found
    metrics.ended(3)
    assert (samples(path)["batchgen_up"], samples(path)["batchgen_exit_code"]) == (0, 3)
    assert [file.name for file in tmp_path.iterdir()] == ["job.prom"]


def test_json(tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    metrics = MetricsFile(path, OUTPUT)
    metrics.stage("generating")
    metrics.update(PROGRESS)
    metrics.tick()
    record = json.loads(path.read_text())
    assert (record["output"], record["stage"], record["exit_code"]) == (OUTPUT, "generating", None)
    assert record["progress"]["rows_done"] == 4
    metrics.ended(0)
    assert json.loads(path.read_text())["exit_code"] == 0
    assert [file.name for file in tmp_path.iterdir()] == ["job.json"]


@pytest.mark.parametrize("ending", ["prom", "json"])
def test_a_reader_never_sees_half_a_file(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"job.{ending}"
    metrics = MetricsFile(path, OUTPUT)
    metrics.ended(0)
    with path.open() as reader:
        metrics.ended(1)
        old = reader.read()
    assert old != path.read_text()
    assert ('"exit_code": 0' if ending == "json" else 'exit_code{output="out \\"x\\".jsonl"} 0.0') in old


def test_a_file_that_cannot_be_written_ends_no_job(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    metrics = MetricsFile(tmp_path / "gone" / "job.prom", OUTPUT, Clock())
    with caplog.at_level(logging.WARNING):
        metrics.ended(0)
        metrics.ended(0)
    assert len(caplog.messages) == 1
    assert "job.prom: the state of the job cannot be written" in caplog.messages[0]
