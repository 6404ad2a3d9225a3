"""Rows of the input as they come in: numbered, named, and told apart from those that have results already."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import count

from batchgen.io.digest import request_digest
from batchgen.io.ledger import Ledger, Stored
from batchgen.protocol.parse import custom_id_of
from batchgen.protocol.request import RawRow

__all__ = ["Arrival", "arrivals"]


@dataclass(frozen=True, slots=True)
class Arrival:
    """A row of the input."""

    number: int
    """From 0, without gaps."""
    digest: str
    """Name of the request, for the next run to know it by."""
    row: RawRow
    first_line: int | None
    """The line that had its custom_id before."""
    stored: Stored | None
    """The result that an earlier run has written."""

    @property
    def done(self) -> bool:
        """Whether an earlier run has its result."""
        return self.stored is not None


def arrivals(
    rows: Iterable[RawRow],
    columns: Collection[str],
    ledger: Ledger,
    ours: Callable[[RawRow], bool],
) -> Iterator[Arrival]:
    """Every row that is ours. `columns`: what the output has of the input's columns."""
    numbers = count()
    for row in rows:
        custom_id = custom_id_of(row)
        # Also of the rows of other shards: which custom_ids are taken is the same however the input is shared.
        first_line = None if custom_id is None else ledger.first_line(custom_id, row.line)
        if not ours(row):
            continue
        number = next(numbers)
        # A row without a name, and one whose name is taken, have results that depend on where they stand.
        place = () if custom_id is not None and first_line is None else (row.line, first_line)
        digest = request_digest(row, columns, *place)
        yield Arrival(number, digest, row, first_line, ledger.find(custom_id, digest))
