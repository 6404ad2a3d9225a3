"""Outputs seen from outside: while they are written, when they were left, when they are finished."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from batchgen.errors import UsageError
from batchgen.io.shards import shard_folder
from batchgen.job import run_job
from batchgen.job.inspection import inspect_output
from batchgen.job.status import status_of
from batchgen.progress import Progress
from batchgen.ui.tables import show_inspection, status_lines
from tests.unit.test_job import BAD, GOOD, Silent, job, line, run, write


class Observer(Silent):
    """Asks for the status at the first steps, then interrupts."""

    def __init__(self, output: Path) -> None:
        self.output = output
        self.seen: list[dict[str, Any]] = []

    def update(self, progress: Progress) -> None:
        self.seen.append(status_of(self.output))
        if progress.rows_done >= 10:
            raise KeyboardInterrupt


@pytest.mark.parametrize("name", ["out", "out.jsonl"])
def test_running_stopped_finished(tiny_model: Path, tmp_path: Path, name: str) -> None:
    source = write(
        tmp_path / "in.jsonl", [json.dumps(line(str(i), prompt=f"the sea {i}", temperature=0)) for i in range(40)]
    )
    target = tmp_path / name
    config = job(tiny_model, source, target, output={"seconds_per_shard": 0.0})
    observer = Observer(target)
    with pytest.raises(KeyboardInterrupt):
        run_job(config, tmp_path / "home", observer)
    assert {status["state"] for status in observer.seen} == {"running"}
    assert observer.seen[-1]["stage"] == "generating"
    stopped = status_of(target)
    assert (stopped["state"], stopped["model"]) == ("stopped", tiny_model.name)
    assert 10 <= stopped["rows_done"] < 40
    assert inspect_output(target)["rows"]["total"] == stopped["rows_done"]

    run(config, tmp_path)
    finished = status_of(target)
    assert (finished["state"], finished["rows_done"], finished["rows_total"]) == ("finished", 40, 40)
    assert finished["rows_resumed"] == stopped["rows_done"]
    (shown,) = status_lines(finished)
    assert shown == f"{target}: finished | 40/40 rows (100%) | {stopped['rows_done']} resumed"


def test_shards_are_shown_together(tiny_model: Path, tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", [json.dumps(line(str(i), temperature=0)) for i in range(9)])
    config = job(tiny_model, source, tmp_path / "out")
    for index in range(2):
        output = replace(config.output, output_file=shard_folder(config.output.output_file, index, 2))
        run(replace(config, output=output, num_shards=2, shard_index=index), tmp_path)
        status = status_of(tmp_path / "out")
        assert status["state"] == ("finished" if index else "stopped")
        assert len(list(status_lines(status))) == index + 2
    assert (status["rows_done"], status["rows_total"], status["rows_failed"]) == (9, 9, 0)


def test_nothing_there(tmp_path: Path) -> None:
    for ask in (status_of, inspect_output):
        with pytest.raises(UsageError, match="of batchgen"):
            ask(tmp_path / "none")
    (tmp_path / "other.jsonl").write_text("{}\n")
    with pytest.raises(UsageError, match="no result of batchgen"):
        inspect_output(tmp_path / "other.jsonl")


@pytest.mark.parametrize("name", ["out", "out.jsonl", "out.parquet", "out.arrow"])
def test_figures_are_the_same_in_every_form(
    tiny_model: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lines: list[str | bytes] = [json.dumps(good) for good in GOOD]
    source = write(tmp_path / "in.jsonl", [*lines, *(bad for bad, _ in BAD)])
    summary = run(job(tiny_model, source, tmp_path / name), tmp_path)
    found = inspect_output(tmp_path / name)
    assert found["rows"] == {"total": len(GOOD) + len(BAD), "completed": len(GOOD), "failed": len(BAD)}
    assert {entry["code"]: entry["rows"] for entry in found["failures"]} == Counter(code for _, code in BAD)
    assert sum(found["finish_reasons"].values()) == len(GOOD)
    for key in ("prompt_tokens", "completion_tokens", "cached_tokens"):
        assert found["lengths"][key]["sum"] == summary.to_json()["usage"][key]
    assert found["lengths"]["completion_tokens"]["max"] >= found["lengths"]["completion_tokens"]["p50"] > 0
    assert found["timing"]["generation_s"] > 0
    show_inspection(found)
    text = capsys.readouterr().out
    assert f"{len(GOOD) + len(BAD)} rows, {len(GOOD)} completed, {len(BAD)} failed" in text
    assert "invalid_json_line" in text
    assert "output tokens/s" in text
    assert json.loads(json.dumps(found)) == found
