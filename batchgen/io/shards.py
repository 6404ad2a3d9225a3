"""A folder of Arrow stream files, and the manifest that says which of them count."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa

from batchgen.config import OutputConfig
from batchgen.io.durable import durable_file
from batchgen.io.schema import rows_to_batch
from batchgen.protocol.result import ResultRow

__all__ = ["BOOKKEEPING", "ShardWriter", "read_shards", "remove_shards"]

BOOKKEEPING = ".batchgen"
"""Folder of the manifest and the lock, within the output folder."""
_ROWS_PER_BATCH = 256


class ShardWriter:
    """Appends rows to `part-00000.arrow`, `part-00001.arrow`, ... of a folder.

    A shard is closed when it has `rows_per_shard` rows or is `seconds_per_shard` old: flushed to disk, renamed, and
    entered in the manifest. Only then do its rows count.
    """

    def __init__(self, folder: Path, schema: pa.Schema, config: OutputConfig, run: Mapping[str, Any]) -> None:
        """`run`: what the manifest says of the run."""
        self._folder = folder
        self._schema = schema
        self._config = config
        self._run = run
        self._shards: list[dict[str, Any]] = []
        self._open = ExitStack()
        self._writer: pa.RecordBatchStreamWriter | None = None
        self._rows: list[ResultRow] = []
        self._rows_in_shard = 0
        self._opened = 0.0
        self._write_manifest(finished=False)

    def append(self, row: ResultRow) -> None:
        """Take the next row. It may stay in memory until the shard is closed."""
        if self._writer is None:
            self._open_shard()
        self._rows.append(row)
        self._rows_in_shard += 1
        if len(self._rows) >= _ROWS_PER_BATCH:
            self._flush()
        if self._rows_in_shard >= self._config.rows_per_shard or self._age() >= self._config.seconds_per_shard:
            self.close_shard()

    def close_shard(self) -> None:
        """Make everything appended so far count."""
        if self._writer is None:
            return
        self._flush()
        self._writer.close()
        self._writer = None
        self._open.close()
        self._shards.append({"file": self._name(), "rows": self._rows_in_shard})
        self._rows_in_shard = 0
        self._write_manifest(finished=False)

    def finish(self) -> None:
        """Close the last shard and mark the output as complete. An output without rows gets one empty shard, so that
        its schema can be read."""
        if not self._shards and self._writer is None:
            self._open_shard()
        self.close_shard()
        self._write_manifest(finished=True)

    def _name(self) -> str:
        return f"part-{len(self._shards):05d}.arrow"

    def _age(self) -> float:
        return time.monotonic() - self._opened

    def _open_shard(self) -> None:
        file = self._open.enter_context(durable_file(self._folder / self._name()))
        self._writer = pa.ipc.new_stream(file, self._schema)
        self._opened = time.monotonic()

    def _flush(self) -> None:
        if self._rows and self._writer is not None:
            self._writer.write_batch(rows_to_batch(self._rows, self._schema))
        self._rows.clear()

    def _write_manifest(self, *, finished: bool) -> None:
        manifest = {"format": 1, "run": self._run, "shards": self._shards, "finished": finished}
        with durable_file(self._folder / BOOKKEEPING / "manifest.json") as file:
            file.write(orjson.dumps(manifest, option=orjson.OPT_INDENT_2))


def read_shards(folder: Path) -> Iterator[pa.RecordBatch]:
    """The batches of the shards that the manifest names, in order."""
    manifest = orjson.loads((folder / BOOKKEEPING / "manifest.json").read_bytes())
    for shard in manifest["shards"]:
        with pa.memory_map(str(folder / shard["file"])) as file, pa.ipc.open_stream(file) as reader:
            yield from reader


def remove_shards(folder: Path) -> None:
    """Remove what a `ShardWriter` wrote, and nothing else."""
    for path in folder.glob("part-*.arrow"):
        path.unlink()
    (folder / BOOKKEEPING / "manifest.json").unlink(missing_ok=True)
