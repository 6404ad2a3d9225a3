"""A job that goes on: from an interrupt, from an edited input, from failed rows, into another layout."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from batchgen.config import EngineConfig, InputConfig, JobConfig, ModelConfig, OutputConfig
from batchgen.errors import OutputMismatchError
from batchgen.io.manifest import manifest_of
from batchgen.io.single_file import read_parts
from batchgen.io.sources import result_files
from batchgen.job import Summary, run_job
from batchgen.progress import Progress
from tests.outputs import results


def request(number: int, **body: Any) -> dict[str, Any]:
    sampled = {"temperature": 1} if number % 2 else {"temperature": 0}
    body = {"prompt": f"the sea {number}", "max_tokens": 3 + number % 5, **sampled, **body}
    return {"custom_id": f"r{number}", "method": "POST", "url": "/v1/completions", "body": body}


def bad(number: int) -> dict[str, Any]:
    return request(number, stream=True)


def save(path: Path, lines: list[Any]) -> Path:
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


class After:
    """A reporter that interrupts the job when so many rows are done in this run, and knows whether a model loaded."""

    def __init__(self, rows: int | None = None) -> None:
        self.rows = rows
        self.stages: list[str] = []
        self.first: int | None = None

    def stage(self, text: str) -> None:
        self.stages.append(text)

    def update(self, progress: Progress) -> None:
        if self.rows is not None and progress.rows_done >= self.rows:
            raise KeyboardInterrupt

    def close(self) -> None:
        pass

    @property
    def loaded(self) -> bool:
        return "loading model" in self.stages


Start = Callable[..., tuple[Summary, After]]


@pytest.fixture
def start(tiny_model: Path, tmp_path: Path) -> Start:
    """Run a job: `start(source, target, stop_after=..., seed=..., **output settings)`."""

    def run(source: Path, target: Path, *, stop_after: int | None = None, seed: int = 0, **output: Any) -> Any:
        small = {"kv_cache_memory": 4 << 20, "threads": 1, "max_num_batched_tokens": 32, "max_num_seqs": 8}
        config = JobConfig(
            model=ModelConfig(model=str(tiny_model)),
            engine=EngineConfig(max_model_len=128, seed=seed, **small),  # type: ignore[arg-type]
            input=InputConfig(input_file=str(source), window=16),
            output=OutputConfig(**{"output_file": str(target), "rows_per_shard": 8, **output}),
        )
        reporter = After(stop_after)
        if stop_after is None:
            return run_job(config, tmp_path / "home", reporter), reporter
        with pytest.raises(KeyboardInterrupt):
            run_job(config, tmp_path / "home", reporter)
        return None, reporter

    return run


LINES: list[Any] = [bad(n) if n % 7 == 3 else request(n) for n in range(50)]
LINES[20:20] = ["{nonsense", request(4), "{nonsense"]


@pytest.mark.parametrize("name", ["out", "out.jsonl", "out.parquet", "out.arrow"])
@pytest.mark.parametrize("order", ["input", "completion"])
def test_interrupted_twice_is_as_if_it_had_never_stopped(start: Start, tmp_path: Path, name: str, order: str) -> None:
    source = save(tmp_path / "in.jsonl", LINES)
    whole, _ = start(source, tmp_path / f"whole-{name}", order=order)
    started = manifest_of(tmp_path / ("whole-out" if name == "out" else f".whole-{name}.batchgen"))
    assert started is not None
    start(source, tmp_path / name, stop_after=9, order=order)
    start(source, tmp_path / name, stop_after=33, order=order)
    summary, _ = start(source, tmp_path / name, order=order)
    assert 33 <= summary.counts.resumed < len(LINES)
    assert summary.to_json()["request_counts"]["resumed"] == summary.counts.resumed
    assert (summary.counts.total, summary.counts.failed) == (whole.counts.total, whole.counts.failed) == (53, 10)
    first, second = results(tmp_path / f"whole-{name}"), results(tmp_path / name)
    if order == "completion":
        first, second = (sorted(rows, key=json.dumps) for rows in (first, second))
    assert first == second


def test_a_finished_output_is_left_alone(start: Start, tmp_path: Path) -> None:
    source, out = save(tmp_path / "in.jsonl", LINES), tmp_path / "out"
    first, _ = start(source, out)
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    again, reporter = start(source, out)
    assert not reporter.loaded
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()} == before
    assert (again.counts.total, again.counts.failed, again.counts.resumed) == (53, first.counts.failed, 53)
    assert again.exit_code == first.exit_code == 0
    # The same requests in a file that looks new: every row is known, no model is needed.
    save(source, [f"  {json.dumps(line) if isinstance(line, dict) else line}" for line in LINES])
    again, reporter = start(source, out)
    assert not reporter.loaded
    assert again.counts.resumed == 53


def test_an_edited_input_runs_the_changed_rows_alone(start: Start, tmp_path: Path) -> None:
    source, out = save(tmp_path / "in.jsonl", LINES), tmp_path / "out"
    start(source, out)
    edited = [request(100), *LINES[:10], *LINES[12:], request(101), bad(102)]
    edited[5] = request(4, max_tokens=1)
    save(source, edited)
    summary, _ = start(source, out)
    # Of the old rows one is other than before, and what hangs on line numbers is judged anew: two lines without a
    # name and one with a name that is taken.
    assert summary.counts.total == len(edited)
    assert summary.counts.total - summary.counts.resumed == 3 + 1 + 3
    rows = results(out)
    assert [row["line"] for row in rows] == list(range(1, len(edited) + 1))
    assert all(row["error"]["line"] == row["line"] for row in rows if row["error"])
    fresh, _ = start(source, tmp_path / "fresh")
    assert fresh.counts.failed == summary.counts.failed

    def told(folder: Path) -> list[Any]:
        return [{**row, "response": (row["response"] or {}).get("choices")} for row in results(folder)]

    assert told(out) == told(tmp_path / "fresh")
    assert not list((out / ".batchgen").glob("rows-*"))


def test_rows_that_are_gone_leave_no_part_behind(start: Start, tmp_path: Path) -> None:
    source, out = save(tmp_path / "in.jsonl", LINES), tmp_path / "out"
    start(source, out)
    save(source, LINES[:5])
    summary, reporter = start(source, out)
    assert not reporter.loaded
    assert summary.counts.total == len(results(out)) == 5
    assert [path.name for path in result_files(out)] == ["part-00000.arrow"]


def test_appended_rows_leave_the_parts_as_they_are(start: Start, tmp_path: Path) -> None:
    source, out = save(tmp_path / "in.jsonl", LINES), tmp_path / "out"
    start(source, out)
    before = {path.name: path.stat().st_ino for path in result_files(out)}
    save(source, [*LINES, *map(request, range(200, 210))])
    summary, _ = start(source, out)
    assert summary.counts.resumed == 53
    after = {path.name: path.stat().st_ino for path in result_files(out)}
    assert before.items() <= after.items()
    assert len(results(out)) == 63


@pytest.mark.parametrize("name", ["out", "out.jsonl"])
def test_failed_rows_are_tried_again_where_the_fault_may_be_gone(
    start: Start, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from batchgen.protocol.faults import Code, RowFault
    from batchgen.text.prompt import Prompter

    source, out = save(tmp_path / "in.jsonl", LINES), tmp_path / name
    encode = Prompter.encode

    def broken(self: Prompter, row: Any) -> Any:
        if row.custom_id in {"r5", "r30"}:
            return RowFault(Code.INTERNAL_ERROR, "a bug of ours")
        return encode(self, row)

    monkeypatch.setattr(Prompter, "encode", broken)
    first, _ = start(source, out)
    monkeypatch.undo()
    kept, reporter = start(source, out, retry_failed=False)
    assert (kept.counts.failed, reporter.loaded) == (first.counts.failed, False)
    retried, _ = start(source, out)
    assert retried.counts.total - retried.counts.resumed == 2
    assert retried.counts.failed == first.counts.failed - 2
    _, reporter = start(source, out)
    assert not reporter.loaded
    start(source, tmp_path / f"fresh-{name}")
    assert len(results(out)) == len(results(tmp_path / f"fresh-{name}")) == 53


def test_other_settings_are_refused_with_the_difference(start: Start, tmp_path: Path) -> None:
    source, out = save(tmp_path / "in.jsonl", LINES), tmp_path / "out"
    start(source, out, stop_after=20)
    with pytest.raises(OutputMismatchError, match=r"(?s)--overwrite.*--resume-anyway.*\n  seed: 0 there, 7 now$"):
        start(source, out, seed=7)
    mixed, _ = start(source, out, seed=7, resume_anyway=True)
    assert mixed.counts.resumed >= 20
    with pytest.raises(OutputMismatchError, match="seed: 7 there, 0 now"):
        start(source, out)
    anew, _ = start(source, out, overwrite=True)
    assert anew.counts.resumed == 0


def test_another_layout_moves_rows_and_computes_none(start: Start, tmp_path: Path) -> None:
    source, out = save(tmp_path / "in.jsonl", LINES), tmp_path / "out"
    start(source, out)
    before = results(out)
    _, reporter = start(source, out, rows_per_shard=5)
    assert not reporter.loaded
    assert results(out) == before
    assert len(result_files(out)) == 11


def test_what_a_single_file_was_made_of_is_gone_when_it_is_complete(start: Start, tmp_path: Path) -> None:
    source, out = save(tmp_path / "in.jsonl", LINES), tmp_path / "out.jsonl"
    start(source, out)
    save(source, LINES[1:])
    with pytest.raises(OutputMismatchError, match="--overwrite"):
        start(source, out)
    start(source, out, overwrite=True)
    out.write_text(out.read_text()[:-100])
    with pytest.raises(OutputMismatchError, match="--overwrite"):
        start(source, out)


def test_damaged_files_are_used_as_far_as_they_go(start: Start, tmp_path: Path, caplog: Any) -> None:
    source, out = save(tmp_path / "in.jsonl", LINES), tmp_path / "out"
    start(source, out)
    before = results(out)
    part = out / "part-00001.arrow"
    part.write_bytes(part.read_bytes()[:-1000])
    (out / "part-00003.arrow").write_bytes(bytes(500))
    (out / "part-00004.arrow").unlink()
    (out / ".batchgen" / ".rows-00007.arrow.tmp").write_bytes(b"torn")
    summary, _ = start(source, out)
    assert summary.counts.total - summary.counts.resumed == 3 * 8
    assert "part-00001.arrow is damaged" in caplog.text
    after = results(out)
    assert after == before
    assert not list(out.rglob("*.tmp"))


def test_the_context_length_of_the_first_run_is_kept(start: Start, tmp_path: Path) -> None:
    source, out = save(tmp_path / "in.jsonl", LINES), tmp_path / "out"
    start(source, out, stop_after=20)
    said = manifest_of(out)
    assert said is not None
    assert said.engine is not None
    assert said.engine["max_model_len"] == 128


def test_standard_input_goes_on_as_well(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, out = save(tmp_path / "in.jsonl", LINES), tmp_path / "out"

    def piped(**changes: Any) -> tuple[Summary, After]:
        with source.open() as stream:
            monkeypatch.setattr(sys, "stdin", stream)
            return start(Path("-"), out, **changes)

    piped(stop_after=20)
    summary, _ = piped()
    assert 20 <= summary.counts.resumed < 53
    again, reporter = piped()
    assert (again.counts.resumed, reporter.loaded) == (53, False)


def test_ids_and_times_are_those_of_the_first_run(start: Start, tmp_path: Path) -> None:
    source, out = save(tmp_path / "in.jsonl", LINES), tmp_path / "out"
    start(source, out, stop_after=20)
    path = out / ".batchgen" / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"created": 77}))
    start(source, out, rows_per_shard=100)
    texts = [text for batch in read_parts(out) for text in batch["response"].to_pylist()]
    made = [json.loads(text)["created"] for text in texts if text is not None and '"created"' in text]
    assert set(made[-10:]) == {77}
