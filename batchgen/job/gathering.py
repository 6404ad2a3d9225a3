"""Rows of an output, read once, as the figures of a report. Memory is bounded by the number of different lengths."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batchgen.ui.report.content import SHARED_UP_TO, Failure, Row, RowFigures

__all__ = ["row_figures"]

_ANSWERS = 200
"""Answers that are shown, picked at random."""
_FAILURES = 100
_FAILURES_OF_A_CODE = 20
_TEXT = 1500
"""Characters of a text that are shown."""


def row_figures(batches: Iterable[pa.RecordBatch]) -> RowFigures:
    """The figures of rows in the columns of `io.figures.DETAILS`."""
    gathered = _Gathered()
    for batch in batches:
        gathered.take(batch)
    return gathered.figures()


@dataclass(frozen=True, slots=True)
class _Picked:
    """A row that may be shown."""

    key: float
    """Random; of answers those with the least are shown."""
    row: Row


class _Gathered:
    """Sums over the rows so far."""

    def __init__(self) -> None:
        self._rows = 0
        self._codes: Counter[str] = Counter()
        self._first_lines: dict[str, int | None] = {}
        self._reasons: Counter[str] = Counter()
        self._prompts: Counter[int] = Counter()
        self._outputs: Counter[int] = Counter()
        self._cached = 0
        self._shared = np.zeros(len(SHARED_UP_TO), dtype=np.int64)
        self._failures: list[Row] = []
        self._answers: list[_Picked] = []
        self._below = 1.0
        # The same report of the same output: the seed is part of the form.
        self._random = np.random.default_rng(0)

    def take(self, batch: pa.RecordBatch) -> None:
        """Take more rows."""
        keys = self._random.random(batch.num_rows)
        failed = pc.is_valid(batch.column("code")).to_numpy(zero_copy_only=False)
        if failed.any():
            self._take_failures(batch, np.flatnonzero(failed))
        for reason in pc.value_counts(batch.column("finish_reason")).to_pylist():
            if reason["values"] is not None:
                self._reasons[reason["values"]] += reason["counts"]
        prompts, outputs, cached = (
            batch.column(name).fill_null(-1).to_numpy(zero_copy_only=False)
            for name in ("prompt_tokens", "completion_tokens", "cached_tokens")
        )
        self._count(self._prompts, prompts[~failed & (prompts >= 0)])
        self._count(self._outputs, outputs[~failed & (outputs >= 0)])
        known = ~failed & (prompts > 0) & (cached >= 0)
        self._cached += int(cached[known].sum())
        classes = np.searchsorted(SHARED_UP_TO, cached[known] / prompts[known])
        self._shared += np.bincount(np.minimum(classes, len(SHARED_UP_TO) - 1), minlength=len(SHARED_UP_TO))
        self._pick(batch, keys, np.flatnonzero(~failed & (keys < self._below)))
        self._rows += batch.num_rows

    def figures(self) -> RowFigures:
        """The figures of all that was taken."""
        self._keep_least()
        return RowFigures(
            rows=self._rows,
            failures=[Failure(code, rows, self._first_lines[code]) for code, rows in self._codes.most_common()],
            finish_reasons=dict(self._reasons.most_common()),
            prompt_lengths=self._prompts,
            output_lengths=self._outputs,
            prompt_tokens=_sum(self._prompts),
            cached_tokens=self._cached,
            output_tokens=_sum(self._outputs),
            shared=self._shared.tolist(),
            shown=sorted([*self._failures, *(picked.row for picked in self._answers)], key=lambda row: row.number),
        )

    @staticmethod
    def _count(lengths: Counter[int], values: np.ndarray[Any, np.dtype[np.int32]]) -> None:
        found, counts = np.unique(values, return_counts=True)
        for length, rows in zip(found.tolist(), counts.tolist(), strict=True):
            lengths[length] += rows

    def _take_failures(self, batch: pa.RecordBatch, failed: np.ndarray[Any, np.dtype[np.int64]]) -> None:
        some = batch.select(["code", "line"]).take(pa.array(failed))
        shown: list[int] = []
        for at, code, line in zip(failed.tolist(), some.column(0).to_pylist(), some.column(1).to_pylist(), strict=True):
            self._codes[code] += 1
            self._first_lines.setdefault(code, line)
            if len(self._failures) + len(shown) < _FAILURES and self._codes[code] <= _FAILURES_OF_A_CODE:
                shown.append(at)
        self._failures += self._read(batch, shown)

    def _pick(
        self,
        batch: pa.RecordBatch,
        keys: np.ndarray[Any, np.dtype[np.float64]],
        wanted: np.ndarray[Any, np.dtype[np.int64]],
    ) -> None:
        rows = self._read(batch, wanted.tolist())
        self._answers += map(_Picked, keys[wanted].tolist(), rows)
        if len(self._answers) > 4 * _ANSWERS:
            self._keep_least()

    def _keep_least(self) -> None:
        self._answers = sorted(self._answers, key=lambda picked: picked.key)[:_ANSWERS]
        if len(self._answers) == _ANSWERS:
            self._below = self._answers[-1].key

    def _read(self, batch: pa.RecordBatch, rows: list[int]) -> list[Row]:
        if not rows:
            return []
        some = batch.take(pa.array(rows, pa.int64()))
        text = pc.coalesce(some.column("message"), some.column("text"), pa.scalar(""))
        columns = {name: some.column(name) for name in some.schema.names if name not in {"text", "message"}}
        # Only the beginning of a text becomes an object, however long it is.
        columns |= {"text": pc.utf8_slice_codeunits(text, 0, _TEXT), "hidden": pc.utf8_length(text)}
        found = pa.RecordBatch.from_pydict(columns).to_pylist()
        return [
            Row(number=self._rows + at + 1, **{**row, "hidden": max(0, row["hidden"] - _TEXT)})
            for at, row in zip(rows, found, strict=True)
        ]


def _sum(lengths: Counter[int]) -> int:
    return sum(length * rows for length, rows in lengths.items())
