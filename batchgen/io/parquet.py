"""Rows of a Parquet file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from batchgen.config import InputConfig
from batchgen.errors import UsageError
from batchgen.io.columns import RowShaper, check_columns, request_columns
from batchgen.io.source import open_binary
from batchgen.protocol.faults import Code, RowFault
from batchgen.protocol.request import RawRow

__all__ = ["count_parquet_rows", "parquet_columns", "parquet_rows"]

_ROWS = 256
"""Rows of a batch."""


def parquet_rows(config: InputConfig, shaper: RowShaper) -> Iterator[RawRow]:
    """The rows; what is passed through stays Arrow: an array of one value for each column."""
    with _opened(config) as file:
        names = file.schema_arrow.names
        own = request_columns(config, names)
        # A template may use any column.
        wanted = [name for name in names if name in own or config.prompt_template is not None]
        passed = [name for name in names if name not in own]
        number = 0
        for batch in file.iter_batches(batch_size=_ROWS):
            for index, row in enumerate(_python_rows(batch.select(wanted))):
                number += 1
                extra = {name: batch.column(name).slice(index, 1) for name in passed}
                if isinstance(row, RowFault):
                    yield RawRow(number, None, row, extra)
                else:
                    yield shaper.shape(number, row, extra)


def count_parquet_rows(config: InputConfig) -> int:
    """Rows of the file, as its footer says."""
    with _opened(config) as file:
        return int(file.metadata.num_rows)


def parquet_columns(config: InputConfig) -> list[pa.Field]:
    """The columns that are passed through."""
    with _opened(config) as file:
        own = request_columns(config, file.schema_arrow.names)
        return [field for field in file.schema_arrow if field.name not in own]


@contextmanager
def _opened(config: InputConfig) -> Iterator[pq.ParquetFile]:
    source = config.input_file
    # Without reading ahead memory holds pages, not row groups; over a network it would cost a request each.
    ahead = "://" in source
    try:
        with open_binary(source) as raw, pq.ParquetFile(raw, pre_buffer=ahead, buffer_size=1 << 20) as file:
            check_columns(config, file.schema_arrow.names)
            yield file
    except pa.ArrowException as error:
        raise UsageError(f"input {source}: cannot be read as Parquet: {error}") from error


def _python_rows(batch: pa.RecordBatch) -> Iterator[dict[str, Any] | RowFault]:
    try:
        rows = batch.to_pylist()
    except (ValueError, OverflowError) as error:
        if batch.num_rows == 1:
            message = f"the row cannot be read: {error}"
            yield RowFault(Code.INVALID_VALUE, message)
            return
        for index in range(batch.num_rows):
            yield from _python_rows(batch.slice(index, 1))
        return
    for row in rows:
        yield {name: _without_nulls(value) for name, value in row.items()}


def _without_nulls(value: Any) -> Any:
    """Arrow fills a struct with all keys that any row has; those that a row did not have are null."""
    if isinstance(value, dict):
        return {name: _without_nulls(item) for name, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value
