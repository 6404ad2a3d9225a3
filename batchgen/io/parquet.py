"""Parquet files as tables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.parquet as pq

from batchgen.errors import UsageError
from batchgen.io.source import open_binary
from batchgen.io.table import PIECE_BYTES, PIECE_ROWS, Table

__all__ = ["parquet_table"]


@contextmanager
def parquet_table(source: str) -> Iterator[Table]:
    """A Parquet file by path or address. Raises `UsageError` where it can't be read, also within the context."""
    # Without reading ahead memory holds pages, not row groups; over a network it would cost a request each.
    ahead = "://" in source
    try:
        with open_binary(source) as raw, pq.ParquetFile(raw, pre_buffer=ahead, buffer_size=1 << 20) as file:
            yield Table(
                file.schema_arrow,
                lambda: int(file.metadata.num_rows),
                lambda: file.iter_batches(batch_size=_rows_per_batch(file.metadata)),
            )
    except pa.ArrowException as error:
        raise UsageError(f"input {source}: cannot be read as Parquet: {error}") from error


def _rows_per_batch(metadata: pq.FileMetaData) -> int:
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    largest = max((group.total_byte_size // max(1, group.num_rows) for group in groups), default=0)
    return max(1, min(PIECE_ROWS, PIECE_BYTES // max(1, largest)))
