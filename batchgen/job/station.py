"""A worker of a distributed job: rows in, results out, a turn at a time."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace

from batchgen.job.arrivals import Arrival
from batchgen.job.finding import find_checkpoint
from batchgen.job.fleet import Orders, Ready, Report
from batchgen.job.generation import Generation, make_frontend
from batchgen.job.loading import load_engine
from batchgen.job.summary import Counts
from batchgen.protocol.response import Responder
from batchgen.protocol.result import ResultRow

__all__ = ["Station"]

_TURN_S = 0.2


class Station:
    """A model with its queue. Between turns it stands still, its sequences half done."""

    def __init__(self, orders: Orders) -> None:
        """Load the model. Raises a `BatchgenError` where that can't be done here."""
        checkpoint = find_checkpoint(orders.model, orders.home)
        self._home = orders.home
        self._loaded = load_engine(checkpoint, orders.engine)
        frontend = make_frontend(self._loaded, orders.model, orders.input, Responder(orders.run_id, orders.created))
        self._generation = Generation(
            self._loaded,
            self._loaded.engine(),
            frontend,
            self._emit,
            Counts(),
            lambda: None,
            window=orders.input.window,
        )
        self._inbox: deque[Arrival] = deque()
        self._taken = 0
        self._numbers: dict[int, int] = {}
        """Of rows under way: in the order of taking them -> in the input. A window is told by the former."""
        self._results: list[tuple[int, str, ResultRow]] = []
        self._steps = self._generation.steps(self._rows())

    def ready(self, place: str) -> Ready:
        """What there is to say of it before its first turn. `place`: where it runs, for messages."""
        loaded = self._loaded
        about = {"engine": loaded.describe(), "machine": loaded.machine()}
        return Ready(place, about, loaded.facts(), loaded.checkpoint.fingerprint)

    def turn(self, rows: Sequence[Arrival]) -> Report:
        """Take rows, and go on with all that there are: for a moment, or until none is left."""
        self._inbox.extend(rows)
        until = time.monotonic() + _TURN_S
        while (self._inbox or self._numbers) and time.monotonic() < until:
            next(self._steps)
        results, self._results = self._results, []
        effort = self._generation.effort(self._home)
        return Report(
            results=results,
            stats=self._generation.engine.stats(),
            scheduling_s=effort.scheduling_s,
            kernels_s=effort.kernels_s,
            bound_s=effort.bound_s,
        )

    def _rows(self) -> Iterator[Arrival | None]:
        while True:
            if not self._inbox:
                yield None
                continue
            arrival = self._inbox.popleft()
            self._numbers[self._taken] = arrival.number
            yield replace(arrival, number=self._taken)
            self._taken += 1

    def _emit(self, number: int, digest: str, row: ResultRow) -> None:
        self._results.append((self._numbers.pop(number), digest, row))
