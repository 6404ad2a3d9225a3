"""Which custom_ids a file has had so far, without holding them in memory."""

from __future__ import annotations

import sqlite3
from types import TracebackType
from typing import Self

from batchgen.errors import OutOfResourcesError

__all__ = ["SeenIds"]


class SeenIds:
    """A set of custom_ids with the line of each, in a database of SQLite's own temporary storage.

    Memory is bounded by the database's page cache; the file vanishes with the connection.
    """

    def __init__(self) -> None:
        # The empty name is a private database that spills to a temporary file.
        self._connection = sqlite3.connect("", isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = OFF")
        self._connection.execute("PRAGMA synchronous = OFF")
        self._connection.execute("PRAGMA cache_size = -65536")
        self._connection.execute("CREATE TABLE seen (custom_id BLOB PRIMARY KEY, line INTEGER) WITHOUT ROWID")
        # One transaction, never ended: nothing here has to outlive the process.
        self._connection.execute("BEGIN")

    def first_line(self, custom_id: str, line: int) -> int | None:
        """Add an id; return the line that had it before, None where this is the first.

        Raises `OutOfResourcesError` where the temporary storage is full.
        """
        key = custom_id.encode("utf-8", "surrogatepass")
        try:
            added = self._connection.execute("INSERT OR IGNORE INTO seen VALUES (?, ?)", (key, line))
            if added.rowcount:
                return None
            found = self._connection.execute("SELECT line FROM seen WHERE custom_id = ?", (key,)).fetchone()
        except sqlite3.OperationalError as error:
            raise OutOfResourcesError(f"the custom_ids do not fit the temporary folder: {error}") from error
        return int(found[0])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._connection.close()
