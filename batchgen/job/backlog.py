"""Rows that were read and have no result yet, for workers to be dealt."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from batchgen.io.partition import body_of, prompt_bytes
from batchgen.job.arrivals import Arrival
from batchgen.job.dealing import Dealer, Item

__all__ = ["Backlog"]

_LOT = 512
"""Rows read at a time, so that workers are never kept waiting for long."""
_OUTPUT_TOKENS = 256
"""Of a sample, where the request sets no limit."""
_MOST = 1 << 20
"""Of any number in a request that nobody has checked yet."""


class Backlog:
    """Reads ahead of the dealer as far as the window allows, and keeps each row until it is answered."""

    def __init__(self, rows: Iterable[Arrival], dealer: Dealer, window: int, enough: int) -> None:
        """`window`: rows that are sorted together. `enough`: rows that keep all workers busy for a while, which are
        held beside it."""
        self._rows = iter(rows)
        self._dealer = dealer
        self._window = window
        self._enough = enough
        self._unanswered: dict[int, Arrival] = {}
        self._read: list[Item] = []
        """Not yet given to the dealer."""
        self._next_number = 0
        self._exhausted = False

    @property
    def over(self) -> bool:
        """Whether every row of the input is answered."""
        return self._exhausted and not self._unanswered

    @property
    def has_room(self) -> bool:
        """Whether there is more to read, and room for it. Rows count from the oldest that has no result, since results
        wait for it to be written in order."""
        oldest = self._read[0].number if self._read else self._next_number
        span = self._next_number - min(
            oldest, self._next_number if self._dealer.oldest is None else self._dealer.oldest
        )
        most = self._window + self._enough
        return not self._exhausted and len(self._unanswered) < most and span < 2 * most

    def read(self) -> None:
        """Read a lot of rows, if there is room. The dealer gets them when half a window is there, or none is left to
        be dealt soon."""
        if self.has_room:
            lot = list(islice(self._rows, _LOT))
            self._exhausted = len(lot) < _LOT
            for arrival in lot:
                self._next_number = arrival.number + 1
                if not arrival.done:
                    self._unanswered[arrival.number] = arrival
                    self._read.append(_item(arrival))
        is_due = self._exhausted or 2 * len(self._read) >= self._window or 2 * self._dealer.undealt < self._enough
        if self._read and is_due:
            self._dealer.add(self._read)
            self._read = []

    def rows(self, numbers: Sequence[int]) -> list[Arrival]:
        """Rows for a worker, without the columns that only pass through."""
        found = (self._unanswered[number] for number in numbers)
        return [replace(one, row=replace(one.row, extra={})) for one in found]

    def take(self, number: int) -> Arrival:
        """A row that is answered, or given up."""
        return self._unanswered.pop(number)


def _item(arrival: Arrival) -> Item:
    body = body_of(arrival.row) or {}
    prompt = body.get("prompt", body.get("input"))
    prompts = len(prompt) if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int) else 1
    samples = prompts * max(_number(body, "n", 1), _number(body, "best_of", 1))
    limit = _number(body, "max_completion_tokens", _number(body, "max_tokens", _OUTPUT_TOKENS))
    return Item(arrival.number, prompt_bytes(arrival.row), samples, samples * limit)


def _number(body: Mapping[str, Any], name: str, default: int) -> int:
    value = body.get(name)
    return min(value, _MOST) if isinstance(value, int) and value >= 0 else default
