"""Where result rows go: a folder of shards, one file made of such shards, or standard output."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import orjson
import pyarrow as pa
from filelock import FileLock, Timeout

from batchgen.config import OutputConfig
from batchgen.errors import OutputLockedError, OutputMismatchError, UsageError
from batchgen.io.durable import output_error
from batchgen.io.shards import BOOKKEEPING, ShardWriter, remove_shards
from batchgen.io.single_file import write_error_file, write_single_file
from batchgen.protocol.response import batch_line
from batchgen.protocol.result import ResultRow

__all__ = ["Sink", "claim_output", "open_sink"]

_ENDINGS = frozenset({".jsonl", ".parquet", ".arrow"})


class Sink(Protocol):
    """Takes rows in the order in which they are to be written."""

    def append(self, row: ResultRow) -> None:
        """Take the next row."""
        ...

    def finish(self) -> None:
        """All rows were appended: complete the output."""
        ...

    def stop(self) -> None:
        """The job ends early: keep what was appended."""
        ...


@dataclass(frozen=True, slots=True)
class Place:
    """An output that this process holds."""

    folder: Path | None
    """Where shards go; None for standard output."""
    target: Path | None
    """The single file to make of them, None where the folder is the output."""


@contextmanager
def claim_output(config: OutputConfig, input_file: str) -> Iterator[Place]:
    """Check the output and hold its lock, before anything costly is begun.

    Raises `OutputLockedError` where another run holds it, `OutputMismatchError` where there are results already, and
    `UsageError` where it can't be written.
    """
    if config.output_file == "-":
        yield Place(None, None)
        return
    output = Path(config.output_file)
    _check_names(output, config.error_file, input_file)
    single = output.suffix in _ENDINGS
    folder = output.with_name(f".{output.name}.batchgen") if single else output
    _refuse_results(output, folder, config)
    try:
        (folder / BOOKKEEPING).mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / BOOKKEEPING / "lock")
        with lock.acquire(blocking=False):
            remove_shards(folder)
            yield Place(folder, output if single else None)
    except Timeout as error:
        raise OutputLockedError(
            f"{output}: another run is writing there; wait for it or name another output"
        ) from error
    except OSError as error:
        raise output_error(output, error) from error


def open_sink(place: Place, config: OutputConfig, schema: pa.Schema, run_id: str, run: Mapping[str, Any]) -> Sink:
    """The sink for a claimed place. `run` goes into the manifest."""
    if place.folder is None:
        return _StandardOutput(run_id)
    return _Shards(place.folder, place.target, config, schema, run_id, run)


class _Shards:
    def __init__(
        self,
        folder: Path,
        target: Path | None,
        config: OutputConfig,
        schema: pa.Schema,
        run_id: str,
        run: Mapping[str, Any],
    ) -> None:
        self._folder, self._target = folder, target
        self._schema, self._run_id = schema, run_id
        self._error_file = config.error_file
        self._writer = ShardWriter(folder, schema, config, run)

    def append(self, row: ResultRow) -> None:
        self._writer.append(row)

    def finish(self) -> None:
        self._writer.finish()
        if self._error_file is not None:
            write_error_file(self._folder, self._error_file, self._run_id)
        if self._target is not None:
            write_single_file(self._folder, self._target, self._schema, self._run_id)
            shutil.rmtree(self._folder)

    def stop(self) -> None:
        self._writer.close_shard()


class _StandardOutput:
    def __init__(self, run_id: str) -> None:
        self._run_id = run_id

    def append(self, row: ResultRow) -> None:
        error = None if row.error is None else {"code": row.error.code, "message": row.error.message}
        line = batch_line(self._run_id, row.line, row.custom_id, row.status_code, row.response, error)
        sys.stdout.buffer.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))

    def finish(self) -> None:
        sys.stdout.buffer.flush()

    def stop(self) -> None:
        sys.stdout.buffer.flush()


def _check_names(output: Path, error_file: Path | None, input_file: str) -> None:
    source = Path(input_file).absolute()
    if output.absolute() == source:
        raise UsageError(f"{output}: the output is the input; name another output")
    if error_file is not None and error_file.absolute() in {source, output.absolute()}:
        raise UsageError(f"{error_file}: the error file is the input or the output; name another")
    if not output.absolute().parent.is_dir():
        raise UsageError(f"{output}: the folder {output.absolute().parent} does not exist; make it first")
    if output.suffix in _ENDINGS and output.is_dir():
        raise UsageError(f"{output}: is a folder; remove it or name another output")
    if output.suffix not in _ENDINGS and output.is_file():
        raise UsageError(f"{output}: is a file; name a folder, or a file that ends in {', '.join(sorted(_ENDINGS))}")


def _refuse_results(output: Path, folder: Path, config: OutputConfig) -> None:
    there = output.is_file() or (folder / BOOKKEEPING / "manifest.json").is_file()
    foreign = output.is_dir() and not there and any(path.name != BOOKKEEPING for path in output.iterdir())
    if foreign:
        raise OutputMismatchError(f"{output}: the folder holds other files; name an empty or a new folder")
    if there and not config.overwrite:
        raise OutputMismatchError(f"{output}: has results already; --overwrite replaces them")
