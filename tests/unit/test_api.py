"""`batchgen.Engine` on a tiny model: one result for each input, and what may go wrong on the way."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from batchgen import Engine
from batchgen.errors import EngineBusyError, UsageError

GREEDY = {"max_tokens": 5, "temperature": 0}


@pytest.fixture(scope="module")
def engine(tiny_model: Path) -> Iterator[Engine]:
    with Engine(
        str(tiny_model), max_model_len=128, kv_cache_memory=4 << 20, threads=1, max_num_seqs=16, window=8
    ) as engine:
        yield engine


def test_inputs_of_every_form(engine: Engine) -> None:
    inputs = [
        "the sea",
        [{"role": "user", "content": "the sea"}],
        {"prompt": "the sea", "max_tokens": 2},
        {"custom_id": "line", "method": "POST", "url": "/v1/completions", "body": {"prompt": "the sea"}},
        {"input": "the sea", "max_tokens": None, "temperature": None},
        3,
        {"wat": 1},
    ]
    results = list(engine.generate(inputs, GREEDY))
    assert [result.index for result in results] == list(range(7))
    assert [result.custom_id for result in results] == ["row-1", "row-2", "row-3", "line", "row-5", "row-6", "row-7"]
    assert [result.completion_tokens for result in results[:4]] == [5, 5, 2, 5]
    assert results[0].text == results[3].text
    errors = [result.error and result.error.code for result in results]
    assert errors == [None] * 4 + ["unsupported_parameter", "invalid_type", "missing_required_field"]


def test_it_pickles_as_its_settings(engine: Engine) -> None:
    copy = pickle.loads(pickle.dumps(engine))  # noqa: S301 - our own
    with copy:
        assert [r.text for r in copy.generate(["the sea"], GREEDY)] == [
            r.text for r in engine.generate(["the sea"], GREEDY)
        ]


def test_a_run_that_is_left_early_gives_way(engine: Engine) -> None:
    first = engine.generate((f"the sea {n}" for n in range(100)), GREEDY)
    assert next(first).index == 0
    assert len(list(engine.generate(["the sea"] * 3, GREEDY))) == 3
    with pytest.raises(EngineBusyError, match="began another run"):
        list(first)


def test_an_exception_of_the_inputs_is_the_callers(engine: Engine) -> None:
    def inputs() -> Iterator[str]:
        yield "the sea"
        raise KeyError("lost")

    with pytest.raises(KeyError, match="lost"):
        list(engine.generate(inputs(), GREEDY))
    assert len(list(engine.generate(["the sea"], GREEDY))) == 1


def test_one_text_is_not_many(engine: Engine) -> None:
    with pytest.raises(UsageError, match="list"):
        engine.generate("the sea")


def test_tables_keep_their_columns(engine: Engine) -> None:
    table = pa.table({"id": ["a", "b", "c"], "prompt": ["the sea", None, "the"], "text": [1, 2, 3]})
    made = engine.run_table(table, prompt_column="prompt", id_column="id", sampling=GREEDY)
    assert made.column("custom_id").to_pylist() == ["a", "b", "c"]
    assert made.column("status_code").to_pylist() == [200, 400, 200]
    assert made.select(["id", "prompt", "input_text"]).rename_columns(table.column_names).equals(table)
    assert engine.run_table(table.slice(0, 0), prompt_column="prompt").schema == made.schema
