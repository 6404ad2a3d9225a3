"""A Spark DataFrame through a model: every partition has an engine, and hands it one Arrow batch after another.

    spark-submit docs/examples/spark_map_in_arrow.py prompts.parquet answers.parquet

Spark 4 with pyarrow; batchgen is installed where the workers run. A task takes as many cores as `spark.task.cpus`, so
give the engine as many threads. The model is loaded once a partition: have a few large ones, and in
`spark.sql.execution.arrow.maxRecordsPerBatch` as many rows as fit the memory (10,000 by default).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from batchgen import Engine


def with_answers(frame: DataFrame, engine: Engine, **options: Any) -> DataFrame:
    """The rows of a frame with the columns of `Engine.run_table`, which takes the options.

    Give an `id_column`: without one every batch has its `row-1`.
    """

    def answer(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with engine:  # a copy that Spark has sent here
            for batch in batches:
                yield from engine.run_table(batch, **options).to_batches()

    # Without rows no model is loaded: the driver needs the columns alone.
    columns = engine.run_table(frame.limit(0).toArrow(), **options).schema
    return frame.mapInArrow(answer, from_arrow_schema(columns))


if __name__ == "__main__":
    source, target = sys.argv[1:]
    spark = SparkSession.builder.appName("batchgen").getOrCreate()
    cores = int(spark.conf.get("spark.task.cpus", "1") or 1)
    frame = spark.read.parquet(source).coalesce(spark.sparkContext.defaultParallelism // cores)
    answered = with_answers(
        frame,
        Engine("smollm2-135m-instruct", threads=cores),
        prompt_column="prompt",
        id_column="id",
        sampling={"max_tokens": 64},
    )
    answered.write.parquet(target)
