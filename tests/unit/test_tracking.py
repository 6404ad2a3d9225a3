"""Windows of rows: full ones, and a pause while too many are under way."""

from __future__ import annotations

from dataclasses import replace
from threading import Event
from types import SimpleNamespace
from typing import cast

from batchgen.core.sampling import SamplingParams
from batchgen.core.sequence import FinishReason, Sequence
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
    return Arrival(row.line - 1, "", row, first_line=None, done=False)


class Results(dict[int, ResultRow]):
    """Results by the number of their row."""

    def emit(self, number: int, _digest: str, row: ResultRow) -> None:
        assert number not in self
        self[number] = row


def test_windows_stay_full_while_the_oldest_row_is_unfinished() -> None:
    rows = [RawRow(n, {"custom_id": str(n), "url": "/v1/completions", "body": {"prompt": "x"}}) for n in range(1, 31)]
    results = Results()
    tracker = Tracker(frontend(), results.emit, window=10)
    windows = tracker.windows(map(arrive, rows))
    first = next(windows)
    for sequence in first[1:]:
        finish(tracker, sequence)
    second = next(windows)
    assert (len(first), len(second)) == (10, 10)
    assert next(windows) == [], "two windows from the oldest unfinished row on: not now"
    finish(tracker, first[0])
    third = next(windows)
    assert len(third) == 10
    for sequence in second + third:
        finish(tracker, sequence)
    assert list(windows) == []
    assert sorted(results) == list(range(30))


def test_rows_that_are_refused_fill_windows_too() -> None:
    """A file of nothing but bad lines does not run ahead of one long answer without bound."""
    good = RawRow(1, {"custom_id": "1", "url": "/v1/completions", "body": {"prompt": "x"}})
    bad = [RawRow(n, {"custom_id": str(n)}) for n in range(2, 101)]
    results = Results()
    tracker = Tracker(frontend(), results.emit, window=10)
    windows = tracker.windows(map(arrive, [good, *bad]))
    (sequence,) = next(windows)
    assert next(windows) == next(windows) == next(windows) == []
    assert len(results) == 19
    finish(tracker, sequence)
    assert all(window == [] for window in windows)
    assert sorted(results) == list(range(100))


def test_rows_that_are_done_fill_windows_and_start_nothing() -> None:
    rows = [RawRow(n, {"custom_id": str(n), "url": "/v1/completions", "body": {"prompt": "x"}}) for n in range(1, 41)]
    results = Results()
    tracker = Tracker(frontend(), results.emit, window=10)
    arrivals = (replace(arrive(row), done=row.line % 10 != 5) for row in rows)
    windows = tracker.windows(arrivals)
    begun = [sequence for _ in range(3) for sequence in next(windows)]
    assert len(begun) == 3
    assert next(windows) == [], "done rows count from the oldest unfinished one as well"
    finish(tracker, begun[0])
    begun += next(windows)
    for sequence in begun[1:]:
        finish(tracker, sequence)
    assert list(windows) == []
    assert sorted(results) == [4, 14, 24, 34]


def test_the_next_window_is_encoded_while_this_one_is_computed() -> None:
    rows = [RawRow(n, {"custom_id": str(n), "url": "/v1/completions", "body": {"prompt": "x"}}) for n in range(1, 31)]
    encoded = {str(n): Event() for n in range(1, 31)}

    def encode(request: GenRequest) -> list[list[int]]:
        encoded[request.custom_id].set()
        return [[1]]

    tracker = Tracker(
        replace(frontend(), prompter=cast("Prompter", SimpleNamespace(encode=encode))), Results().emit, window=10
    )
    windows = tracker.windows(map(arrive, rows))
    assert len(next(windows)) == 10
    assert all(encoded[str(n)].wait(60) for n in range(11, 21)), "the second window, which nobody has asked for"
    assert not any(encoded[str(n)].is_set() for n in range(21, 31)), "and no more than that"
