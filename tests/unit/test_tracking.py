"""Lots of rows that grow to a window, and a pause while too many are under way."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from itertools import chain
from types import SimpleNamespace
from typing import Any, cast

import pytest

from batchgen.core.sampling import SamplingParams
from batchgen.core.sequence import FinishReason, Sequence
from batchgen.io.ledger import Stored
from batchgen.job import reading
from batchgen.job.arrivals import Arrival
from batchgen.job.tracking import Frontend, Tracker
from batchgen.protocol.parse import Parser
from batchgen.protocol.request import GenRequest, RawRow
from batchgen.protocol.response import Responder
from batchgen.protocol.result import ResultRow
from batchgen.text.grammar import Grammars
from batchgen.text.prompt import Prompter
from batchgen.text.sampling import ResolvedSampling, SamplingDefaults
from batchgen.text.schema_check import SchemaChecks
from batchgen.text.tokenizer import Tokenizer
from batchgen.text.tools import Tools


def frontend() -> Frontend:
    """Every prompt is one token, every answer empty."""

    def resolve(_: GenRequest, __: list[int]) -> ResolvedSampling:
        return ResolvedSampling((SamplingParams(max_tokens=1),), {})

    return Frontend(
        parser=Parser(),
        tokenizer=cast("Tokenizer", SimpleNamespace(decode=lambda _ids, **_: "")),
        prompter=cast("Prompter", SimpleNamespace(encode=lambda _: [[1]])),
        sampling=cast("SamplingDefaults", SimpleNamespace(resolve=resolve)),
        grammars=cast("Grammars", None),
        schemas=SchemaChecks(),
        tools=Tools(tagged=False, special_tags=False),
        responder=Responder("run", 0),
        model="m",
        served=None,
    )


def finish(tracker: Tracker, sequence: Sequence) -> None:
    sequence.finish_reason = FinishReason.LENGTH
    tracker.finished(sequence)


def arrive(row: RawRow) -> Arrival:
    return Arrival(row.line - 1, "", row, first_line=None, stored=None)


STORED = Stored(0, 0, 1, failed=False, retryable=False)


class Results(dict[int, ResultRow]):
    """Results by the number of their row."""

    def emit(self, number: int, _digest: str, row: ResultRow) -> None:
        assert number not in self
        self[number] = row


def row(number: int) -> RawRow:
    return RawRow(number, {"custom_id": str(number), "url": "/v1/completions", "body": {"prompt": "x"}})


class Encoder:
    """Stands for the thread: encodes no more than it is allowed to, in order."""

    def __init__(self) -> None:
        self.allowed = 1 << 30
        self.queue: deque[tuple[Future[Any], Callable[[], Any]]] = deque()

    def submit(self, call: Callable[..., Any], *args: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.queue.append((future, lambda: call(*args)))
        self.allow(0)
        return future

    def allow(self, more: int) -> None:
        self.allowed += more
        while self.queue and self.allowed:
            self.allowed -= 1
            future, call = self.queue.popleft()
            future.set_result(call())

    def shutdown(self, **_: bool) -> None:
        pass


@pytest.fixture(autouse=True)
def encoder(monkeypatch: pytest.MonkeyPatch) -> Encoder:
    stand_in = Encoder()
    monkeypatch.setattr(reading, "ThreadPoolExecutor", lambda *_, **__: stand_in)
    return stand_in


def test_work_begins_with_two_steps_and_lots_double_what_is_under_way(encoder: Encoder) -> None:
    encoder.allowed = 4
    tracker = Tracker(frontend(), Results().emit, window=100, step=2)
    windows = tracker.windows(map(arrive, map(row, range(1, 1001))))
    begun = next(windows)
    assert len(begun) == 4, "that two steps can hold; nobody waited for more"
    encoder.allow(3)
    assert next(windows) == [], "ordering all anew is not worth it"
    encoder.allow(4)
    begun += next(windows)
    assert len(begun) == 4 + 7, "all that is ready"
    encoder.allow(1 << 30)
    begun += next(windows)
    assert len(begun) == 100, "a window, however much is ready"
    for sequence in begun[:49]:
        finish(tracker, sequence)
    assert next(windows) == []
    finish(tracker, begun[49])
    assert len(next(windows)) == 50


def test_the_last_rows_are_begun_as_soon_as_they_are_ready(encoder: Encoder) -> None:
    encoder.allowed = 4
    tracker = Tracker(frontend(), Results().emit, window=100, step=2)
    windows = tracker.windows(map(arrive, map(row, range(1, 8))))
    assert len(next(windows)) == 4
    encoder.allow(2)
    assert next(windows) == []
    encoder.allow(1)
    assert len(next(windows)) == 3
    assert list(windows) == []


def test_a_step_is_filled_with_what_is_ready(encoder: Encoder) -> None:
    encoder.allowed = 8
    tracker = Tracker(frontend(), Results().emit, window=100, step=4)
    windows = tracker.windows(map(arrive, map(row, range(1, 101))))
    begun = next(windows)
    encoder.allow(1)
    assert (len(begun), next(windows)) == (8, [])
    for sequence in begun[:5]:
        finish(tracker, sequence)
    assert len(next(windows)) == 1


def test_work_goes_on_while_the_oldest_row_is_unfinished() -> None:
    results = Results()
    tracker = Tracker(frontend(), results.emit, window=10, step=5)
    windows = tracker.windows(map(arrive, map(row, range(1, 41))))
    oldest, *others = next(windows)
    for lot in range(2):
        for sequence in others:
            finish(tracker, sequence)
        others = next(windows)
        assert len(others) == 9, lot
    for sequence in others:
        finish(tracker, sequence)
    assert next(windows) == [], "two windows from the oldest unfinished row on: not now"
    finish(tracker, oldest)
    for sequence in chain.from_iterable(windows):
        finish(tracker, sequence)
    assert sorted(results) == list(range(40))


def test_rows_that_are_refused_fill_windows_too() -> None:
    """A file of nothing but bad lines does not run ahead of one long answer without bound."""
    bad = [RawRow(n, {"custom_id": str(n)}) for n in range(2, 101)]
    results = Results()
    tracker = Tracker(frontend(), results.emit, window=10, step=5)
    windows = tracker.windows(map(arrive, [row(1), *bad]))
    (sequence,) = next(windows)
    assert [next(windows) for _ in range(10)] == [[]] * 10
    assert 20 <= len(results) < 30
    finish(tracker, sequence)
    assert all(window == [] for window in windows)
    assert sorted(results) == list(range(100))


def test_rows_that_are_done_fill_windows_and_start_nothing() -> None:
    results = Results()
    tracker = Tracker(frontend(), results.emit, window=10, step=5)
    arrivals = (replace(arrive(row(n)), stored=None if n % 10 == 5 else STORED) for n in range(1, 61))
    windows = tracker.windows(arrivals)
    begun = [sequence for _ in range(10) for sequence in next(windows)]
    assert len(begun) == 3
    assert next(windows) == [], "done rows count from the oldest unfinished one as well"
    for sequence in begun:
        finish(tracker, sequence)
    for sequence in chain.from_iterable(windows):
        finish(tracker, sequence)
    assert sorted(results) == [4, 14, 24, 34, 44, 54]


def test_rows_are_read_a_window_ahead_and_no_further() -> None:
    read = 0

    def rows() -> Iterator[Arrival]:
        nonlocal read
        for number in range(1, 101):
            read += 1
            yield arrive(row(number))

    tracker = Tracker(frontend(), Results().emit, window=10, step=5)
    windows = tracker.windows(rows())
    assert (len(next(windows)), read) == (10, 10)
    assert (next(windows), read) == ([], 20)
    assert (next(windows), read) == ([], 20)
