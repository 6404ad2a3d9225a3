"""The files of an output folder that hold rows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from batchgen.io.durable import sync_folder, temporary_of
from batchgen.io.history import RUN_FILE
from batchgen.io.manifest import BOOKKEEPING

__all__ = ["JOURNAL_FILE", "PART_FILE", "Source", "Sources", "part_files", "remove_temporaries", "result_files"]

PART_FILE = "part-{:05d}.arrow"
JOURNAL_FILE = f"{BOOKKEEPING}/rows-{{:05d}}.arrow"
_NUMBER = re.compile(r"(?:part|rows)-(\d{5,})\.arrow")


@dataclass(slots=True)
class Source:
    """A file of rows."""

    path: Path
    rows: int = 0
    failed: int = 0
    first_line: int | None = None
    """Smallest and largest line of the input that the file answers."""
    last_line: int | None = None
    bytes: int = 0
    whole: bool = True
    """False where the file is damaged: `rows` of it can be read."""
    used: int = 0
    """Rows that are in a part by now; when all are, the file is not needed any more."""

    def count(self, batch: pa.RecordBatch) -> None:
        """Note that the file has this batch too."""
        self.rows += batch.num_rows
        self.bytes += batch.nbytes
        self.failed += batch.num_rows - batch.column("error").null_count
        found = pc.min_max(batch.column("line")).as_py() if batch.num_rows else None
        if found is not None:
            self.first_line = found["min"] if self.first_line is None else min(self.first_line, found["min"])
            self.last_line = found["max"] if self.last_line is None else max(self.last_line, found["max"])

    def entry(self, folder: Path) -> dict[str, Any]:
        """What the manifest says of it."""
        return {
            "file": self.path.relative_to(folder).as_posix(),
            "rows": self.rows,
            "failed": self.failed,
            "first_line": self.first_line,
            "last_line": self.last_line,
            "bytes": self.bytes,
        }


class Sources:
    """The files of rows of one folder that are closed, by number. A number is never given twice."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sources: dict[int, Source] = {}
        self._ids = count()
        taken = _numbered((folder / BOOKKEEPING).glob("rows-*.arrow"))
        self._journal = count(_number(taken[-1]) + 1 if taken else 0)

    def reserve(self) -> int:
        """A number for a file that is yet to be made."""
        return next(self._ids)

    def add(self, source: Source, number: int | None = None) -> int:
        """Take a file in, under its reserved number if it has one; its number."""
        key = self.reserve() if number is None else number
        self._sources[key] = source
        return key

    def __getitem__(self, number: int) -> Source:
        return self._sources[number]

    def items(self) -> Iterator[tuple[int, Source]]:
        """Numbers and files."""
        yield from list(self._sources.items())

    def part(self, number: int) -> tuple[int, Source] | None:
        """The file that has the name of part `number`."""
        path = self._folder / PART_FILE.format(number)
        return next(((key, source) for key, source in self._sources.items() if source.path == path), None)

    def journal_path(self) -> Path:
        """A name under the bookkeeping that no file has had."""
        return self._folder / JOURNAL_FILE.format(next(self._journal))

    def discard(self, number: int) -> None:
        """Delete a file whose rows are not needed."""
        self._sources.pop(number).path.unlink()

    def move_to_journal(self, number: int) -> None:
        """Give a part that will be written anew a name under the bookkeeping: its rows stay readable until then."""
        source = self._sources[number]
        path = self.journal_path()
        source.path = source.path.rename(path)
        sync_folder(path.parent)
        sync_folder(self._folder)


def part_files(folder: Path) -> list[Path]:
    """The parts of a folder, in order."""
    return _numbered(folder.glob("part-*.arrow"))


def result_files(folder: Path) -> list[Path]:
    """All files of rows, each once: parts, then what is in no part yet."""
    return [*part_files(folder), *_numbered((folder / BOOKKEEPING).glob("rows-*.arrow"))]


def remove_temporaries(folder: Path) -> None:
    """Remove what a run that was killed had begun to write."""
    for pattern in (PART_FILE, JOURNAL_FILE, RUN_FILE):
        some = folder / pattern.format(0)
        for path in some.parent.glob(temporary_of(some).name.replace("00000", "*")):
            path.unlink()


def _numbered(paths: Iterable[Path]) -> list[Path]:
    return sorted((path for path in paths if _number(path) >= 0), key=_number)


def _number(path: Path) -> int:
    found = _NUMBER.fullmatch(path.name)
    return -1 if found is None else int(found[1])
