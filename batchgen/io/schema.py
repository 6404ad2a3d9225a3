"""The columns of the output."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from typing import Any, Literal

import orjson
import pyarrow as pa

from batchgen.config import InputConfig
from batchgen.io.source import is_parquet, open_binary
from batchgen.protocol.result import ResultRow

__all__ = ["passed_through", "result_schema", "rows_to_batch"]

_ENVELOPE = frozenset({"custom_id", "method", "url", "body"})
_ERROR = pa.struct([("code", pa.string()), ("message", pa.string()), ("param", pa.string()), ("line", pa.int64())])
_OWN = (
    pa.field("custom_id", pa.string()),
    pa.field("line", pa.int64()),
    pa.field("status_code", pa.int32()),
    pa.field("text", pa.string()),
    pa.field("finish_reason", pa.string()),
    pa.field("prompt_tokens", pa.int32()),
    pa.field("completion_tokens", pa.int32()),
    pa.field("cached_tokens", pa.int32()),
    pa.field("error", _ERROR),
)
_SOURCE = b"input column"
"""Key of a passed-through field's metadata: the column's name in the input."""


def result_schema(response_as: Literal["json", "string"], passed: SequenceOf[pa.Field] = ()) -> pa.Schema:
    """The schema of PROTOCOL's result row, then the input's other columns. A name of ours is kept from them: the
    input's `text` is called `input_text`."""
    own = [*_OWN, pa.field("response", pa.json_() if response_as == "json" else pa.string())]
    taken = {field.name for field in own}
    others = [
        field.with_name(f"input_{field.name}" if field.name in taken else field.name).with_metadata(
            {_SOURCE: field.name}
        )
        for field in passed
    ]
    return pa.schema([*own, *others])


def passed_through(config: InputConfig) -> list[pa.Field]:
    """Columns of the input that go to the output as they are: those of a Parquet file that are no part of a request
    line. JSON lines have no columns, and nothing of theirs is passed through."""
    if not is_parquet(config.input_file):
        return []
    import pyarrow.parquet as pq

    with open_binary(config.input_file) as file:
        schema = pq.read_schema(file)
    return [field for field in schema if field.name not in _ENVELOPE]


def rows_to_batch(rows: SequenceOf[ResultRow], schema: pa.Schema) -> pa.RecordBatch:
    """One record batch of rows, column by column."""
    columns: list[pa.Array] = []
    for number, field in enumerate(schema):
        if number < len(_OWN):
            values: list[Any] = [_error(row) if field.name == "error" else getattr(row, field.name) for row in rows]
        elif number == len(_OWN):
            values = [None if row.response is None else orjson.dumps(row.response).decode() for row in rows]
        else:
            values = [row.extra.get(field.metadata[_SOURCE].decode()) for row in rows]
        columns.append(pa.array(values, field.type))
    return pa.record_batch(columns, schema=schema)


def _error(row: ResultRow) -> dict[str, Any] | None:
    fault = row.error
    if fault is None:
        return None
    return {"code": str(fault.code), "message": fault.message, "param": fault.param, "line": row.line}
