"""The Python API gives what `run-batch` gives on the same rows: answers, seeds, errors, columns."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchgen import Engine, Result
from batchgen.config import EngineConfig, InputConfig, JobConfig, ModelConfig, OutputConfig
from batchgen.job import run_job
from tests.api.conftest import SETTINGS
from tests.outputs import without_varying
from tests.unit import test_job, test_scoring
from tests.unit.test_job import Silent, line

LINES = [
    *test_job.GOOD,
    *test_scoring.LINES,
    *test_scoring.BAD,
    *(json.loads(text) for text, code in test_job.BAD if code != "invalid_json_line"),
    {"custom_id": "embed", "url": "/v1/embeddings", "body": {"input": ["the sea", "the hat"]}},
    {"custom_id": "packed", "url": "/v1/embeddings", "body": {"input": "the sea", "encoding_format": "base64"}},
    {"custom_id": "message", "params": {"max_tokens": 4, "messages": [{"role": "user", "content": "the sea"}]}},
    line("regex", structured_outputs={"regex": "[ab]{3}"}, temperature=1),
]


def run_batch(model: Path, source: Path, target: Path, **columns: Any) -> Path:
    config = JobConfig(
        model=ModelConfig(model=str(model)),
        engine=EngineConfig(**SETTINGS),
        input=InputConfig(input_file=str(source), **columns),
        output=OutputConfig(output_file=str(target), line_format="openai", response_as="string"),
    )
    run_job(config, source.parent / "home", Silent())
    return target


def answer(body: Any) -> Any:
    """A body without what names the run and its place in it."""
    if body is None:
        return None
    text = json.dumps(without_varying({**body, "id": None}))
    return json.loads(text)


def lines_of(path: Path) -> Iterator[tuple[Any, ...]]:
    for text in path.read_text().splitlines():
        row = json.loads(text)
        yield row["custom_id"], answer(row["response"]["body"])


def shown(results: Iterator[Result]) -> list[tuple[Any, ...]]:
    return [(result.custom_id, answer(result.response)) for result in results]


def test_batch_lines(engine: Engine, tiny_model: Path, tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps(request) + "\n" for request in LINES))
    expected = list(lines_of(run_batch(tiny_model, source, tmp_path / "out.jsonl")))
    got = shown(engine.generate(LINES))
    assert [name for name, _ in got] == [name for name, _ in expected]
    for mine, other in zip(got, expected, strict=True):
        assert mine == other


def test_texts_and_messages_without_seeds(engine: Engine, tiny_model: Path, tmp_path: Path) -> None:
    sampling = {"max_tokens": 6, "temperature": 1.2}
    prompts = [f"the sea {n % 3}" for n in range(12)]
    chats = [[{"role": "user", "content": prompt}] for prompt in prompts]
    forms: list[tuple[list[Any], str, str]] = [
        (prompts, "/v1/completions", "prompt"),
        (chats, "/v1/chat/completions", "messages"),
    ]
    for number, (inputs, url, name) in enumerate(forms):
        requests = [
            {"custom_id": f"row-{n}", "method": "POST", "url": url, "body": {name: item, **sampling}}
            for n, item in enumerate(inputs, 1)
        ]
        source = tmp_path / f"{number}.jsonl"
        source.write_text("".join(json.dumps(request) + "\n" for request in requests))
        expected = list(lines_of(run_batch(tiny_model, source, tmp_path / f"{number}.out.jsonl")))
        assert shown(engine.generate(inputs, sampling)) == expected
        assert len({json.dumps(body["choices"]) for _, body in expected}) == 12, "twelve seeds"


TABLE = pa.table(
    {
        "question": ["the sea", "the hat", None, "the cat"],
        "text": ["mine", None, "yours", ""],
        "input_text": [1, 2, 3, 4],
        "weight": [1.5, None, float("nan"), 2.0],
        "list": [[1], None, [], [2, None]],
        "struct": [{"a": 1}, None, {"a": None}, {"a": 2}],
        "key": ["a", "b", "c", "a"],
    }
)


@pytest.mark.parametrize(
    ("columns", "of_the_request"),
    [
        ({"prompt_column": "question", "id_column": "key"}, {"question", "key"}),
        ({"prompt_template": "{{ question }} {{ text }}?", "system_prompt": "be brief"}, set()),
        ({"prompt_column": "question", "system_prompt": "be brief"}, {"question"}),
    ],
)
def test_tables(
    engine: Engine, tiny_model: Path, tmp_path: Path, columns: dict[str, Any], of_the_request: set[str]
) -> None:
    """Columns of the request are kept too; a file does not have them."""
    pq.write_table(TABLE, tmp_path / "in.parquet")
    file = pq.read_table(run_batch(tiny_model, tmp_path / "in.parquet", tmp_path / "out.parquet", **columns))
    made = engine.run_table(TABLE, **columns)
    assert [name for name in made.column_names if name not in of_the_request] == file.column_names
    assert made.select(file.column_names).schema.equals(file.schema)
    for name in [name for name in file.column_names if name != "cached_tokens"]:
        mine, other = made.column(name).to_pylist(), file.column(name).to_pylist()
        if name == "response":
            mine, other = ([answer(json.loads(body)) for body in bodies] for bodies in (mine, other))
        assert repr(mine) == repr(other), name


def test_tables_of_batch_lines(engine: Engine, tiny_model: Path, tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "the sea"}, {"role": "assistant", "content": "is", "name": "a"}]
    table = pa.table(
        {
            "custom_id": ["a", "b", "c"],
            "url": ["/v1/chat/completions", "/v1/completions", "/v1/completions"],
            "body": [
                {"messages": chat, "max_tokens": 4, "prompt": None},
                {"messages": None, "max_tokens": 5, "prompt": "the sea"},
                {"messages": None, "max_tokens": -1, "prompt": "the sea"},
            ],
            "method": pa.nulls(3),
        }
    )
    pq.write_table(table, tmp_path / "in.parquet")
    file = pq.read_table(run_batch(tiny_model, tmp_path / "in.parquet", tmp_path / "out.parquet"))
    made = engine.run_table(table)
    assert made.column("text").equals(file.column("text"))
    assert made.column("error").equals(file.column("error"))
    assert made.column_names == [*file.column_names, "url", "body", "method"]
    assert made.column("custom_id").to_pylist() == ["a", "b", "c"]
    as_text = table.set_column(2, "body", pa.array([json.dumps(body) for body in table.column("body").to_pylist()]))
    assert engine.run_table(as_text).column("text").equals(file.column("text"))
