"""The example for Spark in a real local Spark of two workers: the answers that an engine gives alone."""

from __future__ import annotations

import os
import runpy
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from batchgen import Engine
from tests.test_architecture import ROOT
from tests.tiny_model import make_tiny_model

ROWS = 40


def check(folder: Path) -> None:
    """Compare a frame of two partitions, each of several batches, with one table."""
    make_tiny_model(folder / "model")
    engine = Engine(str(folder / "model"), max_model_len=128, kv_cache_memory=4 << 20, threads=1)
    table = pa.table(
        {
            "id": [f"{n:02}" for n in range(ROWS)],
            "prompt": [None if n == 7 else f"the sea {n % 5}" for n in range(ROWS)],
            "text": pa.array(range(ROWS), pa.int64()),
        }
    )
    options: dict[str, Any] = {"prompt_column": "prompt", "id_column": "id", "sampling": {"max_tokens": 5}}
    with_answers = runpy.run_path(str(ROOT / "docs/examples/spark_map_in_arrow.py"))["with_answers"]
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "8")
        .config("spark.driver.memory", "1g")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .getOrCreate()
    )
    try:
        frame = spark.createDataFrame(table.to_pylist(), "id string, prompt string, text bigint").repartition(2)
        made = with_answers(frame, engine, **options).orderBy("id").toArrow()
    finally:
        spark.stop()
    with engine:
        expected = engine.run_table(table, **options)
    assert made.column_names == expected.column_names
    for name in ("custom_id", "status_code", "text", "finish_reason", "completion_tokens", "prompt", "input_text"):
        assert made.column(name).to_pylist() == expected.column(name).to_pylist(), name
    errors, others = (some.column("error").to_pylist() for some in (made, expected))
    assert [error and error["message"] for error in errors] == [error and error["message"] for error in others]
    print(f"spark: {ROWS} rows answered as by an engine alone")


if __name__ == "__main__":
    # Workers are begun by a shell of Spark's, which would take another Python.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    with tempfile.TemporaryDirectory() as made:
        check(Path(made))
