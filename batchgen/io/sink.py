"""Where result rows go: a folder of shards, one file made of such shards, or standard output."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Protocol

import orjson
import pyarrow as pa
from filelock import FileLock, Timeout

from batchgen.config import OutputConfig
from batchgen.errors import OutputLockedError, OutputMismatchError, UsageError
from batchgen.io.durable import durable_file, writing
from batchgen.io.shards import BOOKKEEPING, ShardWriter, manifest_of, remove_shards
from batchgen.io.single_file import write_error_file, write_single_file
from batchgen.protocol.lines import LINES, AnsweredRow, LineFormat
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
    if config.error_file is not None:
        _check_error_file(config.error_file, config.output_file, input_file)
    if config.output_file == "-":
        yield Place(None, None)
        return
    output = Path(config.output_file)
    _check_output(output, input_file)
    single = output.suffix in _ENDINGS
    folder = output.with_name(f".{output.name}.batchgen") if single else output
    if not (folder / BOOKKEEPING).exists():
        # Nobody can hold it, and a refusal leaves nothing behind.
        _refuse_foreign_files(folder)
        _refuse_results(output, folder, config)
    with _locked(output, folder / BOOKKEEPING):
        _refuse_results(output, folder, config)
        with writing(output):
            remove_shards(folder)
        yield Place(folder, output if single else None)


def open_sink(
    place: Place, config: OutputConfig, schema: pa.Schema, run_id: str, run: Mapping[str, Any], line_format: LineFormat
) -> Sink:
    """The sink for a claimed place. `run` goes into the manifest."""
    if place.folder is None:
        return _StandardOutput(config.error_file, run_id, line_format)
    with writing(place.folder):
        return _Shards(place.folder, place.target, config, schema, run_id, run, line_format)


class _Shards:
    def __init__(
        self,
        folder: Path,
        target: Path | None,
        config: OutputConfig,
        schema: pa.Schema,
        run_id: str,
        run: Mapping[str, Any],
        line_format: LineFormat,
    ) -> None:
        self._folder, self._target = folder, target
        self._line_format = line_format
        self._schema, self._run_id = schema, run_id
        self._error_file = config.error_file
        self._writer = ShardWriter(folder, schema, config, run)

    def append(self, row: ResultRow) -> None:
        with writing(self._folder):
            self._writer.append(row)

    def finish(self) -> None:
        with writing(self._folder):
            self._writer.finish()
        if self._error_file is not None:
            with writing(self._error_file):
                write_error_file(self._folder, self._error_file, self._run_id, self._line_format)
        if self._target is not None:
            with writing(self._target):
                write_single_file(self._folder, self._target, self._schema, self._run_id, self._line_format)
                shutil.rmtree(self._folder)

    def stop(self) -> None:
        with writing(self._folder):
            self._writer.close_shard()


class _StandardOutput:
    def __init__(self, error_file: Path | None, run_id: str, line_format: LineFormat) -> None:
        self._run_id = run_id
        self._line = LINES[line_format]
        self._error_file = error_file
        self._opened = ExitStack()
        self._errors: IO[bytes] | None = None
        if error_file is not None:
            with writing(error_file):
                self._errors = self._opened.enter_context(durable_file(error_file))

    def append(self, row: ResultRow) -> None:
        error = None if row.error is None else asdict(row.error)
        response = None if row.response is None else orjson.dumps(row.response)
        answered = AnsweredRow(self._run_id, row.line, row.custom_id, row.status_code, response, error)
        line = orjson.dumps(self._line(answered), option=orjson.OPT_APPEND_NEWLINE)
        sys.stdout.buffer.write(line)
        if error is not None and self._error_file is not None and self._errors is not None:
            with writing(self._error_file):
                self._errors.write(line)

    def finish(self) -> None:
        sys.stdout.buffer.flush()
        if self._error_file is not None:
            with writing(self._error_file):
                self._opened.close()

    def stop(self) -> None:
        self.finish()


@contextmanager
def _locked(output: Path, bookkeeping: Path) -> Iterator[None]:
    lock = FileLock(bookkeeping / "lock")
    with writing(output):
        bookkeeping.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(blocking=False)
        except Timeout as error:
            message = f"{output}: another run is writing there; wait for it or name another output"
            raise OutputLockedError(message) from error
    try:
        yield
    finally:
        lock.release()


def _check_output(output: Path, input_file: str) -> None:
    if _same(output, input_file):
        raise UsageError(f"{output}: the output is the input; name another output")
    _check_folder(output)
    if output.suffix in _ENDINGS and output.is_dir():
        raise UsageError(f"{output}: is a folder; remove it or name another output")
    if output.suffix not in _ENDINGS and output.exists() and not output.is_dir():
        raise UsageError(f"{output}: is a file; name a folder, or a file that ends in {', '.join(sorted(_ENDINGS))}")


def _check_error_file(error_file: Path, output_file: str, input_file: str) -> None:
    if _same(error_file, input_file) or _same(error_file, output_file):
        raise UsageError(f"{error_file}: the error file is the input or the output; name another")
    _check_folder(error_file)
    if error_file.is_dir():
        raise UsageError(f"{error_file}: the error file is a folder; name a file")


def _check_folder(file: Path) -> None:
    if not file.absolute().parent.is_dir():
        raise UsageError(f"{file}: the folder {file.absolute().parent} does not exist; make it first")


def _same(path: Path, other: str) -> bool:
    # Links are followed; a hard link is told by its file.
    second = Path(other)
    return path.resolve() == second.resolve() or (path.is_file() and second.is_file() and path.samefile(second))


def _refuse_foreign_files(folder: Path) -> None:
    if folder.is_dir() and any(folder.iterdir()):
        raise OutputMismatchError(f"{folder}: the folder holds other files; name an empty or a new folder")


def _refuse_results(output: Path, folder: Path, config: OutputConfig) -> None:
    there = output.is_file() or manifest_of(folder) is not None
    if there and not config.overwrite:
        raise OutputMismatchError(f"{output}: has results already; --overwrite replaces them")
