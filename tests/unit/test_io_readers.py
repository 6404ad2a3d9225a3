"""JSON lines in every packing, and what becomes of lines that are none."""

from __future__ import annotations

import gzip
import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import orjson
import pyarrow as pa
import pytest
import zstandard

from batchgen.config import InputConfig
from batchgen.errors import UsageError
from batchgen.io import readers
from batchgen.io.readers import count_rows, first_rows, models_named, open_rows
from batchgen.io.schema import passed_through
from batchgen.protocol.faults import Code
from batchgen.protocol.request import RawRow


def request(number: int, **body: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"Grüße {number}"}]
    return {
        "custom_id": f"r{number}",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"messages": messages},
    } | ({"body": {"messages": messages, **body}} if body else {})


REQUESTS = [request(number) for number in range(1, 6)]
TEXT = b"".join(orjson.dumps(row) + b"\n" for row in REQUESTS)


def config(path: Path | str, **settings: Any) -> InputConfig:
    return InputConfig(input_file=str(path), **settings)


def read(path: Path | str, **settings: Any) -> list[RawRow]:
    return list(open_rows(config(path, **settings)))


def read_bytes(folder: Path, data: bytes, **settings: Any) -> list[RawRow]:
    path = folder / "in.jsonl"
    path.write_bytes(data)
    rows = read(path, **settings)
    assert count_rows(config(path)) == len(rows)
    return rows


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], None]:
    def give(data: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(data))))

    return give


def frames(data: bytes) -> bytes:
    """Two frames, the second one without its size in its header, as a stream writes it."""
    packer = zstandard.ZstdCompressor().compressobj()
    return zstandard.compress(data[:100]) + packer.compress(data[100:]) + packer.flush()


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("in.jsonl", TEXT),
        ("no-ending", TEXT),
        ("in.jsonl.gz", gzip.compress(TEXT[:50]) + gzip.compress(TEXT[50:])),
        ("in.jsonl.zst", frames(TEXT)),
    ],
)
def test_every_packing(tmp_path: Path, name: str, data: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    assert [row.data for row in read(path)] == REQUESTS
    assert [row.line for row in read(path)] == [1, 2, 3, 4, 5]
    assert count_rows(config(path)) == 5


def test_an_fsspec_address() -> None:
    with fsspec.open("memory://folder/in.jsonl.gz", "wb") as file:
        file.write(gzip.compress(TEXT))
    assert [row.data for row in read("memory://folder/in.jsonl.gz")] == REQUESTS


def test_standard_input_is_read_once_and_looked_at_before(stdin: Callable[[bytes], None]) -> None:
    stdin(orjson.dumps(request(1, model="m") | {"label": 1}) + b"\n" + TEXT)
    assert count_rows(config("-")) is None
    assert models_named(config("-")) == ["m"]
    assert [field.name for field in passed_through(config("-"))] == ["label"]
    assert len(read("-")) == 6
    stdin(orjson.dumps(request(1, model="m" * 100_000)) + b"\n")
    assert models_named(config("-")) == []
    assert len(read("-")) == 1


@pytest.mark.parametrize(
    "data",
    [
        b"\xef\xbb\xbf" + TEXT,
        TEXT.replace(b"\n", b"\r\n"),
        TEXT.rstrip(),
    ],
)
def test_marks_and_line_ends_of_other_systems(tmp_path: Path, data: bytes) -> None:
    assert [row.data for row in read_bytes(tmp_path, data)] == REQUESTS


def test_blank_lines_are_skipped_but_counted(tmp_path: Path) -> None:
    rows = read_bytes(tmp_path, b"\n  \r\n" + TEXT.replace(b"\n", b"\n\n") + b"\t")
    assert [row.line for row in rows] == [3, 5, 7, 9, 11]
    assert read_bytes(tmp_path, b"") == read_bytes(tmp_path, b"\xef\xbb\xbf\n\n") == []


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (b'{"custom_id": ', "column"),
        (b'{"custom_id": "\xff"}', "0xff at byte 16"),
        (b'{"x": NaN}', "not valid JSON"),
        (b'{"x": 1e999}', "not valid JSON"),
        (b'{"x": "\\ud800"}', "not valid JSON"),
        (b"[" * 5000, "not valid JSON"),
        (b"[1]", "must be a JSON object, found '[1]'"),
        (b'"' + b"x" * 500 + b'"', "..."),
        (b"\x00", "not valid JSON"),
    ],
)
def test_a_line_that_is_no_json_object_harms_no_other(tmp_path: Path, bad: bytes, said: str) -> None:
    first, *_, last = read_bytes(tmp_path, TEXT[: TEXT.index(b"\n") + 1] + bad + b"\n" + TEXT)
    row = read_bytes(tmp_path, b"\n" + bad + b"\n" + TEXT)[0]
    assert (first.data, last.data) == (REQUESTS[0], REQUESTS[-1])
    assert (row.line, row.data) == (2, None)
    assert row.fault is not None
    assert row.fault.code is Code.INVALID_JSON_LINE
    assert said in row.fault.message
    assert len(row.fault.message) < 200


def test_a_line_without_end_does_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "_MAX_LINE", 200)
    rows = read_bytes(tmp_path, TEXT + b" " * 1000 + TEXT + b"y" * 300)
    assert [row.line for row in rows] == list(range(1, 12))
    assert [row.line for row in rows if row.fault is not None] == [6, 11]
    assert "longer than" in (rows[5].fault.message if rows[5].fault else "")


@pytest.mark.parametrize("name", ["in.jsonl.gz", "in.jsonl.zst"])
def test_a_packed_file_that_breaks_off_is_no_whole_file(tmp_path: Path, name: str) -> None:
    data = b"".join(orjson.dumps(request(number)) + b"\n" for number in range(5000))
    packed = gzip.compress(data) if name.endswith("gz") else zstandard.compress(data)
    path = tmp_path / name
    for broken in (packed[: len(packed) // 2], packed[:40] + b"garbage" + packed[50:], b"no packed file"):
        path.write_bytes(broken)
        with pytest.raises(UsageError, match=name):
            read(path)


@pytest.mark.parametrize(
    "source", ["missing.jsonl", "missing.jsonl.gz", "missing.parquet", ".", "no-such-protocol://x"]
)
def test_an_input_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    monkeypatch.chdir(tmp_path)
    for use in (lambda: read(source), lambda: count_rows(config(source)), lambda: passed_through(config(source))):
        with pytest.raises(UsageError, match=source):
            use()


def test_the_models_that_lines_name(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    lines = [request(1), request(2, model="a"), {"body": 3}, request(3, model=5), request(4, model="a")]
    path.write_bytes(b"\n".join(map(orjson.dumps, lines)) + b"\nno json\n")
    assert models_named(config(path)) == ["a"]
    path.write_bytes(b"\n".join(orjson.dumps(request(1, model=f"m{number % 3}")) for number in range(9)))
    assert models_named(config(path)) == ["m0", "m1"]
    path.write_bytes(TEXT)
    assert models_named(config(path)) == []


def test_further_keys_of_a_line_are_passed_through_as_json(tmp_path: Path) -> None:
    rows = [REQUESTS[0] | {"label": "x", "score": [1, None]}, REQUESTS[1] | {"label": None}, REQUESTS[2]]
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"\n".join(map(orjson.dumps, rows)))
    assert [dict(row.extra) for row in read(path)] == [{"label": '"x"', "score": "[1,null]"}, {"label": "null"}, {}]
    assert list(passed_through(config(path))) == [pa.field("label", pa.json_()), pa.field("score", pa.json_())]


def test_looking_at_the_first_rows(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(TEXT)
    assert [row.line for row in first_rows(config(path), 2)] == [1, 2]
