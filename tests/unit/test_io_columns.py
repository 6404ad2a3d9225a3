"""Rows that are no batch lines: columns of Parquet files and keys of JSON objects become requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchgen.config import InputConfig
from batchgen.errors import UsageError
from batchgen.io.readers import count_rows, models_named, open_rows
from batchgen.io.schema import passed_through
from batchgen.protocol.faults import Code
from batchgen.protocol.parse import Parser, custom_id_of
from batchgen.protocol.request import RawRow

HI = [{"role": "user", "content": "Hi"}]
HO = [{"role": "user", "content": "Ho", "name": "x"}]
CHAT, PLAIN = "/v1/chat/completions", "/v1/completions"


def parquet(folder: Path, table: pa.Table | dict[str, Any], **settings: Any) -> InputConfig:
    path = folder / "in.parquet"
    pq.write_table(table if isinstance(table, pa.Table) else pa.table(table), path, row_group_size=100)
    return InputConfig(input_file=str(path), **settings)


def jsonl(folder: Path, *rows: Any, **settings: Any) -> InputConfig:
    path = folder / "in.jsonl"
    path.write_bytes(b"\n".join(map(orjson.dumps, rows)))
    return InputConfig(input_file=str(path), **settings)


def read(config: InputConfig) -> list[RawRow]:
    return list(open_rows(config))


def bodies(config: InputConfig) -> list[Any]:
    return [row.data["body"] for row in read(config) if row.data is not None]


def ids(config: InputConfig) -> list[str | None]:
    return [custom_id_of(row) for row in read(config)]


def names(config: InputConfig) -> list[str]:
    return [field.name for field in passed_through(config)]


def test_batch_form_with_a_struct_drops_what_arrow_filled_in(tmp_path: Path) -> None:
    sent: list[dict[str, Any]] = [
        {"messages": HI, "temperature": 0.5, "model": "m"},
        {"messages": HO, "stop": ["a"], "response_format": {"type": "text"}},
    ]
    rows = [
        {"custom_id": f"r{i}", "method": None, "url": CHAT, "body": body, "label": i} for i, body in enumerate(sent)
    ]
    config = parquet(tmp_path, pa.Table.from_pylist(rows))
    assert bodies(config) == sent
    assert [Parser().parse(row).faults for row in read(config)] == [(), ()]
    assert models_named(config) == ["m"]
    assert names(config) == ["label"]
    assert [row.extra["label"].to_pylist() for row in read(config)] == [[0], [1]]
    assert [row.line for row in read(config)] == [1, 2]


def test_batch_form_with_a_body_in_json(tmp_path: Path) -> None:
    texts = [orjson.dumps({"messages": HI}).decode(), "no json", "[]", None]
    config = parquet(tmp_path, {"custom_id": [1, 2, 3, 4], "url": [CHAT] * 4, "body": texts})
    first, *others = (Parser().parse(row) for row in read(config))
    assert first.request is not None
    assert [[(fault.code, fault.param) for fault in parsed.faults] for parsed in others] == [
        [(Code.INVALID_TYPE, "body")],
        [(Code.INVALID_TYPE, "body")],
        [(Code.MISSING_REQUIRED_FIELD, "body")],
    ]
    assert ids(config) == ["1", "2", "3", "4"]


def test_rows_stream_across_batches_and_row_groups(tmp_path: Path) -> None:
    config = parquet(tmp_path, {"messages": [HI] * 1000, "number": list(range(1000))})
    rows = read(config)
    assert [row.line for row in rows] == list(range(1, 1001))
    assert [row.extra["number"][0].as_py() for row in rows] == list(range(1000))
    assert count_rows(config) == 1000


@pytest.mark.parametrize("as_parquet", [True, False])
def test_a_messages_column(tmp_path: Path, *, as_parquet: bool) -> None:
    table: dict[str, Any] = {"chat": [HI, None, HO], "url": ["a", "b", "c"], "text": [1, 2, 3]}
    if as_parquet:
        config = parquet(tmp_path, table, messages_column="chat")
    else:
        rows = [dict(zip(table, values, strict=True)) for values in zip(*table.values(), strict=True)]
        config = jsonl(tmp_path, *rows, messages_column="chat")
    first, second, third = (Parser().parse(row) for row in read(config))
    assert (first.faults, third.faults) == ((), ())
    assert [fault.param for fault in second.faults] == ["body.messages"]
    assert bodies(config) == [{"messages": HI}, {"messages": None}, {"messages": HO}]
    assert ids(config) == ["row-1", "row-2", "row-3"]
    assert names(config) == ["url", "text"]


def test_a_system_prompt_goes_before_messages_that_have_none(tmp_path: Path) -> None:
    system = {"role": "system", "content": "Be brief."}
    own = [{"role": "system", "content": "Be long."}, *HI]
    config = jsonl(tmp_path, {"messages": HI}, {"messages": own}, {"messages": "x"}, system_prompt="Be brief.")
    assert bodies(config) == [{"messages": [system, *HI]}, {"messages": own}, {"messages": "x"}]


def test_a_prompt_column(tmp_path: Path) -> None:
    table = {"id": ["x", "y"], "question": ["Why?", None], "messages": [1, 2]}
    config = parquet(tmp_path, table, prompt_column="question", id_column="id")
    first, second = (Parser().parse(row) for row in read(config))
    assert first.request is not None
    assert first.request.endpoint == PLAIN
    assert [fault.param for fault in second.faults] == ["body.prompt"]
    assert ids(config) == ["x", "y"]
    assert names(config) == ["messages"]


def test_a_prompt_column_with_a_system_prompt_is_a_chat(tmp_path: Path) -> None:
    (row,) = read(jsonl(tmp_path, {"q": "Why?"}, prompt_column="q", system_prompt="Be brief."))
    assert row.data == {
        "custom_id": "row-1",
        "method": "POST",
        "url": CHAT,
        "body": {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]},
    }


def test_a_prompt_template(tmp_path: Path) -> None:
    table = {"title": ["A", None, "C"], "tags": [["x", "y"], [], None], "self": [1, 2, 3], "body": ["b"] * 3}
    template = "{{ title|upper }}{% for t in tags %} #{{ t }}{% endfor %}: {{ body }}\n"
    config = parquet(tmp_path, table, prompt_template=template)
    first, second, third = read(config)
    assert first.data is not None
    assert first.data["body"] == {"prompt": "A #x #y: b\n"}
    assert second.fault is None
    assert third.fault is not None
    assert third.fault.code is Code.INVALID_CHAT_TEMPLATE_INPUT
    assert custom_id_of(third) == "row-3"
    assert names(config) == ["title", "tags", "self", "body"]


@pytest.mark.parametrize(
    "template", ["{{ missing }}", "{{ ''.__class__.__mro__ }}", "{{ 1 / 0 }}", "{{ tags.append(1) }}"]
)
def test_a_template_that_fails_is_a_fault_of_the_row(tmp_path: Path, template: str) -> None:
    (row,) = read(jsonl(tmp_path, {"custom_id": "a", "tags": []}, prompt_template=template))
    assert row.fault is not None
    assert row.fault.code is Code.INVALID_CHAT_TEMPLATE_INPUT
    assert custom_id_of(row) == "a"


def test_a_template_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--prompt-template is not valid Jinja"):
        read(jsonl(tmp_path, {"a": 1}, prompt_template="{% if %}"))


def test_an_id_column_that_a_row_lacks(tmp_path: Path) -> None:
    config = jsonl(tmp_path, {"messages": HI, "id": 5}, {"messages": HI}, id_column="id")
    assert ids(config) == ["5", None]
    assert [fault.param for fault in Parser().parse(read(config)[1]).faults] == ["custom_id"]


def test_an_id_column_beside_batch_form(tmp_path: Path) -> None:
    config = jsonl(tmp_path, {"id": 7, "url": CHAT, "body": {"messages": HI}}, id_column="id")
    assert ids(config) == ["7"]
    assert names(config) == []


def test_a_row_of_neither_form_is_told_what_a_batch_line_needs(tmp_path: Path) -> None:
    (row,) = read(jsonl(tmp_path, {"custom_id": "a", "question": "Why?"}))
    assert [fault.param for fault in Parser().parse(row).faults] == ["url", "body"]
    assert custom_id_of(row) == "a"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "no column 'body', 'params' or 'messages'; the columns are: question"),
        ({"messages_column": "chat"}, "'chat'"),
        ({"prompt_column": "q"}, "--prompt-column names 'q'; the columns are: question"),
        ({"prompt_column": "question", "id_column": "id"}, "--id-column names 'id'"),
    ],
)
def test_a_table_without_the_columns_is_refused_at_once(tmp_path: Path, settings: dict[str, Any], said: str) -> None:
    config = parquet(tmp_path, {"question": ["Why?"]}, **settings)
    for use in (read, count_rows, passed_through):
        with pytest.raises(UsageError, match=said):
            use(config)


def test_what_is_no_parquet_file(tmp_path: Path) -> None:
    path = tmp_path / "in.parquet"
    path.write_bytes(b"PAR1 but not really PAR1")
    with pytest.raises(UsageError, match=r"in\.parquet: cannot be read"):
        read(InputConfig(input_file=str(path)))


def test_text_that_is_not_utf8_is_a_fault_of_its_row(tmp_path: Path) -> None:
    prompts = pa.array([b"a", b"\xff", b"c"]).view(pa.string())
    config = parquet(tmp_path, pa.table({"p": prompts}), prompt_column="p")
    assert [row.fault.code if row.fault else None for row in read(config)] == [None, Code.INVALID_VALUE, None]


def test_sampling_is_for_those_that_say_nothing_themselves(tmp_path: Path) -> None:
    sampling = {"max_tokens": 8, "temperature": 0, "stop": "x"}
    sent = [
        {"prompt": "a"},
        {"prompt": "b", "temperature": 1},
        {"prompt": "c", "max_completion_tokens": 3, "stop": None},
    ]
    lines = [{"custom_id": str(i), "method": "POST", "url": PLAIN, "body": body} for i, body in enumerate(sent)]
    params = {"custom_id": "p", "params": {"messages": HI, "max_tokens": 5}}
    *read_lines, message = read(jsonl(tmp_path, *lines, params, sampling=sampling))
    first, second, third = (row.data["body"] for row in read_lines if row.data is not None)
    assert first == {"prompt": "a", **sampling}
    assert second == {"prompt": "b", **sampling, "temperature": 1}
    assert third == {"prompt": "c", "max_completion_tokens": 3, "temperature": 0, "stop": "x"}
    assert message.data == {"custom_id": "p", "params": {"messages": HI, **sampling, "max_tokens": 5}}
    table = parquet(tmp_path, {"text": ["a"]}, prompt_column="text", sampling=sampling)
    assert bodies(table) == [{"prompt": "a", **sampling}]
