"""A Daft DataFrame through a model: a UDF class that has one engine, over Arrow.

python docs/examples/daft_udf.py prompts.parquet answers
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import daft
import pyarrow as pa
import pyarrow.compute as pc
from daft import DataType

from batchgen import Engine

ANSWER = pa.struct(
    [("text", pa.string()), ("finish_reason", pa.string()), ("completion_tokens", pa.int32()), ("error", pa.string())]
)


@daft.udf(return_dtype=DataType.from_arrow_type(ANSWER), concurrency=1, batch_size=10_000)
class Answers:
    """Prompts and their ids to answers. `concurrency` counts the copies of the model, each in a process of its own."""

    def __init__(self, engine: Engine, sampling: Mapping[str, Any]) -> None:
        self._engine = engine
        self._sampling = dict(sampling)

    def __call__(self, prompts: daft.Series, ids: daft.Series) -> pa.Array:
        """Series of n prompts and of n ids, no two of them equal, to an array of n structs."""
        table = pa.table({"prompt": prompts.to_arrow(), "id": ids.to_arrow()})
        made = self._engine.run_table(table, prompt_column="prompt", id_column="id", sampling=self._sampling)
        errors = pa.chunked_array([pc.struct_field(made.column("error").combine_chunks(), "message")])
        answers = made.set_column(made.schema.get_field_index("error"), "error", errors)
        return answers.select([field.name for field in ANSWER]).to_struct_array().combine_chunks()


if __name__ == "__main__":
    source, target = sys.argv[1:]
    answers = Answers.with_init_args(Engine("smollm2-135m-instruct"), {"max_tokens": 64})
    frame = daft.read_parquet(source)
    frame.with_column("answer", answers(frame["prompt"], frame["id"])).write_parquet(target)
