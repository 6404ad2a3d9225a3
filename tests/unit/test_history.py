"""What runs leave of themselves: samples that get fewer, not longer; one file a run."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchgen.config import MergeConfig
from batchgen.io import history as files
from batchgen.io.history import next_run_file, read_runs, run_files, write_run
from batchgen.io.shards import shard_folder
from batchgen.job import run_job
from batchgen.job.history import COUNTERS, RunHistory, Samples
from batchgen.job.merge import merge_shards
from batchgen.progress import Progress
from tests.unit.test_job import Silent, job, line, run, write


def integral(samples: Samples, gauge: str) -> float:
    """Of a gauge over time, as the samples tell it; the first sample began at 0."""
    ends = samples.columns["elapsed_s"]
    starts = [0.0, *ends]
    return sum(value * (end - start) for value, start, end in zip(samples.columns[gauge], starts, ends, strict=False))


@pytest.mark.parametrize("states", [1, 7, 511, 512, 513, 20_000])
def test_samples_are_few_and_lose_nothing_of_the_sums(states: int) -> None:
    samples = Samples()
    wanted = 0.0
    for number in range(1, states + 1):
        running = number % 97
        wanted += running * 0.25
        state = Progress(elapsed_s=number * 0.25, steps=number, running=running, output_tokens=3 * number)
        samples.push(state)
    samples.close(state)
    steps = samples.columns["steps"]
    assert len(steps) <= 512
    assert len(steps) >= min(states, 256)
    assert steps == sorted(set(steps))
    assert (steps[0], steps[-1]) == (1, states)
    assert samples.columns["output_tokens"] == [3 * step for step in steps]
    assert integral(samples, "running") == pytest.approx(wanted, rel=1e-3)


@given(st.lists(st.tuples(st.floats(0, 40), st.integers(0, 9)), min_size=1, max_size=3000))
def test_samples_of_any_rhythm_end_with_the_last_state(moves: list[tuple[float, int]]) -> None:
    samples, at, tokens = Samples(), 0.0, 0
    for seconds, more in moves:
        at, tokens = at + seconds, tokens + more
        state = Progress(elapsed_s=at, computed_tokens=tokens, running=4, kv_used=0.5)
        samples.push(state)
    samples.close(state)
    assert {len(column) for column in samples.columns.values()} == {len(samples.columns["steps"])}
    assert [samples.columns[name][-1] for name in COUNTERS] == [round(getattr(state, name), 4) for name in COUNTERS]
    assert set(samples.columns["running"]) == {4.0}
    assert set(samples.columns["kv_used"]) == {0.5}


class Stops(Silent):
    """Interrupts after some rows."""

    def update(self, progress: Progress) -> None:
        if progress.rows_done >= 10:
            raise KeyboardInterrupt


def lines(count: int) -> list[str | bytes]:
    return [json.dumps(line(str(i), prompt=f"the sea {i}", temperature=0)) for i in range(count)]


@pytest.mark.parametrize("name", ["out", "out.parquet"])
def test_each_run_has_its_story(tiny_model: Path, tmp_path: Path, name: str) -> None:
    source, target = write(tmp_path / "in.jsonl", lines(40)), tmp_path / name
    config = job(tiny_model, source, target, output={"seconds_per_shard": 0.0})
    with pytest.raises(KeyboardInterrupt):
        run_job(config, tmp_path / "home", Stops())
    summary = run(config, tmp_path).to_json()
    run(config, tmp_path)  # finds everything done
    folder = target if name == "out" else tmp_path / f".{name}.batchgen"
    stopped, finished = read_runs(folder)
    assert (stopped["state"], finished["state"]) == ("stopped", "finished")
    told = finished["progress"]
    assert (told["rows_done"], told["rows_resumed"]) == (40, summary["request_counts"]["resumed"])
    assert told["computed_tokens"] == summary["usage"]["computed_tokens"]
    assert told["needed_tokens"] == pytest.approx(told["computed_tokens"] / summary["redundancy"], rel=1e-3)
    assert told["kernels_s"] == pytest.approx(summary["time"]["kernels_s"], abs=1e-3)
    assert told["scheduling_s"] == pytest.approx(summary["time"]["scheduling_s"], abs=1e-3)
    assert finished["engine"]["max_num_seqs"] == 16
    assert finished["machine"]["threads"] == 1
    assert set(finished["stages"]) == {"loading model", "generating"}
    assert {key: column[-1] for key, column in finished["samples"].items() if key in COUNTERS} == {
        key: round(told[key], 4) for key in COUNTERS
    }
    assert max(finished["samples"]["running"]) > 0

    run(replace(config, output=replace(config.output, overwrite=True)), tmp_path)
    (anew,) = read_runs(folder)
    assert anew["progress"]["rows_resumed"] == 0


def test_a_merged_output_has_the_runs_of_its_shards(tiny_model: Path, tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", lines(9))
    config = job(tiny_model, source, tmp_path / "out")
    for index in range(2):
        output = replace(config.output, output_file=shard_folder(config.output.output_file, index, 2))
        run(replace(config, output=output, num_shards=2, shard_index=index), tmp_path)
    merge_shards([tmp_path / "out"], MergeConfig())
    runs = read_runs(tmp_path / "out")
    assert [told["shard"] for told in runs] == ["0 of 2", "1 of 2"]
    assert sum(told["progress"]["rows_done"] for told in runs) == 9


def test_of_many_runs_the_last_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_KEPT", 3)
    (tmp_path / ".batchgen").mkdir()
    for number in range(5):
        write_run(next_run_file(tmp_path), {"number": number})
    assert [told["number"] for told in read_runs(tmp_path)] == [2, 3, 4]
    assert [path.name for path in run_files(tmp_path)] == [f"run-0000{number}.json" for number in (2, 3, 4)]


def test_a_damaged_file_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / ".batchgen").mkdir()
    write_run(next_run_file(tmp_path), {"number": 0})
    next_run_file(tmp_path).write_text('{"number": 1')
    assert read_runs(tmp_path) == [{"number": 0}]
    assert "run-00001.json cannot be read" in caplog.text


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_the_story_is_safe_every_20_seconds(tmp_path: Path) -> None:
    (tmp_path / ".batchgen").mkdir()
    clock = Clock()
    told = RunHistory(tmp_path, "3 of 8", clock)
    told.stage("loading model")
    clock.now += 7
    told.stage("generating")
    seen: list[Any] = []
    for second in range(45):
        clock.now += 1
        told.update(Progress(elapsed_s=float(second), rows_done=second))
        (found,) = read_runs(tmp_path)
        seen.append(found["progress"]["rows_done"])
    assert seen == [0] * 20 + [20] * 20 + [40] * 5
    assert (found["state"], found["shard"], found["stages"]) == ("running", "3 of 8", {"loading model": 7.0})


def test_what_cannot_be_written_ends_no_job(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    told = RunHistory(tmp_path / "gone", None, clock)
    with caplog.at_level(logging.WARNING, "batchgen"):
        for second in range(60):
            clock.now += 1
            told.update(Progress(elapsed_s=float(second)))
        told.ended("finished")
    assert len(caplog.messages) == 1
    assert "cannot be recorded" in caplog.messages[0]
