"""Rows of the input, one after another. Memory holds one line, or one batch of a Parquet file."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import orjson

from batchgen.config import InputConfig
from batchgen.errors import UsageError
from batchgen.io.columns import RowShaper
from batchgen.io.source import is_parquet, is_stream, open_binary
from batchgen.protocol.faults import Code, RowFault
from batchgen.protocol.request import RawRow

__all__ = ["count_rows", "models_named", "open_rows"]

_BOM = b"\xef\xbb\xbf"
_PARQUET_ROWS = 256


def open_rows(config: InputConfig) -> Iterator[RawRow]:
    """Every row that is not blank, in order. A row that can't be read is a `RawRow` with a fault.

    Raises `UsageError` where the input itself can't be read.
    """
    shaper = RowShaper(config)
    for line, row in _parquet(config.input_file) if is_parquet(config.input_file) else _json_lines(config.input_file):
        yield RawRow(line, None, row) if isinstance(row, RowFault) else shaper.shape(line, row)


def count_rows(config: InputConfig) -> int | None:
    """Rows of an input that can be read twice; None for a stream."""
    source = config.input_file
    if is_stream(source):
        return None
    if is_parquet(source):
        return sum(1 for _ in _parquet(source))
    with open_binary(source) as file:
        return sum(1 for line in file if line.strip())


def models_named(config: InputConfig) -> list[str]:
    """Models that lines name, in order of appearance and two at most: enough to know whether there is one.

    A stream can't be read twice: it names none.
    """
    if is_stream(config.input_file):
        return []
    named = (_model_of(row) for row in open_rows(config))
    return list(islice(dict.fromkeys(name for name in named if name is not None), 2))


def _model_of(row: RawRow) -> str | None:
    body = row.data.get("body") if row.data is not None else None
    model = body.get("model") if isinstance(body, dict) else None
    return model if isinstance(model, str) else None


def _json_lines(source: str) -> Iterator[tuple[int, dict[str, Any] | RowFault]]:
    try:
        with open_binary(source) as file:
            for number, line in enumerate(file, 1):
                text = line.removeprefix(_BOM) if number == 1 else line
                if text := text.strip():
                    yield number, _object(text)
    except (OSError, EOFError) as error:
        raise UsageError(f"input {source}: cannot be read: {error}") from error


def _object(text: bytes) -> dict[str, Any] | RowFault:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        return RowFault(Code.INVALID_JSON_LINE, f"the line is not valid JSON: {error}; found {_start_of(text)}")
    if not isinstance(value, dict):
        return RowFault(Code.INVALID_JSON_LINE, f"the line is not a JSON object; found {_start_of(text)}")
    return value


def _start_of(text: bytes) -> str:
    return repr(text[:40].decode("utf-8", "backslashreplace"))


def _parquet(source: str) -> Iterator[tuple[int, dict[str, Any]]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with open_binary(source) as file, pq.ParquetFile(file) as table:
            number = 0
            for batch in table.iter_batches(batch_size=_PARQUET_ROWS):
                for row in batch.to_pylist():
                    number += 1
                    yield number, {name: _without_nulls(value) for name, value in row.items()}
    except (OSError, pa.ArrowException) as error:
        raise UsageError(f"input {source}: cannot be read as Parquet: {error}") from error


def _without_nulls(value: Any) -> Any:
    """Arrow fills a struct with all keys that any row has; those that a row did not have are null."""
    if isinstance(value, dict):
        return {name: _without_nulls(item) for name, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value
