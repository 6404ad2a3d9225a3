"""Arrow IPC files as tables: streams, as Hugging Face datasets and this package write them, and random-access files.

Files on this machine are memory-mapped, so that counting rows reads no values.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from batchgen.errors import UsageError
from batchgen.io.source import open_binary
from batchgen.io.table import Table, pieces

__all__ = ["arrow_table"]

_RANDOM_ACCESS = b"ARROW1"
"""What a file that is no stream begins with."""


@contextmanager
def arrow_table(source: str) -> Iterator[Table]:
    """An Arrow file by path or address. Raises `UsageError` where it can't be read, also within the context."""
    try:
        with _opened(source) as file:
            schema = _schema(file)
            yield Table(
                schema,
                lambda: sum(batch.num_rows for batch in _batches(file)),
                lambda: (piece for batch in _batches(file) for piece in pieces(batch)),
            )
    except pa.ArrowException as error:
        raise UsageError(f"input {source}: cannot be read as Arrow: {error}") from error
    except OSError as error:
        raise UsageError(f"input {source}: cannot be read: {error}") from error


@contextmanager
def _opened(source: str) -> Iterator[pa.NativeFile]:
    if "://" not in source:
        with pa.memory_map(source) as file:
            yield file
        return
    with open_binary(source) as raw, pa.PythonFile(raw, mode="r") as file:
        yield file


def _is_stream(file: pa.NativeFile) -> bool:
    file.seek(0)
    begins = file.read(len(_RANDOM_ACCESS))
    file.seek(0)
    return bool(begins != _RANDOM_ACCESS)


def _schema(file: pa.NativeFile) -> pa.Schema:
    return (pa.ipc.open_stream(file) if _is_stream(file) else pa.ipc.open_file(file)).schema


def _batches(file: pa.NativeFile) -> Iterator[pa.RecordBatch]:
    if _is_stream(file):
        yield from pa.ipc.open_stream(file)
        return
    reader = pa.ipc.open_file(file)
    for index in range(reader.num_record_batches):
        yield reader.get_batch(index)
