"""Rows in the order in which they finish, safe on disk soon after."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pyarrow as pa

from batchgen.config import OutputConfig
from batchgen.io.durable import durable_file
from batchgen.io.result_file import ROWS_PER_BATCH, ResultWriter
from batchgen.io.schema import rows_to_batch
from batchgen.io.signals import uninterrupted
from batchgen.io.sources import Source, Sources
from batchgen.protocol.result import ResultRow

__all__ = ["FILE_BYTES", "Journal"]

FILE_BYTES = 64 << 20
"""Size at which a file of rows is closed whatever else holds, so that reading one needs little memory."""


class Journal:
    """Appends rows to `rows-00000.arrow`, `rows-00001.arrow`, ... under the folder's bookkeeping.

    A file is closed when it has `rows_per_shard` rows or its first row is `seconds_per_shard` old: flushed to disk and
    renamed. Only then do its rows count; a file that can't be written leaves nothing.
    """

    def __init__(self, schema: pa.Schema, config: OutputConfig, sources: Sources) -> None:
        self._schema = schema
        self._config = config
        self._sources = sources
        self._rows: list[tuple[ResultRow, str]] = []
        self._since = 0.0
        self._file = ExitStack()
        self.source = sources.reserve()
        """Number of the file that rows go to, which can't be read yet."""
        self._open: tuple[Source, ResultWriter] | None = None

    def append(self, row: ResultRow, digest: str) -> tuple[int, int]:
        """Take a row; say in which source it will be, and where. It may stay in memory until the file is closed."""
        written = 0 if self._open is None else self._open[0].rows
        if not written and not self._rows:
            self._since = time.monotonic()
        at = self.source, written + len(self._rows)
        self._rows.append((row, digest))
        if len(self._rows) >= ROWS_PER_BATCH:
            with uninterrupted():
                self._flush()
        return at

    @property
    def due(self) -> bool:
        """Whether the open file should be closed now."""
        source = None if self._open is None else self._open[0]
        rows = len(self._rows) + (0 if source is None else source.rows)
        full = rows >= self._config.rows_per_shard or (source is not None and source.bytes >= FILE_BYTES)
        return full or (rows > 0 and time.monotonic() - self._since >= self._config.seconds_per_shard)

    def close(self) -> None:
        """Make everything appended so far count."""
        self._flush()
        if self._open is None:
            return
        source, writer = self._open
        with self._whole_or_nothing():
            writer.close()
            self._file.close()
        source.bytes = source.path.stat().st_size
        self._sources.add(source, self.source)
        self._open, self.source = None, self._sources.reserve()

    def _flush(self) -> None:
        if not self._rows:
            return
        rows, self._rows = self._rows, []
        with self._whole_or_nothing():
            source, writer = self._open or self._begin()
            batch = rows_to_batch([row for row, _ in rows], self._schema)
            writer.write(batch, [digest for _, digest in rows])
        source.count(batch)

    def _begin(self) -> tuple[Source, ResultWriter]:
        path = self._sources.journal_path()
        writer = ResultWriter(self._file.enter_context(durable_file(path)), self._schema)
        self._open = Source(path), writer
        return self._open

    @contextmanager
    def _whole_or_nothing(self) -> Iterator[None]:
        """Drop the file if a write fails: what it left there is not known."""
        try:
            yield
        except BaseException:
            self._open = None
            self._rows.clear()
            self._file.__exit__(*sys.exc_info())
            raise
