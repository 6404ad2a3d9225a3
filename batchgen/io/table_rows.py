"""Rows of tables as requests."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from datetime import date, time
from decimal import Decimal
from typing import Any

import pyarrow as pa

from batchgen.config import InputConfig
from batchgen.io.columns import RowShaper, check_columns, request_columns
from batchgen.io.table import Table
from batchgen.io.tables import open_table
from batchgen.protocol.faults import Code, RowFault
from batchgen.protocol.request import RawRow

__all__ = ["count_table_rows", "rows_of_batches", "table_columns", "table_rows"]


def table_rows(config: InputConfig, shaper: RowShaper) -> Iterator[RawRow]:
    """The rows; what is passed through stays Arrow: an array of one value for each column."""
    with _opened(config) as table:
        names = table.schema.names
        own = request_columns(config, names)
        yield from rows_of_batches(table.batches(), names, config, shaper, [n for n in names if n not in own])


def rows_of_batches(
    batches: Iterable[pa.RecordBatch],
    names: Collection[str],
    config: InputConfig,
    shaper: RowShaper,
    passed: Collection[str] = (),
) -> Iterator[RawRow]:
    """The rows of batches with the columns `names`, and what is `passed` through of each."""
    own = request_columns(config, names)
    # A template may use any column, and each value as the kind of thing that it is.
    templated = config.prompt_template is not None
    wanted = [name for name in names if name in own or templated]
    number = 0
    for batch in batches:
        for index, row in enumerate(_python_rows(batch.select(wanted), _as_it_is if templated else _as_json)):
            number += 1
            extra = {name: batch.column(name).slice(index, 1) for name in passed}
            if isinstance(row, RowFault):
                yield RawRow(number, None, row, extra)
            else:
                yield shaper.shape(number, row, extra)


def count_table_rows(config: InputConfig) -> int:
    """Rows of the table, as its metadata says."""
    with _opened(config) as table:
        return table.count()


def table_columns(config: InputConfig) -> pa.Schema:
    """The columns that are passed through, with the table's metadata."""
    with _opened(config) as table:
        own = request_columns(config, table.schema.names)
        return pa.schema([field for field in table.schema if field.name not in own], table.schema.metadata)


@contextmanager
def _opened(config: InputConfig) -> Iterator[Table]:
    with open_table(config) as table:
        check_columns(config, table.schema.names)
        yield table


def _python_rows(batch: pa.RecordBatch, leaf: Callable[[Any], Any]) -> Iterator[dict[str, Any] | RowFault]:
    try:
        rows = [
            {name: _without_nulls(value, leaf) for name, value in row.items()}
            for row in batch.to_pylist(maps_as_pydicts="strict")
        ]
    except (ValueError, OverflowError, KeyError) as error:
        if batch.num_rows == 1:
            message = f"the row cannot be read: {error}"
            yield RowFault(Code.INVALID_VALUE, message)
            return
        for index in range(batch.num_rows):
            yield from _python_rows(batch.slice(index, 1), leaf)
        return
    yield from rows


def _without_nulls(value: Any, leaf: Callable[[Any], Any]) -> Any:
    """Arrow fills a struct with all keys that any row has; those that a row did not have are null."""
    if isinstance(value, dict):
        return {str(name): _without_nulls(item, leaf) for name, item in value.items() if item is not None}
    return [_without_nulls(item, leaf) for item in value] if isinstance(value, list) else leaf(value)


def _as_it_is(value: Any) -> Any:
    return value


def _as_json(value: Any) -> Any:
    """A value of a kind that JSON has. Raises `UnicodeDecodeError` for bytes that are no text."""
    match value:
        case None | str() | bool() | int() | float():
            return value
        case Decimal():
            return int(value) if value == value.to_integral_value() else float(value)
        case bytes():
            return value.decode()
        case date() | time():
            return value.isoformat()
        case _:
            return str(value)
