"""What a report tells. Plain data: who gathers it knows nothing of pages, and the page nothing of files."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from typing import Any

__all__ = ["SHARED_UP_TO", "Failure", "Report", "Row", "RowFigures"]

SHARED_UP_TO = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Upper ends of the classes in which rows are counted by the share of their prompt that was found in the cache."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An error code that rows have."""

    code: str
    rows: int
    first_line: int | None
    """Of the input; None where the output does not tell lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row that is shown."""

    number: int
    """Its place in the output, from 1."""
    line: int | None
    custom_id: str | None
    status_code: int | None
    code: str | None
    """None for a row without an error."""
    finish_reason: str | None
    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None
    text: str
    """The beginning of the answer, or of the error's message."""
    hidden: int
    """Characters that follow it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFigures:
    """What rows add up to. Lengths are those of rows that have an answer."""

    rows: int = 0
    failures: SequenceOf[Failure] = ()
    """The commonest first."""
    finish_reasons: Mapping[str, int] = field(default_factory=dict)
    prompt_lengths: Mapping[int, int] = field(default_factory=dict)
    """Tokens of a prompt -> rows."""
    output_lengths: Mapping[int, int] = field(default_factory=dict)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    shared: SequenceOf[int] = (0,) * len(SHARED_UP_TO)
    """Rows in each class of `SHARED_UP_TO`."""
    shown: SequenceOf[Row] = ()
    """Some of them, in their order."""

    @property
    def failed(self) -> int:
        """Rows whose result is an error."""
        return sum(failure.rows for failure in self.failures)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All that a page shows."""

    output: str
    state: str | None
    """running, stopped or finished; None where nothing tells it."""
    rows_total: int | None
    """Rows of the input, where that is known."""
    figures: RowFigures
    runs: SequenceOf[Mapping[str, Any]]
    """In the form of docs/output-format.md, in order."""
    settings: Mapping[str, Mapping[str, Any]]
    """Heading -> name -> value."""
