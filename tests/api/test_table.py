"""`Engine.run_table`: Arrow in every shape, rows and columns kept."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from batchgen import Engine
from batchgen.errors import UsageError
from tests.api.conftest import GREEDY

PROMPTS = ["the sea", None, "the hat", "the sea"]


@pytest.mark.parametrize(
    "column",
    [
        pa.array(PROMPTS, pa.large_string()),
        pa.array(PROMPTS, pa.string_view()),
        pa.array(PROMPTS).dictionary_encode(),
        pa.array([None if text is None else text.encode() for text in PROMPTS]),
        pa.chunked_array([PROMPTS[:1], [], PROMPTS[1:]], pa.string()),
        pa.array(["other", *PROMPTS]).slice(1),
    ],
    ids=lambda column: f"{type(column).__name__} {column.type}",
)
def test_prompts_of_every_type(engine: Engine, column: Any) -> None:
    made = engine.run_table(pa.table({"prompt": column}), prompt_column="prompt", sampling=GREEDY)
    assert made.column("status_code").to_pylist() == [200, 400, 200, 200]
    assert made.column("text")[0] == made.column("text")[3]
    assert made.column("text")[0] != made.column("text")[2]
    assert made.column("prompt").equals(column if isinstance(column, pa.ChunkedArray) else pa.chunked_array([column]))


def test_columns_that_cannot_be_python_objects_are_kept(engine: Engine) -> None:
    """Nothing is read but the columns of the request."""
    moments = pa.array([2**62, None], pa.timestamp("ns"))
    table = pa.table({"prompt": ["the sea", "the hat"], "when": moments, "none": pa.nulls(2)})
    table = table.replace_schema_metadata({"of": "the table"})
    made = engine.run_table(table, prompt_column="prompt", sampling=GREEDY)
    assert made.select(table.column_names).equals(table)


def test_batches_and_no_rows(engine: Engine) -> None:
    batch = pa.record_batch({"messages": [[{"role": "user", "content": "the sea"}]], "n": [1]})
    made = engine.run_table(batch, sampling=GREEDY)
    assert made.num_rows == 1
    assert made.column("completion_tokens").to_pylist() == [5]
    empty = engine.run_table(batch.slice(0, 0), sampling=GREEDY)
    assert empty.schema.equals(made.schema)
    assert empty.num_rows == 0
    no_batches = pa.schema(batch.schema).empty_table()
    assert engine.run_table(no_batches).schema.equals(made.schema)


def test_many_rows_stay_in_order(engine: Engine) -> None:
    table = pa.table({"prompt": [f"the sea {n % 7}" for n in range(600)], "n": range(600)})
    sampling = {"max_tokens": 1, "temperature": 0}
    made = engine.run_table(table, prompt_column="prompt", sampling=sampling)
    assert made.column("line").to_pylist() == list(range(1, 601))
    assert made.column("n").equals(table.column("n"))
    assert len(set(made.slice(0, 7).column("text").to_pylist())) == len(set(made.column("text").to_pylist()))


def test_names_that_results_have(engine: Engine) -> None:
    table = pa.table({"prompt": ["the sea"], "custom_id": ["own"], "text": [1], "input_text": [2], "error": [3]})
    made = engine.run_table(table, prompt_column="prompt", sampling=GREEDY)
    assert made.column("custom_id").to_pylist() == ["own"]
    assert made.select(["prompt", "input_input_text", "input_text", "input_error"]).to_pylist() == [
        {"prompt": "the sea", "input_input_text": 1, "input_text": 2, "input_error": 3}
    ]
    other = engine.run_table(table, prompt_column="prompt", id_column="prompt", sampling=GREEDY)
    assert other.column("custom_id").to_pylist() == ["the sea"]
    assert other.column("input_custom_id").to_pylist() == ["own"]


def test_types_of_the_response(engine: Engine) -> None:
    table = pa.table({"prompt": ["the sea"]})
    types = [
        engine.run_table(table, prompt_column="prompt", sampling=GREEDY, response_as=form).schema.field("response").type
        for form in ("string", "json")
    ]
    assert types == [pa.string(), pa.json_()]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "no column 'body', 'params' or 'messages'"),
        ({"prompt_column": "question"}, "names 'question'; the columns are: prompt"),
        ({"prompt_column": "prompt", "id_column": "id"}, "names 'id'"),
        ({"prompt_template": "{{"}, "not valid Jinja"),
        ({"prompt_column": "prompt", "response_as": "bytes"}, "response_as must be one of json, string"),
    ],
)
def test_columns_that_hold_no_request(engine: Engine, options: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        engine.run_table(pa.table({"prompt": ["the sea"]}), **options)
    assert engine.run_table(pa.table({"prompt": ["the sea"]}), prompt_column="prompt", sampling=GREEDY).num_rows == 1
