"""The columns of the output."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from typing import Any, Literal

import orjson
import pyarrow as pa

from batchgen.config import InputConfig
from batchgen.io.readers import first_rows
from batchgen.io.table_rows import table_columns
from batchgen.io.tables import is_table
from batchgen.protocol.result import ResultRow

__all__ = ["passed_through", "result_schema", "rows_to_batch"]

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
_FEATURES = b"huggingface"
"""Key of a schema's metadata under which Hugging Face datasets keeps what columns mean, such as names of classes."""
_NO_COLUMNS = pa.schema([])
_ROWS_FOR_COLUMNS = 1000


def result_schema(response_as: Literal["json", "string"], passed: pa.Schema = _NO_COLUMNS) -> pa.Schema:
    """The schema of PROTOCOL's result row, then the input's other columns. A name of ours is kept from them: the
    input's `text` is called `input_text`. Features that datasets has noted of them stay."""
    fields = [*_OWN, pa.field("response", pa.json_())]
    taken = {field.name for field in (*fields, *passed)}
    names: dict[str, str] = {}
    for field in passed:
        name = field.name
        while name in {other.name for other in fields}:
            name = f"input_{name}"
            name = f"input_{name}" if name in taken else name
        names[field.name] = name
        # Rows that failed to be read have no value, whatever the input promises.
        metadata = {**(field.metadata or {}), _SOURCE: field.name.encode()}
        fields.append(field.with_name(name).with_metadata(metadata).with_nullable(True))
    if response_as == "string":
        fields = [field.with_type(pa.string()) if field.type == pa.json_() else field for field in fields]
    return pa.schema(fields, _features(passed.metadata or {}, names))


def _features(metadata: Mapping[bytes, bytes], names: Mapping[str, str]) -> dict[bytes, bytes]:
    """The metadata with which datasets gives columns that have new `names` the features that they had."""
    try:
        features = orjson.loads(metadata[_FEATURES])["info"]["features"]
        kept = {names[name]: feature for name, feature in features.items() if name in names}
    except (KeyError, TypeError, AttributeError, orjson.JSONDecodeError):  # there are none
        return {}
    return {_FEATURES: orjson.dumps({"info": {"features": kept}})} if kept else {}


def passed_through(config: InputConfig) -> pa.Schema:
    """Columns of the input that go to the output as they are: those that are no part of the request.

    JSON lines have no schema: the further keys of the first thousand rows are their columns, as JSON.
    """
    if is_table(config):
        return table_columns(config)
    names = dict.fromkeys(name for row in first_rows(config, _ROWS_FOR_COLUMNS) for name in row.extra)
    return pa.schema([pa.field(name, pa.json_()) for name in names])


def rows_to_batch(rows: SequenceOf[ResultRow], schema: pa.Schema) -> pa.RecordBatch:
    """Rows as one batch of `schema`. Raises `pa.ArrowException` for values that don't fit their columns."""
    columns = []
    for number, field in enumerate(schema):
        if number < len(_OWN):
            values: list[Any] = [_error(row) if field.name == "error" else getattr(row, field.name) for row in rows]
            columns.append(pa.array(values, field.type))
        elif number == len(_OWN):
            texts = [None if row.response is None else orjson.dumps(row.response).decode() for row in rows]
            columns.append(pa.array(texts, field.type))
        else:
            source = field.metadata[_SOURCE].decode()
            columns.append(pa.concat_arrays([_one(row.extra.get(source), field.type) for row in rows]))
    return pa.record_batch(columns, schema=schema)


def _one(value: pa.Array | str | None, kind: pa.DataType) -> pa.Array:
    """An array of one value: as the reader of a table made it, or JSON text."""
    return value if isinstance(value, pa.Array) else pa.array([value], kind)


def _error(row: ResultRow) -> dict[str, Any] | None:
    fault = row.error
    if fault is None:
        return None
    return {"code": str(fault.code), "message": fault.message, "param": fault.param, "line": row.line}
