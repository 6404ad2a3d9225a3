"""One Arrow stream file of result rows, with the digest of the request beside each row.

Digests are in the metadata of the record batches (key `batchgen.digests`, 32 hex digits a row), where readers of the
columns don't see them.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import pyarrow as pa

__all__ = ["ROWS_PER_BATCH", "ResultFile", "ResultWriter", "open_results"]

ROWS_PER_BATCH = 256
_DIGESTS = b"batchgen.digests"
_DIGEST_LENGTH = 32


class ResultWriter:
    """Writes batches to an open file."""

    def __init__(self, file: IO[bytes], schema: pa.Schema) -> None:
        self._stream = pa.ipc.new_stream(file, schema)

    def write(self, batch: pa.RecordBatch, digests: SequenceOf[str]) -> None:
        """Append a batch of the file's schema, with a digest for each of its rows."""
        self._stream.write_batch(batch, custom_metadata={_DIGESTS: "".join(digests)})

    def close(self) -> None:
        """End the stream; the file stays open."""
        self._stream.close()


@dataclass(frozen=True, slots=True)
class ResultFile:
    """What can be read of a file."""

    schema: pa.Schema | None
    """None where not even that can be read."""
    batches: tuple[pa.RecordBatch, ...]
    """Over the mapped file: pages are read when they are touched."""
    digests: tuple[str, ...]
    """Of each batch, joined."""
    whole: bool
    """False where the file breaks off or is damaged; the batches before that place are there."""

    @property
    def rows(self) -> int:
        """Rows in all batches."""
        return sum(batch.num_rows for batch in self.batches)

    def digests_of(self, batch: int) -> list[str]:
        """The digests of one batch's rows."""
        joined = self.digests[batch]
        return [joined[at : at + _DIGEST_LENGTH] for at in range(0, len(joined), _DIGEST_LENGTH)]

    def take(self, rows: SequenceOf[int], schema: pa.Schema) -> Iterator[tuple[pa.RecordBatch, list[str], list[int]]]:
        """Rows by number, a batch of the file at a time: the rows as `schema` has them, their digests, and which of
        `rows` they are."""
        wanted = np.asarray(rows, dtype=np.int64)
        starts = np.cumsum([0, *(batch.num_rows for batch in self.batches)])
        owners = np.searchsorted(starts, wanted, side="right") - 1
        for number in np.unique(owners).tolist():
            which = np.flatnonzero(owners == number)
            local = wanted[which] - starts[number]
            digests = self.digests_of(number)
            yield (
                _as_schema(self.batches[number].take(pa.array(local)), schema),
                [digests[at] for at in local.tolist()],
                which.tolist(),
            )


@contextmanager
def open_results(path: Path) -> Iterator[ResultFile]:
    """Read a file as far as it can be read."""
    with pa.memory_map(str(path)) as file:
        yield _read(file)


def _read(file: pa.MemoryMappedFile) -> ResultFile:
    batches: list[pa.RecordBatch] = []
    digests: list[str] = []
    schema = None
    try:
        with pa.ipc.open_stream(file) as stream:
            schema = stream.schema
            for batch, metadata in stream.iter_batches_with_custom_metadata():
                batch.validate()
                joined = "" if metadata is None else metadata[_DIGESTS].decode("ascii")
                if len(joined) != _DIGEST_LENGTH * batch.num_rows:
                    raise pa.ArrowInvalid("a batch has not one digest a row")
                batches.append(batch)
                digests.append(joined)
    except (pa.ArrowException, OSError, KeyError, UnicodeDecodeError):
        return ResultFile(schema, tuple(batches), tuple(digests), whole=False)
    return ResultFile(schema, tuple(batches), tuple(digests), whole=True)


def _as_schema(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with the columns of `schema`; null where it has none of that name."""
    if batch.schema.equals(schema, check_metadata=True):
        return batch
    have = set(batch.schema.names)
    columns = [batch.column(f.name) if f.name in have else pa.nulls(batch.num_rows, f.type) for f in schema]
    return pa.record_batch(columns, schema=schema)
