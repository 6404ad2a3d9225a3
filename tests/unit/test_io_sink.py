"""Outputs: folders of shards, single files, standard output; what is claimed, refused, kept and replaced."""

from __future__ import annotations

import errno
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchgen.config import OutputConfig
from batchgen.errors import (
    OutOfResourcesError,
    OutputLockedError,
    OutputMismatchError,
    UsageError,
)
from batchgen.io.claim import claim_output
from batchgen.io.ledger import Ledger
from batchgen.io.manifest import Manifest, manifest_of
from batchgen.io.reorder import InputOrder
from batchgen.io.schema import result_schema
from batchgen.io.sink import Sink, open_sink
from batchgen.io.sources import result_files
from batchgen.protocol.faults import Code, RowFault
from batchgen.protocol.response import Responder
from batchgen.protocol.result import ResultRow

RESPONDER = Responder("run-1", 0)
SCHEMA = result_schema("json")


def row(line: int, **extra: Any) -> ResultRow:
    """Every third row fails, every ninth is no request at all."""
    if line % 9 == 0:
        return RESPONDER.refused(line, None, RowFault(Code.INVALID_JSON_LINE, "no JSON"), extra)
    if line % 3 == 0:
        return RESPONDER.refused(line, f"r{line}", RowFault(Code.INVALID_VALUE, "change it", "body.n"), extra)
    response = {"choices": [{"text": f"Größe {line}"}]}
    return ResultRow(custom_id=f"r{line}", line=line, status_code=200, text="x", response=response, extra=extra)


def digest(line: int) -> str:
    return f"{line:032x}"


def manifest() -> Manifest:
    return Manifest(run_id="run-1", created=0, settings={"model": "m"}, layout={}, input={"identity": "1"})


def write(config: OutputConfig, rows: Iterator[ResultRow], schema: pa.Schema = SCHEMA, source: str = "in") -> None:
    with claim_output(config, source) as claim:
        claim.prepare()
        sink = open_sink(claim, config, schema, manifest(), "openai")
        try:
            for number, one in enumerate(rows):
                sink.append(number, digest(one.line), one)
        except BaseException:
            sink.stop()
            raise
        sink.finish()


def rows(count: int) -> Iterator[ResultRow]:
    return map(row, range(1, count + 1))


def settings(path: Path, **other: Any) -> OutputConfig:
    return OutputConfig(output_file=str(path), **other)


def stored(folder: Path) -> pa.Table:
    """All rows, in parts and beside them."""
    parts = result_files(folder)
    return pa.concat_tables([pa.ipc.open_stream(part.read_bytes()).read_all() for part in parts])


def beside(file: Path) -> list[str]:
    """What stays beside a single file that is complete."""
    return [f".{file.name}.batchgen/.batchgen/{name}" for name in ("lock", "manifest.json")]


def tree(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_folder_of_shards(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write(settings(out, rows_per_shard=400), rows(1000))
    assert tree(out) == [
        ".batchgen/lock",
        ".batchgen/manifest.json",
        *(f"part-{number:05d}.arrow" for number in range(3)),
    ]
    table = stored(out)
    assert table.schema == SCHEMA
    assert table["line"].to_pylist() == list(range(1, 1001))
    assert table["status_code"].to_pylist()[:9] == [200, 200, 400, 200, 200, 400, 200, 200, 422]
    assert json.loads(table["response"][0].as_py()) == {"choices": [{"text": "Größe 1"}]}
    assert table["response"][8].as_py() is None
    assert table["error"].to_pylist()[:3] == [
        None,
        None,
        {"code": "invalid_value", "message": "change it", "param": "body.n", "line": 3},
    ]
    said = manifest_of(out)
    assert said is not None
    assert (said.settings, said.finished) == ({"model": "m"}, True)
    assert said.counts == {"rows": 1000, "failed": 333, "retryable": 0, "resumed": 0}
    assert said.files[1] == {
        "file": "part-00001.arrow",
        "rows": 400,
        "failed": 133,
        "first_line": 401,
        "last_line": 800,
        "bytes": (out / "part-00001.arrow").stat().st_size,
    }


def test_the_error_column_has_its_type_without_errors(tmp_path: Path) -> None:
    for name, count in (("none", 0), ("one", 1)):
        write(settings(tmp_path / name), rows(count))
        table = stored(tmp_path / name)
        assert (table.schema, table.num_rows) == (SCHEMA, count)


def test_the_response_as_plain_text(tmp_path: Path) -> None:
    schema = result_schema("string", pa.schema([pa.field("label", pa.json_())]))
    assert (schema.field("response").type, schema.field("label").type) == (pa.string(), pa.string())
    write(settings(tmp_path / "out", response_as="string"), iter([row(1, label='"x"')]), schema)
    assert stored(tmp_path / "out").to_pylist()[0]["label"] == '"x"'


def test_rows_are_safe_after_their_time_also_if_no_more_come(tmp_path: Path) -> None:
    config = settings(tmp_path / "out", seconds_per_shard=0)
    with claim_output(config, "in") as claim:
        claim.prepare()
        sink = open_sink(claim, config, SCHEMA, manifest(), "openai")
        sink.append(0, digest(1), row(1))
        sink.tick()
        assert stored(tmp_path / "out")["line"].to_pylist() == [1]


@pytest.mark.parametrize("way", ["from_file", "folder", "arrow", "single", "parquet"])
def test_datasets_reads_it(tmp_path: Path, way: str) -> None:
    import datasets

    extra = pa.schema([("label", pa.json_()), ("text", pa.dictionary(pa.int8(), pa.string()))])
    schema = result_schema("json", extra)
    out = tmp_path / {"single": "out.arrow", "parquet": "out.parquet"}.get(way, "out")
    values = pa.array(["a", "b"]).dictionary_encode().cast(extra.field("text").type)
    made = (row(n, label='{"x":[1]}', text=values.slice(n % 2, 1)) for n in range(1, 601))
    write(settings(out, rows_per_shard=600 if way == "from_file" else 250), made, schema)
    cache = str(tmp_path / "cache")
    match way:
        case "from_file":
            found = datasets.Dataset.from_file(str(out / "part-00000.arrow"))
        case "folder":
            found = datasets.load_dataset(str(out), split="train", cache_dir=cache)
        case "arrow":
            files = str(out / "part-*.arrow")
            found = datasets.load_dataset("arrow", data_files=files, split="train", cache_dir=cache)
        case "single":
            found = datasets.Dataset.from_file(str(out))
        case _:
            found = datasets.load_dataset("parquet", data_files=str(out), split="train", cache_dir=cache)
    assert found["line"][:] == list(range(1, 601))
    assert found[0]["response"] == {"choices": [{"text": "Größe 1"}]}
    assert found[0]["error"] is None
    assert (found[0]["label"], found[0]["input_text"], found[1]["input_text"]) == ({"x": [1]}, "b", "a")
    assert found[2]["error"]["code"] == "invalid_value"
    assert found[8]["response"] is None


@pytest.mark.parametrize(
    "values",
    [
        pa.array([1, None]),
        pa.array([[1, None], None]),
        pa.array([{"a": [{"b": None}]}, None]),
        pa.array([1, 2], pa.timestamp("ns", tz="Europe/Berlin")),
        pa.array([2**40, 1], pa.timestamp("s")),
        pa.array([b"\xff", None]),
        pa.array(["a", "b"]).dictionary_encode(),
        pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int32())),
        pa.array([[1, 2], None], pa.list_(pa.int32(), 2)),
        pa.nulls(2),
    ],
    ids=lambda values: str(values.type),
)
def test_columns_of_any_type_are_passed_through(tmp_path: Path, values: pa.Array) -> None:
    field = pa.field("value", values.type, nullable=values.null_count > 0)
    made = [row(1, value=values.slice(0, 1)), row(2, value=values.slice(1, 1)), row(3)]
    write(settings(tmp_path / "out"), iter(made), result_schema("json", pa.schema([field])))
    written = stored(tmp_path / "out")["value"].combine_chunks()
    assert written.slice(0, 2).equals(values)
    assert written[2].as_py() is None


def test_names_of_ours_are_kept_from_the_inputs_columns() -> None:
    passed = pa.schema([(name, pa.int8()) for name in ("text", "input_text", "other", "error")])
    names = result_schema("json", passed).names[10:]
    assert names == ["input_input_text", "input_text", "other", "input_error"]
    assert len(set(result_schema("json", passed).names)) == 14


def test_openai_lines(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    write(settings(out, rows_per_shard=4, error_file=tmp_path / "bad.jsonl"), rows(9))
    assert tree(tmp_path) == [*beside(out), "bad.jsonl", "out.jsonl"]
    lines = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert [line["custom_id"] for line in lines] == [*(f"r{n}" for n in range(1, 9)), None]
    assert lines[0]["response"]["body"] == {"choices": [{"text": "Größe 1"}]}
    assert lines[2]["response"]["status_code"] == 400
    assert lines[2]["response"]["body"]["error"]["param"] == "body.n"
    assert lines[8] == {
        "id": lines[8]["id"],
        "custom_id": None,
        "response": None,
        "error": {"code": "invalid_json_line", "message": "no JSON"},
    }
    errors = [json.loads(line) for line in (tmp_path / "bad.jsonl").read_text(encoding="utf-8").splitlines()]
    assert errors == [lines[2], lines[5], lines[8]]


def test_standard_output_has_the_same_lines(tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    write(settings(tmp_path / "out.jsonl", error_file=tmp_path / "a"), rows(20))
    write(OutputConfig(output_file="-", error_file=tmp_path / "b"), rows(20))
    assert capsysbinary.readouterr().out == (tmp_path / "out.jsonl").read_bytes()
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize("name", ["out.arrow", "out.parquet"])
def test_one_arrow_or_parquet_file(tmp_path: Path, name: str) -> None:
    out = tmp_path / name
    write(settings(out, rows_per_shard=100), rows(1000))
    assert tree(tmp_path) == [*beside(out), name]
    table = pq.read_table(out) if name.endswith("parquet") else pa.ipc.open_stream(out.read_bytes()).read_all()
    assert table.schema.equals(SCHEMA)
    assert table["line"].to_pylist() == list(range(1, 1001))
    if name.endswith("parquet"):
        assert pq.ParquetFile(out).num_row_groups == 1


def interrupted(count: int) -> Iterator[ResultRow]:
    yield from rows(count)
    raise KeyboardInterrupt


@pytest.mark.parametrize("name", ["out", "out.jsonl"])
def test_what_was_appended_is_kept_when_the_job_ends_early(tmp_path: Path, name: str) -> None:
    with pytest.raises(KeyboardInterrupt):
        write(settings(tmp_path / name), interrupted(5))
    folder = tmp_path / ("out" if name == "out" else ".out.jsonl.batchgen")
    assert stored(folder)["line"].to_pylist() == [1, 2, 3, 4, 5]
    said = manifest_of(folder)
    assert said is not None
    assert said.finished is False
    assert said.counts["rows"] == 5
    assert not (tmp_path / "out.jsonl").exists()
    write(settings(tmp_path / name, overwrite=True), rows(1))
    if name == "out":
        assert stored(folder).num_rows == 1
    else:
        assert tree(tmp_path) == [*beside(tmp_path / name), "out.jsonl"]


def test_a_single_file_is_replaced_at_the_end_alone(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    out.write_text("old")
    with pytest.raises(OutputMismatchError, match="--overwrite"):
        write(settings(out), rows(1))
    assert tree(tmp_path) == ["out.jsonl"]
    with pytest.raises(KeyboardInterrupt):
        write(settings(out, overwrite=True), interrupted(1))
    assert out.read_text() == "old"
    write(settings(out, overwrite=True), rows(1))
    assert out.read_text() != "old"
    assert tree(tmp_path) == [*beside(out), "out.jsonl"]


def test_foreign_files_are_never_touched(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(OutputMismatchError, match="other files"):
            write(settings(tmp_path, overwrite=overwrite), rows(1))
    assert tree(tmp_path) == ["thesis.txt"]
    out = tmp_path / "out"
    write(settings(out), rows(1))
    (out / "notes.txt").write_text("mine")
    write(settings(out, overwrite=True), rows(2))
    assert "notes.txt" in tree(out)
    assert stored(out).num_rows == 2


@pytest.mark.parametrize("name", ["out", "out.jsonl"])
def test_a_second_run_is_refused_at_once(tmp_path: Path, name: str) -> None:
    code = (
        "import sys\nfrom batchgen.config import OutputConfig\nfrom batchgen.io.claim import claim_output\n"
        "with claim_output(OutputConfig(output_file=sys.argv[1]), 'in'):\n    print('held', flush=True)\n    input()\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / name)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        for overwrite in (False, True):
            with pytest.raises(OutputLockedError, match="another run"):
                write(settings(tmp_path / name, overwrite=overwrite), rows(1))
        other.communicate("\n")
    write(settings(tmp_path / name), rows(1))


def test_a_lock_left_by_a_killed_run_holds_nobody(tmp_path: Path) -> None:
    code = "import sys, os\nfrom batchgen.config import OutputConfig\nfrom batchgen.io.claim import claim_output\n"
    code += "with claim_output(OutputConfig(output_file=sys.argv[1]), 'in'):\n    os._exit(9)\n"
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "out")], check=False)
    assert done.returncode == 9
    (tmp_path / "out" / ".part-00000.arrow.tmp").write_bytes(b"half a shard")
    write(settings(tmp_path / "out"), rows(1))
    assert tree(tmp_path / "out") == [".batchgen/lock", ".batchgen/manifest.json", "part-00000.arrow"]


def test_outputs_that_cannot_be(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text("{}")
    (tmp_path / "link.jsonl").symlink_to(source)
    (tmp_path / "hard.jsonl").hardlink_to(source)
    (tmp_path / "folder.jsonl").mkdir()
    (tmp_path / "file").write_text("")
    cases = [
        (settings(source), "is the input"),
        (settings(tmp_path / "link.jsonl"), "is the input"),
        (settings(tmp_path / "hard.jsonl", overwrite=True), "is the input"),
        (settings(tmp_path / "folder.jsonl"), "is a folder"),
        (settings(tmp_path / "file"), "is a file"),
        (settings(tmp_path / "missing" / "out"), "does not exist"),
        (settings(tmp_path / "file" / "out"), "does not exist"),
        (settings(tmp_path / "out", error_file=source), "is the input or the output"),
        (settings(tmp_path / "out.jsonl", error_file=tmp_path / "out.jsonl"), "is the input or the output"),
        (settings(tmp_path / "out", error_file=tmp_path / "missing" / "bad.jsonl"), "does not exist"),
        (settings(tmp_path / "out", error_file=tmp_path / "folder.jsonl"), "is a folder"),
        (OutputConfig(output_file="-", error_file=source), "is the input or the output"),
    ]
    before = tree(tmp_path)
    for config, said in cases:
        with pytest.raises(UsageError, match=said):
            write(config, rows(1), source=str(source))
    assert tree(tmp_path) == before


def fail_with(monkeypatch: pytest.MonkeyPatch, code: int, after: int) -> None:
    """Let the `after`-th flush to disk from now on fail."""
    left = iter(range(after))
    fsync = os.fsync

    def failing(descriptor: int) -> None:
        if next(left, None) is None:
            raise OSError(code, os.strerror(code))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", failing)


@pytest.mark.parametrize(("code", "error"), [(errno.ENOSPC, OutOfResourcesError), (errno.EACCES, UsageError)])
def test_a_full_disk_leaves_the_shards_that_were_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, error: type[Exception]
) -> None:
    out = tmp_path / "out"
    # Two flushes for each of: the first manifest, four rows, the manifest, their part, the manifest.
    fail_with(monkeypatch, code, after=10)
    with pytest.raises(error, match="out: "):
        write(settings(out, rows_per_shard=4), rows(100))
    monkeypatch.undo()
    assert tree(out) == [".batchgen/lock", ".batchgen/manifest.json", "part-00000.arrow"]
    said = manifest_of(out)
    assert said is not None
    assert [file["rows"] for file in said.files] == [4]
    assert stored(out)["line"].to_pylist() == [1, 2, 3, 4]


def test_errors_of_others_are_not_taken_for_the_outputs(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), claim_output(settings(tmp_path / "out"), "in"):
        (tmp_path / "model.safetensors").read_bytes()


def test_an_interrupt_within_a_write_drops_that_shard(tmp_path: Path) -> None:
    class Bomb(dict[str, Any]):
        def get(self, *_: object) -> Any:
            raise KeyboardInterrupt

    bad = ResultRow(custom_id="x", line=6, status_code=200, extra=Bomb())
    schema = result_schema("json", pa.schema([pa.field("label", pa.int8())]))
    with pytest.raises(KeyboardInterrupt):
        write(settings(tmp_path / "out", rows_per_shard=3), iter([*rows(5), bad]), schema)
    assert stored(tmp_path / "out")["line"].to_pylist() == [1, 2, 3]
    assert not list((tmp_path / "out").rglob("*.tmp"))


def test_a_reader_of_standard_output_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(io.BytesIO):
        def write(self, _: Any) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(Gone()))
    with pytest.raises(BrokenPipeError):
        write(OutputConfig(output_file="-"), rows(1))


def test_rows_come_out_in_input_order() -> None:
    order = InputOrder()
    made = list(rows(5))
    given = [[one.line for one in order.push(number, made[number])] for number in (1, 0, 4, 2, 3)]
    assert given == [[], [1, 2], [], [3], [4, 5]]
    assert len(order) == 0
    for number in (3, 7, 7):
        pushed = order.push(number, made[0])
        if number == 7 and not len(order):
            assert list(pushed) == []
        else:
            with pytest.raises(ValueError, match="two results"):
                list(pushed)


def test_a_sink_is_what_open_sink_gives(tmp_path: Path) -> None:
    for target in (str(tmp_path / "out"), "-"):
        config = OutputConfig(output_file=target)
        with claim_output(config, "in") as claim, Ledger() as ledger:
            claim.prepare()
            sink: Sink = open_sink(claim, config, SCHEMA, manifest(), "openai")
            sink.enter_earlier(ledger, retry_failed=True)
            sink.finish()
    assert stored(tmp_path / "out").num_rows == 0
