"""Rows of the input that are read ahead of those who run them, and encoded in a thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from collections.abc import Sequence as SequenceOf
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from batchgen.job.arrivals import Arrival
from batchgen.protocol.faults import RowFault
from batchgen.protocol.request import GenRequest

__all__ = ["Encoded", "ReadAhead", "ReadRow"]

Encoded = list[SequenceOf[int]] | RowFault
"""Token ids of each prompt of a request, or what is wrong with one."""


@dataclass(frozen=True, slots=True)
class ReadRow:
    """A row of the input that was read, and judged as far as that goes without its tokens."""

    arrival: Arrival
    request: GenRequest | RowFault | None
    """None for a row that has its result."""
    encoded: Future[Encoded] | None
    """Of a request."""

    @property
    def size(self) -> int:
        """Its samples; 1 for a row that has none."""
        return len(self.request.prompts) * self.request.samples if isinstance(self.request, GenRequest) else 1

    @property
    def is_ready(self) -> bool:
        """Whether nobody has to wait for its tokens."""
        return self.encoded is None or self.encoded.done()


class ReadAhead:
    """A stretch of the input: rows that are being encoded, and before them those that are.

    Rows are read in the caller's thread, a few whenever it asks, since what is kept of them is the caller's. Sizes are
    in samples.
    """

    def __init__(
        self,
        rows: Iterable[Arrival | None],
        accept: Callable[[Arrival], GenRequest | RowFault],
        encode: Callable[[GenRequest], Encoded],
        window: int,
    ) -> None:
        """Holds a window at most. `rows`: None stands for a pause. `accept` judges a row that is not done, in order;
        `encode` runs in the thread."""
        self.ready = 0
        """Size of the rows that are encoded."""
        self._rows = iter(rows)
        self._accept = accept
        self._encode = encode
        self._window = window
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="encode")
        self._encoded: deque[ReadRow] = deque()
        self._encoding: deque[ReadRow] = deque()
        self._held = 0
        self._exhausted = self._paused = False

    @property
    def complete(self) -> bool:
        """Whether all that is left of the input, or all before a pause, is ready."""
        return (self._exhausted or self._paused) and not self._encoding

    @property
    def over(self) -> bool:
        """Whether nothing is left."""
        return self._exhausted and not self._encoding and not self._encoded

    def read(self, queue: int) -> None:
        """Read until so many rows wait for the thread, or a window is held."""
        self._collect()
        self._paused = False
        while not self._exhausted and self._held < self._window and len(self._encoding) < queue:
            try:
                arrival = next(self._rows)
            except StopIteration:
                self._exhausted = True
                return
            if arrival is None:
                self._paused = True
                return
            request = None if arrival.done else self._accept(arrival)
            encoded = self._pool.submit(self._encode, request) if isinstance(request, GenRequest) else None
            row = ReadRow(arrival, request, encoded)
            self._held += row.size
            self._encoding.append(row)
            self._collect()

    def wait(self, size: int) -> None:
        """Read, and wait until so much is ready, or a window, or all that is left."""
        self.read(size)
        while self._encoding and self.ready < size:
            encoded = self._encoding[0].encoded
            if encoded is not None:
                encoded.exception()
            self.read(size)

    def take(self, size: int) -> list[ReadRow]:
        """The first rows that are ready, up to a size but for the last of them."""
        taken: list[ReadRow] = []
        while size > 0 and self._encoded:
            row = self._encoded.popleft()
            size -= row.size
            self.ready -= row.size
            self._held -= row.size
            taken.append(row)
        return taken

    def close(self) -> None:
        """Drop what nobody waits for any more."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _collect(self) -> None:
        while self._encoding and self._encoding[0].is_ready:
            row = self._encoding.popleft()
            self.ready += row.size
            self._encoded.append(row)
