"""Rows that finish in any order, given out in the order of the input."""

from __future__ import annotations

from collections.abc import Iterator

from batchgen.protocol.result import ResultRow

__all__ = ["InputOrder"]


class InputOrder:
    """Holds a row until all rows before it have come. It never holds more rows than are under way at once."""

    def __init__(self) -> None:
        self._held: dict[int, ResultRow] = {}
        self._next = 0

    def __len__(self) -> int:
        return len(self._held)

    def push(self, number: int, row: ResultRow) -> Iterator[ResultRow]:
        """Take the input's row `number`, counted from 0 without gaps; yield those whose turn has come.

        Raises `ValueError` for a number that came before.
        """
        if number < self._next or number in self._held:
            raise ValueError(f"two results for row {number} of the input")
        self._held[number] = row
        while (ready := self._held.pop(self._next, None)) is not None:
            self._next += 1
            yield ready
