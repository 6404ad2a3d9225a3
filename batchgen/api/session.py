"""A loaded model, and one run after another over it."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock, get_ident
from typing import Literal

from batchgen.config import EngineConfig, InputConfig, ModelConfig
from batchgen.core.kv_manager import KVManager
from batchgen.errors import EngineBusyError
from batchgen.io.ledger import Ledger
from batchgen.io.reorder import InputOrder
from batchgen.job.arrivals import arrivals
from batchgen.job.generation import Generation, make_frontend
from batchgen.job.loading import open_engine
from batchgen.job.out_of_memory import telling_memory_is_full
from batchgen.job.summary import Counts
from batchgen.job.tracking import Frontend
from batchgen.job.worker import RunnerInThread, Worker, result_of
from batchgen.progress import Progress, Reporter
from batchgen.protocol.request import RawRow
from batchgen.protocol.response import Responder
from batchgen.protocol.result import ResultRow

__all__ = ["Order", "Session"]

Order = Literal["input", "completion"]
_ADVICE = "lower window, max_num_seqs or kv_cache_memory, or free some"


@dataclass(slots=True, eq=False)
class _Turn:
    """The right of one run to compute."""

    thread: int
    """The thread that takes its results."""
    computing: bool = False
    """Whether it is within a step."""


class Session:
    """A model in this process. Runs take turns: each one has the whole cache to itself."""

    def __init__(self, model: ModelConfig, engine: EngineConfig, source: InputConfig, home: Path) -> None:
        """Begin to load."""
        self.pid = os.getpid()
        """The process whose threads compute."""
        self._model = model
        self._source = source
        self._worker = Worker()
        self._loading = self._worker.begin(open_engine, model, engine, home)
        self._frontend: Frontend | None = None
        self._cache: KVManager | None = None
        """What the last run left in the cache, if nothing of it was under way in the end."""
        self._lock = Lock()
        self._turn: _Turn | None = None

    def load(self) -> None:
        """Wait until the model is there. Raises what `open_engine` does. Interrupted, it loads on all the same."""
        with telling_memory_is_full(_ADVICE):
            result_of(self._loading)

    def run(
        self,
        rows: Iterable[RawRow],
        order: Order,
        rows_total: int | None,
        reporter: Reporter | None,
    ) -> Generator[ResultRow, None, None]:
        """Results of the rows, as soon as they are there and their turn has come.

        The model is at most a step ahead of whoever takes them. Raises `EngineBusyError` where another run is not over.
        """
        with self._taking_turns() as turn:
            loaded = result_of(self._loading)
            frontend = replace(self._made_frontend(), responder=Responder(uuid.uuid4().hex[:16], int(time.time())))
            cache, self._cache = self._cache or loaded.cache(), None
            engine = loaded.engine(RunnerInThread(loaded.runner, self._worker), cache)
            ready = _Ready(order)
            generation = Generation(
                loaded, engine, frontend, ready.emit, Counts(), lambda: rows_total, window=self._source.window
            )
            try:
                with Ledger() as ledger, closing(generation.steps(arrivals(rows, (), ledger, _everything))) as steps:
                    while (progress := self._next(turn, steps)) is not None:
                        if reporter is not None:
                            reporter.update(progress)
                        yield from ready.take()
            finally:
                stats = engine.stats()
                if self._turn is turn and not (stats.running or stats.waiting):
                    self._cache = cache

    def close(self) -> None:
        """Give the memory back when the step under way is over. A run that is not over has ended."""
        with self._lock:
            self._turn = None
        if self._frontend is not None:
            self._frontend.grammars.close()
        loading = self._loading
        self._worker.end_with(lambda: loading.result().close() if loading.exception() is None else None)

    def _made_frontend(self) -> Frontend:
        if self._frontend is None:
            self._frontend = make_frontend(self._loading.result(), self._model, self._source, Responder("", 0))
        return self._frontend

    @contextmanager
    def _taking_turns(self) -> Iterator[_Turn]:
        """The turn of a new run. One of the same thread that waits to be asked for its next result has lost its own."""
        turn = _Turn(get_ident())
        with self._lock:
            before = self._turn
            if before is not None and (before.computing or before.thread != get_ident()):
                raise EngineBusyError(
                    "another run of this engine is not over: take all its results or close() its iterator, or give "
                    "each thread an engine of its own"
                )
            self._turn = turn
        try:
            yield turn
        finally:
            with self._lock:
                if self._turn is turn:
                    self._turn = None

    def _next(self, turn: _Turn, steps: Iterator[Progress]) -> Progress | None:
        """Compute a step; where the run stands then, None where it is over."""
        with self._lock:
            if self._turn is not turn:
                raise EngineBusyError(
                    "the engine was closed or began another run, which ended this one; take all results of the one "
                    "before the other"
                )
            turn.thread, turn.computing = get_ident(), True
        try:
            with telling_memory_is_full(_ADVICE):
                return next(steps, None)
        finally:
            turn.computing = False


class _Ready:
    """Results that are there and wait to be taken."""

    def __init__(self, order: Order) -> None:
        self._in_order = InputOrder() if order == "input" else None
        self._ready: list[ResultRow] = []

    def emit(self, number: int, _digest: str, row: ResultRow) -> None:
        """`job.passing.Emit`."""
        self._ready += (row,) if self._in_order is None else self._in_order.push(number, row)

    def take(self) -> Iterator[ResultRow]:
        """Those that came since the last time."""
        ready, self._ready = self._ready, []
        yield from ready


def _everything(_row: RawRow) -> bool:
    return True
