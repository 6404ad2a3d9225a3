"""Rows of journal files and of earlier parts, laid out in order: `part-00000.arrow`, `part-00001.arrow`, ..."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batchgen.io.durable import durable_file
from batchgen.io.journal import FILE_BYTES
from batchgen.io.result_file import ROWS_PER_BATCH, ResultWriter, open_results
from batchgen.io.sources import PART_FILE, Source, Sources

__all__ = ["Parts", "Place"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where the result of a row of the input is."""

    source: int
    row: int
    line: int | None = None
    """The line that it answers, where the file says another one: the input has changed."""


class Parts:
    """Knows where the rows of the input that are in no part yet have their results, and makes parts of them in order.

    Holds as many places as rows are under way, and those of one part more.
    """

    def __init__(self, folder: Path, schema: pa.Schema, rows_per_part: int, sources: Sources) -> None:
        self._folder = folder
        self._schema = schema
        self._rows_per_part = rows_per_part
        self._sources = sources
        self._places: dict[int, Place] = {}
        self._start = 0
        """First row of the input that is in no part."""
        self._end = 0
        """First row from there that has no result."""
        self._count = 0

    def __len__(self) -> int:
        return len(self._places)

    def put(self, number: int, place: Place) -> None:
        """Note the result of the input's row `number`, counted from 0 without gaps.

        Raises `ValueError` for a number that came before.
        """
        if number < self._start or number in self._places:
            raise ValueError(f"two results for row {number} of the input")
        self._places[number] = place
        while self._end in self._places:
            self._end += 1

    @property
    def due(self) -> bool:
        """Whether the rows of a part are there."""
        return self._end - self._start >= self._rows_per_part

    def waits_for(self, source: int) -> bool:
        """Whether the next part has rows of that source."""
        stop = min(self._end, self._start + self._rows_per_part)
        return any(self._places[number].source == source for number in range(self._start, stop))

    def _next_places(self) -> list[Place]:
        """The places of the next part's rows: a part's number of rows, fewer if they are large or the last."""
        rows: list[Place] = []
        size = 0.0
        while len(rows) < self._rows_per_part and self._start + len(rows) < self._end and size < FILE_BYTES:
            rows.append(self._places[self._start + len(rows)])
            source = self._sources[rows[-1].source]
            size += source.bytes / max(1, source.rows)
        return rows

    def make(self) -> bool:
        """Make the next part, unless it is there already; whether anything was written. All its rows are in closed
        files."""
        there = self._sources.part(self._count)
        rows = self._in_place(there) if there is not None else None
        written = rows is None
        if rows is None:
            if there is not None:
                self._sources.move_to_journal(there[0])
            rows = self._next_places()
            self._sources.add(self._write(self._folder / PART_FILE.format(self._count), rows))
            self._use(rows)
        for _ in rows:
            del self._places[self._start]
            self._start += 1
        self._count += 1
        return written

    def finish(self) -> None:
        """Make the last parts and delete every other file of rows. An output without rows gets one empty part, so that
        its schema can be read."""
        while self._places or self._count == 0:
            self.make()
        kept = {self._folder / PART_FILE.format(number) for number in range(self._count)}
        for number, source in self._sources.items():
            if source.path not in kept:
                self._sources.discard(number)

    def _in_place(self, part: tuple[int, Source]) -> list[Place] | None:
        """The part's rows, if they are the next ones of the input as they stand."""
        number, source = part
        rows = [Place(number, row) for row in range(source.rows)]
        same = all(self._places.get(self._start + row) == place for row, place in enumerate(rows))
        return rows if same and 0 < len(rows) <= self._rows_per_part and source.whole else None

    def _write(self, path: Path, rows: SequenceOf[Place]) -> Source:
        batch, digests = self._gather(rows)
        source = Source(path)
        with durable_file(path) as file:
            writer = ResultWriter(file, self._schema)
            for start in range(0, len(rows), ROWS_PER_BATCH):
                piece = batch.slice(start, ROWS_PER_BATCH)
                writer.write(piece, digests[start : start + ROWS_PER_BATCH])
                source.count(piece)
            writer.close()
        source.bytes = path.stat().st_size
        return source

    def _gather(self, rows: SequenceOf[Place]) -> tuple[pa.RecordBatch, list[str]]:
        """The rows and their digests, read file by file."""
        if not rows:
            return pa.record_batch([pa.nulls(0, field.type) for field in self._schema], schema=self._schema), []
        by_source: dict[int, list[int]] = {}
        for index, place in enumerate(rows):
            by_source.setdefault(place.source, []).append(index)
        batches: list[pa.RecordBatch] = []
        digests, order = [""] * len(rows), []
        for number, indices in by_source.items():
            with open_results(self._sources[number].path) as file:
                for batch, names, which in file.take([rows[index].row for index in indices], self._schema):
                    batches.append(batch)
                    for name, at in zip(names, which, strict=True):
                        digests[indices[at]] = name
                        order.append(indices[at])
        gathered = pa.concat_batches(batches).take(pa.array(np.argsort(order)))
        return _with_lines(gathered, [place.line for place in rows]), digests

    def _use(self, rows: SequenceOf[Place]) -> None:
        """Delete files all of whose rows are in parts now."""
        for place in rows:
            source = self._sources[place.source]
            source.used += 1
            if source.used == source.rows:
                self._sources.discard(place.source)


def _with_lines(batch: pa.RecordBatch, lines: SequenceOf[int | None]) -> pa.RecordBatch:
    """The batch with these line numbers where there are any, in `line` and in `error`."""
    if not any(line is not None for line in lines):
        return batch
    line = pc.coalesce(pa.array(lines, pa.int64()), batch.column("line"))
    error = batch.column("error")
    fields = [line if field.name == "line" else error.field(field.name) for field in error.type]
    moved = pa.StructArray.from_arrays(fields, fields=list(error.type), mask=error.is_null())
    names = batch.schema.names
    batch = batch.set_column(names.index("line"), batch.schema.field("line"), line)
    return batch.set_column(names.index("error"), batch.schema.field("error"), moved)
