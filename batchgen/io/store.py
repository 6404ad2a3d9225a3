"""The folder of an output: results come in as they finish, and end up in order in its parts."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from batchgen.config import OutputConfig
from batchgen.errors import OutputMismatchError
from batchgen.io.claim import Claim
from batchgen.io.durable import identity_of, writing
from batchgen.io.journal import Journal
from batchgen.io.ledger import Ledger, Stored
from batchgen.io.manifest import Manifest, write_manifest
from batchgen.io.parts import Parts, Place
from batchgen.io.result_file import ResultFile, open_results
from batchgen.io.signals import uninterrupted
from batchgen.io.single_file import write_error_file, write_single_file
from batchgen.io.sources import Source, Sources, part_files, result_files
from batchgen.protocol.faults import Code
from batchgen.protocol.lines import LineFormat
from batchgen.protocol.result import ResultRow

__all__ = ["Store"]

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Counts:
    """The manifest's counts."""

    rows: int = 0
    failed: int = 0
    retryable: int = 0
    resumed: int = 0


class Store:
    """`io.sink.Sink` over a folder. A crash at any moment leaves files that the next run goes on from.

    Each row is in a journal file within `seconds_per_shard`, and in a part when all rows before it have results. A
    journal file is deleted when parts have all of its rows.
    """

    def __init__(
        self, claim: Claim, config: OutputConfig, schema: pa.Schema, manifest: Manifest, line_format: LineFormat
    ) -> None:
        """Begin to write: from now on the manifest says that the output is unfinished."""
        assert claim.folder is not None
        self.manifest = manifest
        self._folder, self._target = claim.folder, claim.target
        self._schema, self._error_file, self._line_format = schema, config.error_file, line_format
        self._counts = _Counts()
        with self._changing():
            self._sources = Sources(self._folder)
            self._journal = Journal(schema, config, self._sources)
            self._parts = Parts(self._folder, schema, config.rows_per_shard, self._sources)
            manifest.finished = False
            self._write_manifest()
        self._finished = count() if config.order == "completion" else None

    def enter_earlier(self, ledger: Ledger, *, retry_failed: bool) -> None:
        """Let the ledger know the results of earlier runs, but for failed ones that are to be tried again."""
        for path in result_files(self._folder):
            with writing(self._folder), open_results(path) as file:
                number, source = self._enter(path, file)
                if file.schema is not None and _compatible(file.schema, self._schema):
                    for entries in _entries(file, number, retry_failed=retry_failed):
                        ledger.enter(entries)
                if not file.whole:
                    _logger.warning("%s is damaged: %d rows can be read, the others are run again", path, source.rows)

    def take_over(self, path: Path) -> Iterator[Stored]:
        """Take in a file of results from another folder, which stays as it is; its rows in its order.

        Raises `OutputMismatchError` where it is damaged or has other columns.
        """
        with self._changing():
            here = self._sources.journal_path()
            _link(path, here)
        with writing(self._folder), open_results(here) as file:
            if not file.whole or file.schema is None or not _compatible(file.schema, self._schema):
                raise OutputMismatchError(f"{path} is damaged, or has other columns than the shards before it")
            number, _ = self._enter(here, file)
        return _rows_of(here, number)

    def append(self, number: int, digest: str, row: ResultRow) -> None:
        """Take the result of the input's row `number`, counted from 0."""
        with writing(self._folder):
            source, at = self._journal.append(row, digest)
        self._count(row.error is not None, row.error is not None and row.error.code.retryable)
        self._put(number, Place(source, at))

    def keep(self, number: int, line: int, stored: Stored) -> None:
        """The result of an earlier run is that of row `number`, which stands on `line` of the input."""
        self._counts.resumed += 1
        self._count(stored.failed, stored.retryable)
        self._put(number, Place(stored.source, stored.row, None if line == stored.line else line))

    def tick(self) -> None:
        """Time has passed: see to it that rows are safe in time."""
        if self._journal.due:
            self.stop()

    def finish(self) -> None:
        """All rows have results: lay out the last of them, and make the single file and the error file."""
        with self._changing():
            self._journal.close()
            self._parts.finish()
            self._write_manifest()
        products: dict[str, str] = {}
        if self._error_file is not None:
            with writing(self._error_file):
                write_error_file(self._folder, self._error_file, self.manifest.run_id, self._line_format)
                products["error_file"] = identity_of(self._error_file)
        if self._target is not None:
            with writing(self._target):
                write_single_file(self._folder, self._target, self._schema, self.manifest.run_id, self._line_format)
                products["output_file"] = identity_of(self._target)
        # Rows that may be tried again need the others beside them, for the file to be made anew.
        done = self._target is not None and not self._counts.retryable
        with self._changing():
            self.manifest.products, self.manifest.finished = products, True
            self._write_manifest(without_files=done)
            for path in part_files(self._folder) if done else ():
                path.unlink()

    def stop(self) -> None:
        """Make everything appended so far safe."""
        with self._changing():
            self._journal.close()
            self._write_manifest()

    def _enter(self, path: Path, file: ResultFile) -> tuple[int, Source]:
        source = Source(path, whole=file.whole)
        for batch in file.batches:
            source.count(batch)
        source.bytes = path.stat().st_size
        return self._sources.add(source), source

    def _put(self, number: int, place: Place) -> None:
        self._parts.put(number if self._finished is None else next(self._finished), place)
        self.tick()
        while self._parts.due:
            with self._changing():
                if self._parts.waits_for(self._journal.source):
                    self._journal.close()
                if self._parts.make():
                    self._write_manifest()

    def _count(self, failed: bool, retryable: bool) -> None:
        self._counts.rows += 1
        self._counts.failed += failed
        self._counts.retryable += retryable

    def _write_manifest(self, *, without_files: bool = False) -> None:
        self.manifest.counts = asdict(self._counts)
        files = () if without_files else self._sources.items()
        self.manifest.files = [source.entry(self._folder) for _, source in files]
        write_manifest(self._folder, self.manifest)

    @contextmanager
    def _changing(self) -> Iterator[None]:
        with uninterrupted(), writing(self._folder):
            yield


def _entries(file: ResultFile, source: int, *, retry_failed: bool) -> Iterator[list[tuple[str | None, str, Stored]]]:
    """What the ledger takes of a file, batch by batch."""
    first = 0
    for at, batch in enumerate(file.batches):
        columns = (batch.column("custom_id"), batch.column("line"), pc.struct_field(batch.column("error"), "code"))
        values = zip(*(column.to_pylist() for column in columns), file.digests_of(at), strict=True)
        entries = []
        for row, (custom_id, line, code, digest) in enumerate(values, first):
            retryable = code is not None and Code(code).retryable
            if not (retryable and retry_failed):
                stored = Stored(source, row, line, failed=code is not None, retryable=retryable)
                entries.append((custom_id, digest, stored))
        yield entries
        first += batch.num_rows


def _rows_of(path: Path, source: int) -> Iterator[Stored]:
    with open_results(path) as file:
        for entries in _entries(file, source, retry_failed=False):
            yield from (stored for _, _, stored in entries)


def _link(path: Path, here: Path) -> None:
    """The same file under another name; a copy where the two are on different disks."""
    try:
        here.hardlink_to(path)
    except OSError:
        shutil.copyfile(path, here)


def _compatible(there: pa.Schema, wanted: pa.Schema) -> bool:
    """Whether rows of one schema can be given the other: columns of the same name have the same type."""
    types = {field.name: field.type for field in there}
    return all(types.get(field.name, field.type) == field.type for field in wanted)
