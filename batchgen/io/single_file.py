"""One file out of the parts of a folder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import orjson
import pyarrow as pa

from batchgen.io.durable import durable_file
from batchgen.io.sources import part_files
from batchgen.protocol.lines import LINES, AnsweredRow, LineFormat

__all__ = ["read_parts", "row_groups", "write_error_file", "write_single_file"]

_COLUMNS = ("custom_id", "line", "status_code", "error", "response")
"""What a line is made of."""
_ROW_GROUP_BYTES = 64 << 20


def write_single_file(folder: Path, target: Path, schema: pa.Schema, run_id: str, line_format: LineFormat) -> None:
    """Write `target` as its ending says: `.jsonl` (a batch output), `.parquet` or `.arrow` (one IPC stream)."""
    with durable_file(target) as file:
        if target.suffix == ".jsonl":
            for line in _lines(folder, run_id, line_format):
                file.write(line)
        elif target.suffix == ".parquet":
            import pyarrow.parquet as pq

            with pq.ParquetWriter(file, schema) as parquet:
                for table in row_groups(read_parts(folder)):
                    parquet.write_table(table)
        else:
            with pa.ipc.new_stream(file, schema) as stream:
                for batch in read_parts(folder):
                    stream.write_batch(batch)


def write_error_file(folder: Path, target: Path, run_id: str, line_format: LineFormat) -> None:
    """Write the lines of all rows that failed."""
    with durable_file(target) as file:
        for line in _lines(folder, run_id, line_format, only_failed=True):
            file.write(line)


def read_parts(folder: Path) -> Iterator[pa.RecordBatch]:
    """The batches of all parts, in order."""
    for path in part_files(folder):
        with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as reader:
            yield from reader


def row_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Batches in pieces that suit a Parquet file."""
    group: list[pa.RecordBatch] = []
    for batch in batches:
        group.append(batch)
        if sum(piece.nbytes for piece in group) >= _ROW_GROUP_BYTES:
            yield pa.Table.from_batches(group)
            group.clear()
    if group:
        yield pa.Table.from_batches(group)


def _lines(folder: Path, run_id: str, line_format: LineFormat, *, only_failed: bool = False) -> Iterator[bytes]:
    line_of = LINES[line_format]
    for batch in read_parts(folder):
        for row in batch.select(_COLUMNS).to_pylist():
            if not only_failed or row["status_code"] != 200:
                yield orjson.dumps(line_of(AnsweredRow(run_id, **row)), option=orjson.OPT_APPEND_NEWLINE)
