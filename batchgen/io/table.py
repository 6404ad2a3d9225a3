"""What every input with columns offers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

__all__ = ["PIECE_BYTES", "PIECE_ROWS", "Table", "pieces"]

PIECE_ROWS, PIECE_BYTES = 256, 64 << 20
"""Rows of a batch and bytes of its values, about and at most."""


@dataclass(frozen=True, slots=True)
class Table:
    """An open table."""

    schema: pa.Schema
    """With the metadata under which Hugging Face datasets keeps features, where there is any."""
    count: Callable[[], int]
    """Rows; may read the table's metadata for it, never its values."""
    batches: Callable[[], Iterator[pa.RecordBatch]]
    """All rows in order, in batches of `PIECE_ROWS` at most and about `PIECE_BYTES`."""


def pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """A batch of an Arrow file in slices of the size that is read at once.

    Raises `pa.ArrowInvalid` where reading a value would reach outside the file.
    """
    if not batch.num_rows:
        return
    rows = max(1, min(PIECE_ROWS, PIECE_BYTES * batch.num_rows // max(1, batch.nbytes)))
    for start in range(0, batch.num_rows, rows):
        piece = batch.slice(start, rows)
        for column in piece.columns:
            _check(column)
        yield piece


def _check(column: pa.Array) -> None:
    try:
        column.validate(full=True)
    except pa.ArrowInvalid as error:
        # That is the fault of its row alone, and found when the row is read.
        if "Invalid UTF8" not in str(error):
            raise
