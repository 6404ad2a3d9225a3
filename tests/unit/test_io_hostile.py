"""Input that was made to do harm, or that another program wrote in its own way."""

from __future__ import annotations

import gzip
import tracemalloc
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from batchgen.config import InputConfig
from batchgen.io import parquet, readers, source
from batchgen.io.readers import open_rows
from batchgen.io.schema import passed_through, result_schema, rows_to_batch
from batchgen.protocol.faults import Code
from batchgen.protocol.parse import Parsed, Parser, custom_id_of
from batchgen.protocol.request import RawRow
from batchgen.protocol.response import Responder


def read(path: Path, **settings: Any) -> list[RawRow]:
    """The rows; each one is parsed and, where it has a fault, becomes a row of the output."""
    config = InputConfig(input_file=str(path), **settings)
    schema = result_schema("json", passed_through(config))
    rows = list(open_rows(config))
    for row in rows:
        if faults := parse(row).faults:
            rows_to_batch([Responder("run", 0).refused(row.line, custom_id_of(row), faults[0], row.extra)], schema)
    return rows


def parse(row: RawRow) -> Parsed:
    parsed = Parser().parse(row)
    assert sum(len(fault.message) for fault in parsed.faults) < 50_000
    return parsed


def read_line(folder: Path, line: bytes) -> RawRow:
    path = folder / "in.jsonl"
    path.write_bytes(line)
    (row,) = read(path)
    return row


def objects(depth: int) -> bytes:
    return b'{"a":' * depth + b"1" + b"}" * depth


WRAPPINGS = [
    b"[%s]",
    b'{"custom_id":"x","url":"/v1/completions","body":{"prompt":"x"},"more":%s}',
    b'{"custom_id":"x","url":"/v1/completions","body":{"prompt":%s}}',
    b'{"custom_id":"x","url":"/v1/completions","body":{"prompt":"x","wat":%s}}',
    b'{"custom_id":"x","url":"/v1/completions","body":{"prompt":"x","temperature":%s}}',
    b'{"custom_id":%s,"url":"/v1/completions","body":{"prompt":"x"}}',
    b'{"custom_id":"x","url":"/v1/chat/completions","body":{"messages":[{"role":"user","content":"x","y":%s}]}}',
    b'{"custom_id":"x","params":{"max_tokens":1,"messages":[{"role":"user","content":"x","y":%s}]}}',
]


@pytest.mark.parametrize("wrapping", WRAPPINGS)
@pytest.mark.parametrize("depth", [200, 260, 1000, 1023, 5000])
def test_deep_nesting_is_refused_wherever_it_is(tmp_path: Path, wrapping: bytes, depth: int) -> None:
    fault = read_line(tmp_path, wrapping % objects(depth)).fault
    assert fault is not None
    assert fault.code is Code.INVALID_JSON_LINE
    assert fault.message.startswith(("the line is nested deeper", "the line is not valid JSON"))


def test_many_brackets_side_by_side_are_not_deep(tmp_path: Path) -> None:
    prompts = b"[" + b",".join([b"[1]"] * 500) + b"]"
    row = read_line(tmp_path, b'{"custom_id":"x","url":"/v1/completions","body":{"prompt":%s}}' % prompts)
    request = parse(row).request
    assert request is not None
    assert len(request.prompts) == 500


@pytest.mark.parametrize("number", ["1e400", "9" * 5000, "-" + "9" * 400, "18446744073709551616"])
@pytest.mark.parametrize("name", ["temperature", "seed", "max_tokens", "n", "top_k", "stop_token_ids", "wat", "prompt"])
def test_numbers_that_are_too_large(tmp_path: Path, name: str, number: str) -> None:
    body = f'{{"prompt":"x","{name}":{number}}}'
    row = read_line(tmp_path, f'{{"custom_id":{number},"url":"/v1/completions","body":{body}}}'.encode())
    assert row.fault is not None or parse(row).faults


def test_of_a_key_that_stands_twice_the_last_one_counts(tmp_path: Path) -> None:
    line = b'{"custom_id":"x","custom_id":"y","url":"/v1/completions","body":{"prompt":"x","n":0,"n":2}}'
    request = parse(read_line(tmp_path, line)).request
    assert request is not None
    assert (request.custom_id, request.n) == ("y", 2)


def test_a_null_character_is_a_character(tmp_path: Path) -> None:
    line = b'{"custom_id":"\\u0000","url":"/v1/completions","body":{"prompt":"\\u0000"},"\\u0000":1}'
    row = read_line(tmp_path, line)
    assert row.extra == {"\x00": "1"}
    request = parse(row).request
    assert request is not None
    assert request.custom_id == "\x00"


def test_faults_without_number_are_counted_not_listed(tmp_path: Path) -> None:
    messages = b",".join([b"{}"] * 10_000)
    line = b'{"custom_id":"x","url":"/v1/chat/completions","body":{"messages":[%s]}}' % messages
    *faults, last = parse(read_line(tmp_path, line)).faults
    assert len(faults) == 100
    assert "9900 more faults" in last.message
    prompt = b",".join([b'"x"'] * 10_000)
    line = b'{"custom_id":"x","url":"/v1/completions","body":{"prompt":[1,%s]}}' % prompt
    (fault,) = parse(read_line(tmp_path, line)).faults
    assert fault.param == "body.prompt[1]"


@pytest.mark.parametrize(
    "line",
    [
        b'{"custom_id":"x","url":"/v1/completions","body":{"prompt":"x","temperature":"%s"}}',
        b'{"custom_id":"%s","url":"/v1/x","body":{}}',
        b'{"custom_id":"x","url":"%s","body":{}}',
        b'{"custom_id":"x","url":"/v1/completions","body":"%s"}',
        b'"%s',
    ],
)
def test_messages_about_long_lines_are_short(tmp_path: Path, line: bytes) -> None:
    row = read_line(tmp_path, line % (b"x" * (8 << 20)))
    assert len(parse(row).faults[0].message) < 300


@pytest.mark.parametrize("name", ["bomb.jsonl.gz", "bomb.jsonl.zst"])
@pytest.mark.parametrize("content", [b" ", b"x", b'{"a":"'])
def test_memory_is_bounded_for_a_file_that_unpacks_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: bytes
) -> None:
    monkeypatch.setattr(readers, "_MAX_LINE", 1 << 16)
    monkeypatch.setattr(source, "_PACKED_PIECE", 64)
    data = content * ((16 << 20) // len(content)) + b'\n{"custom_id":"x"}'
    path = tmp_path / name
    path.write_bytes(gzip.compress(data) if name.endswith("gz") else zstandard.compress(data))
    assert path.stat().st_size < len(data) / 500
    del data
    tracemalloc.start()
    try:
        *_, last = open_rows(InputConfig(input_file=str(path)))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert last.data == {"custom_id": "x"}
    # Two buffers of 1 MiB, and twice what one piece of the packed file may unpack to.
    assert peak < 8 << 20, "of 16 MiB"


def write_table(folder: Path, **columns: Any) -> Path:
    path = folder / "in.parquet"
    pq.write_table(pa.table(columns), path)
    return path


MESSAGES = [[{"role": "user", "content": "Hi"}], None, [{"role": "user", "content": None}], [None], []]
AS_PAIRS: list[Any] = [
    [[("role", "user"), ("content", "Hi")]],
    None,
    [[("role", "user"), ("content", None)]],
    [None],
    [],
]
STRUCT = pa.struct([("role", pa.large_string()), ("content", pa.string())])


@pytest.mark.parametrize(
    "messages",
    [
        pa.array(MESSAGES),
        pa.array(MESSAGES, pa.large_list(STRUCT)),
        pa.array(MESSAGES, pa.list_view(STRUCT)),
        pa.array(AS_PAIRS, pa.list_(pa.map_(pa.string(), pa.string()))),
    ],
)
def test_messages_in_every_arrow_type(tmp_path: Path, messages: pa.Array) -> None:
    parsed = [parse(row) for row in read(write_table(tmp_path, messages=messages))]
    assert [p.request is not None for p in parsed] == [True, False, True, False, False]
    assert [p.faults[0].param for p in parsed if p.faults] == ["body.messages", "body.messages[0]", "body.messages"]


def test_batch_form_in_dictionaries_and_structs(tmp_path: Path) -> None:
    body = pa.StructArray.from_arrays(
        [
            pa.array(["Hi", "there"]).dictionary_encode(),
            pa.array([Decimal("0.5"), Decimal(1)]),
            pa.array([[("5", 1.5)], None], pa.map_(pa.string(), pa.float64())),
            pa.array([None, datetime(2020, 1, 1, tzinfo=UTC)]),
        ],
        ["prompt", "temperature", "logit_bias", "user"],
    )
    path = write_table(
        tmp_path,
        custom_id=pa.array([b"a", b"b"]),
        url=pa.array(["/v1/completions"] * 2).dictionary_encode(),
        body=body,
        label=pa.array(["x", None]).dictionary_encode(),
    )
    first, second = read(path)
    assert first.data is not None
    assert first.data["body"] == {"prompt": "Hi", "temperature": 0.5, "logit_bias": {"5": 1.5}}
    assert second.data is not None
    assert second.data == {
        "custom_id": "b",
        "url": "/v1/completions",
        "body": {"prompt": "there", "temperature": 1, "user": "2020-01-01T00:00:00+00:00"},
    }
    assert [row.extra["label"].to_pylist() for row in (first, second)] == [["x"], [None]]


def test_a_message_batch_in_parquet(tmp_path: Path) -> None:
    message = {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {"on": date.max}}],
    }
    params = {"max_tokens": 3, "messages": [message]}
    (row,) = read(write_table(tmp_path, custom_id=["a"], params=pa.array([params])))
    assert parse(row).faults == ()
    (row,) = read(write_table(tmp_path, custom_id=["a"], params=[orjson.dumps(params).decode()]))
    assert parse(row).faults == ()


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (pa.array([timedelta(1)]), "1 day"),
        (pa.array([b"text"]), "text"),
        (pa.array([Decimal("1.50")]), "1.5"),
        (pa.array([[(1, "a")]], pa.map_(pa.int64(), pa.string())), '{"1":"a"}'),
        (pa.array([1], pa.timestamp("ns")), "1970-01-01T00:00:00"),
    ],
)
def test_values_that_json_has_not_become_such_as_it_has(tmp_path: Path, value: pa.Array, found: str) -> None:
    body = pa.StructArray.from_arrays([pa.array(["x"]), value], ["prompt", "wat"])
    (row,) = read(write_table(tmp_path, custom_id=["a"], url=["/v1/completions"], body=body))
    (fault,) = parse(row).faults
    assert found in fault.message
    assert row.data is not None
    assert orjson.dumps(row.data)


def test_a_row_that_cannot_be_read_harms_no_other(tmp_path: Path) -> None:
    twice = pa.array([[("a", 1)], [("a", 1), ("a", 2)], None], pa.map_(pa.string(), pa.int64()))
    body = pa.StructArray.from_arrays(
        [pa.array(["x"] * 3), pa.array([b"a", b"b", b"\xff"]), twice], ["prompt", "user", "metadata"]
    )
    rows = read(write_table(tmp_path, custom_id=["a", "b", "c"], url=["/v1/completions"] * 3, body=body))
    assert [row.fault is None for row in rows] == [True, False, False]
    assert {row.fault.code for row in rows if row.fault} == {Code.INVALID_VALUE}


def test_long_rows_are_read_a_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "PIECE_BYTES", 1 << 20)
    prompts = [f"{number}" * (1 << 17) for number in range(10, 74)]
    path = write_table(tmp_path, prompt=prompts)
    tracemalloc.start()
    try:
        assert sum(1 for _ in open_rows(InputConfig(input_file=str(path), prompt_column="prompt"))) == len(prompts)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20, "of 16 MiB"
