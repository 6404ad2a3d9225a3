"""A folder of Arrow stream files, and the manifest that says which of them count."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa

from batchgen.config import OutputConfig
from batchgen.io.durable import durable_file, temporary_of
from batchgen.io.schema import rows_to_batch
from batchgen.protocol.result import ResultRow

__all__ = ["BOOKKEEPING", "ShardWriter", "manifest_of", "read_shards", "remove_shards"]

BOOKKEEPING = ".batchgen"
"""Folder of the manifest and the lock, within the output folder."""
_ROWS_PER_BATCH = 256


@dataclass(slots=True)
class _Shard:
    """A shard's entry in the manifest."""

    file: str
    rows: int = 0
    failed: int = 0
    first_line: int | None = None
    """Smallest and largest line of the input that the shard answers."""
    last_line: int | None = None

    def count(self, row: ResultRow) -> None:
        self.rows += 1
        self.failed += row.error is not None
        self.first_line = row.line if self.first_line is None else min(self.first_line, row.line)
        self.last_line = row.line if self.last_line is None else max(self.last_line, row.line)


class ShardWriter:
    """Appends rows to `part-00000.arrow`, `part-00001.arrow`, ... of a folder.

    A shard is closed when it has `rows_per_shard` rows or is `seconds_per_shard` old: flushed to disk, renamed, and
    entered in the manifest. Only then do its rows count; a shard that can't be written leaves nothing.
    """

    def __init__(self, folder: Path, schema: pa.Schema, config: OutputConfig, run: Mapping[str, Any]) -> None:
        """`run`: what the manifest says of the run."""
        self._folder = folder
        self._schema = schema
        self._config = config
        self._run = run
        self._closed: list[_Shard] = []
        self._shard: _Shard | None = None
        self._file = ExitStack()
        self._writer: pa.RecordBatchStreamWriter
        self._rows: list[ResultRow] = []
        self._opened = 0.0
        self._write_manifest(finished=False)

    def append(self, row: ResultRow) -> None:
        """Take the next row. It may stay in memory until the shard is closed."""
        shard = self._shard or self._open_shard()
        self._rows.append(row)
        shard.count(row)
        if len(self._rows) >= _ROWS_PER_BATCH:
            self._flush()
        age = time.monotonic() - self._opened
        if shard.rows >= self._config.rows_per_shard or age >= self._config.seconds_per_shard:
            self.close_shard()

    def close_shard(self) -> None:
        """Make everything appended so far count."""
        shard = self._shard
        if shard is None:
            return
        self._flush()
        with self._whole_or_nothing():
            self._writer.close()
            self._file.close()
        self._shard = None
        self._closed.append(shard)
        self._write_manifest(finished=False)

    def finish(self) -> None:
        """Close the last shard and mark the output as complete. An output without rows gets one empty shard, so that
        its schema can be read."""
        if not self._closed and self._shard is None:
            self._open_shard()
        self.close_shard()
        self._write_manifest(finished=True)

    def _open_shard(self) -> _Shard:
        shard = _Shard(f"part-{len(self._closed):05d}.arrow")
        file = self._file.enter_context(durable_file(self._folder / shard.file))
        self._shard = shard
        self._opened = time.monotonic()
        with self._whole_or_nothing():
            self._writer = pa.ipc.new_stream(file, self._schema)
        return shard

    def _flush(self) -> None:
        rows, self._rows = self._rows, []
        if rows:
            with self._whole_or_nothing():
                self._writer.write_batch(rows_to_batch(rows, self._schema))

    @contextmanager
    def _whole_or_nothing(self) -> Iterator[None]:
        """Drop the shard if a write fails or is interrupted: what it left in the file is not known."""
        try:
            yield
        except BaseException:
            self._shard = None
            self._rows.clear()
            self._file.__exit__(*sys.exc_info())
            raise

    def _write_manifest(self, *, finished: bool) -> None:
        shards = [asdict(shard) for shard in self._closed]
        rows, failed = (sum(shard[key] for shard in shards) for key in ("rows", "failed"))
        counts = {"rows": rows, "failed": failed}
        manifest = {"format": 1, "run": self._run, "counts": counts, "finished": finished, "shards": shards}
        with durable_file(_manifest_path(self._folder)) as file:
            file.write(orjson.dumps(manifest, option=orjson.OPT_INDENT_2))


def manifest_of(folder: Path) -> Mapping[str, Any] | None:
    """What the manifest of a folder says; None where there is none."""
    path = _manifest_path(folder)
    if not path.is_file():
        return None
    manifest: Mapping[str, Any] = orjson.loads(path.read_bytes())
    return manifest


def read_shards(folder: Path) -> Iterator[pa.RecordBatch]:
    """The batches of the shards that the manifest names, in order."""
    manifest = manifest_of(folder)
    for shard in manifest["shards"] if manifest is not None else ():
        with pa.memory_map(str(folder / shard["file"])) as file, pa.ipc.open_stream(file) as reader:
            yield from reader


def remove_shards(folder: Path) -> None:
    """Remove what a `ShardWriter` wrote, and nothing else."""
    for path in (*folder.glob("part-*.arrow"), *folder.glob(temporary_of(Path("part-*.arrow")).name)):
        path.unlink()
    _manifest_path(folder).unlink(missing_ok=True)


def _manifest_path(folder: Path) -> Path:
    return folder / BOOKKEEPING / "manifest.json"
