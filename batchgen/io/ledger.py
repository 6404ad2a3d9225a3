"""Which custom_ids the input has had so far, and which results are there from an earlier run."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from batchgen.errors import OutOfResourcesError

__all__ = ["Ledger", "Stored"]


@dataclass(frozen=True, slots=True)
class Stored:
    """A result that an earlier run has written."""

    source: int
    """Number of the file, as the store counts them."""
    row: int
    """Row of the file, from 0."""
    line: int
    """The line of the input that it answered then."""
    failed: bool
    retryable: bool
    """Whether the same request could succeed another time."""


class Ledger:
    """Custom_ids with their first line, and earlier results by custom_id and digest, in SQLite's temporary storage.

    Memory is bounded by the database's page cache; the file vanishes with the connection.
    """

    def __init__(self) -> None:
        # The empty name is a private database that spills to a temporary file. Whoever takes the results of a run may
        # do so in one thread after another.
        self._connection = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._connection.execute("PRAGMA journal_mode = OFF")
        self._connection.execute("PRAGMA synchronous = OFF")
        self._connection.execute("PRAGMA cache_size = -65536")
        self._connection.execute("CREATE TABLE seen (custom_id BLOB PRIMARY KEY, line INTEGER) WITHOUT ROWID")
        # Beginning with the custom_id, neighbours of the input are neighbours here.
        self._connection.execute(
            "CREATE TABLE done (custom_id BLOB, digest TEXT, source INTEGER, row INTEGER, line INTEGER, "
            "failed INTEGER, retryable INTEGER, PRIMARY KEY (custom_id, digest)) WITHOUT ROWID"
        )
        # One transaction, never ended: nothing here has to outlive the process.
        self._connection.execute("BEGIN")
        self._any_done = False

    def first_line(self, custom_id: str, line: int) -> int | None:
        """Add an id; return the line that had it before, None where this is the first.

        Raises `OutOfResourcesError` where the temporary storage is full.
        """
        key = _key(custom_id)
        with _storage():
            added = self._connection.execute("INSERT OR IGNORE INTO seen VALUES (?, ?)", (key, line))
            if added.rowcount:
                return None
            found = self._connection.execute("SELECT line FROM seen WHERE custom_id = ?", (key,)).fetchone()
        return int(found[0])

    def enter(self, results: Iterable[tuple[str | None, str, Stored]]) -> None:
        """Note earlier results under custom_id and digest. Of two with the same names either will do."""
        entries = ((_key(name), digest, s.source, s.row, s.line, s.failed, s.retryable) for name, digest, s in results)
        with _storage():
            changed = self._connection.executemany("INSERT OR REPLACE INTO done VALUES (?, ?, ?, ?, ?, ?, ?)", entries)
        self._any_done = self._any_done or changed.rowcount > 0

    def find(self, custom_id: str | None, digest: str) -> Stored | None:
        """The earlier result of this very request."""
        if not self._any_done:
            return None
        query = "SELECT source, row, line, failed, retryable FROM done WHERE custom_id = ? AND digest = ?"
        found = self._connection.execute(query, (_key(custom_id), digest)).fetchone()
        if found is None:
            return None
        source, row, line, failed, retryable = found
        return Stored(source, row, line, bool(failed), bool(retryable))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._connection.close()


def _key(custom_id: str | None) -> bytes:
    return b"" if custom_id is None else b"=" + custom_id.encode("utf-8", "surrogatepass")


@contextmanager
def _storage() -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        raise OutOfResourcesError(f"the custom_ids do not fit the temporary folder: {error}") from error
