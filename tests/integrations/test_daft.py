"""The example for Daft, with the real Daft."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import daft
import pyarrow as pa
import pytest

from batchgen import Engine
from tests.test_architecture import ROOT


# Daft leaves a pipe to its worker process for the collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_example_answers_as_the_engine_does(tiny_model: Path) -> None:
    spec = importlib.util.spec_from_file_location("daft_udf", ROOT / "docs/examples/daft_udf.py")
    assert spec is not None
    assert spec.loader is not None
    example: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    engine = Engine(str(tiny_model), max_model_len=128, kv_cache_memory=4 << 20, threads=1)
    sampling = {"max_tokens": 5}
    rows: dict[str, list[Any]] = {"id": list("abcdef"), "prompt": ["the sea", "the hat", None, "the", "sea", "hat"]}
    frame = daft.from_pydict(rows)
    answers = example.Answers.with_init_args(engine, sampling)
    got = frame.with_column("answer", answers(frame["prompt"], frame["id"])).sort("id").to_pydict()
    with engine:
        made = engine.run_table(pa.table(rows), prompt_column="prompt", id_column="id", sampling=sampling)
    expected = made.select(["text", "finish_reason", "completion_tokens", "error"]).to_pylist()
    expected[2]["error"] = expected[2]["error"]["message"]
    assert got == {**rows, "answer": expected}
    assert got["answer"][0]["text"]
