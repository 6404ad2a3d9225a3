"""Answers to rows of columns, one for each row and in order, from an `Engine`."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
import xxhash

from batchgen.api.engine import Engine
from batchgen.api.result import ResultError
from batchgen.config import InputConfig
from batchgen.errors import UsageError
from batchgen.io.columns import RowShaper, check_columns
from batchgen.io.digest import plain_bytes
from batchgen.io.table_rows import rows_of_batches
from batchgen.protocol.faults import RowFault
from batchgen.protocol.request import RawRow

__all__ = ["Answer", "Question"]


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a row."""

    text: str | None
    error: Mapping[str, str | None] | None
    """`code`, `message` and `param`; None where there is an answer."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of each row, and who answers. It pickles, as an engine does."""

    engine: Engine
    keep_open: bool
    """Whether the engine is somebody else's."""
    source: InputConfig
    sampling: Mapping[str, Any]
    output_column: str

    @property
    def schema(self) -> pa.Schema:
        """The columns of answers."""
        error = pa.struct([("code", pa.string()), ("message", pa.string()), ("param", pa.string())])
        return pa.schema([(self.output_column, pa.string()), (f"{self.output_column}_error", error)])

    def check(self, columns: Collection[str]) -> None:
        """Raise `UsageError` where rows with these columns can't be asked, or have a column of answers already."""
        check_columns(self.source, columns)
        RowShaper(self.source)
        if taken := [name for name in self.schema.names if name in columns]:
            raise UsageError(f"there is a column {taken[0]!r} already; give another output_column")

    def fingerprint(self, rows: str) -> str:
        """16 hex digits over all that the answers depend on; `rows` stands for the rows."""
        settings = {name: value for name, value in asdict(self.source).items() if name != "window"}
        context = [rows, self.engine.fingerprint(), settings, self.sampling, self.output_column]
        return xxhash.xxh3_64_hexdigest(plain_bytes(context))

    def requests(self, batches: Iterable[pa.RecordBatch], columns: Collection[str]) -> Iterator[RawRow]:
        """The rows of batches with these columns, as requests."""
        return rows_of_batches(batches, columns, self.source, RowShaper(self.source))

    def requests_of_examples(self, examples: Iterable[Mapping[str, Any]]) -> Iterator[RawRow]:
        """Rows of a stream, as requests."""
        shaper = RowShaper(self.source)
        return (shaper.shape(number, example, {}) for number, example in enumerate(examples, 1))

    def answers(self, rows: Iterable[RawRow]) -> Iterator[Answer]:
        """An answer for each row, in order. Rows are read as far ahead as the engine's window."""
        faults: deque[RowFault | None] = deque()
        """Of the rows that were read and have no answer yet; a row without one is at the engine."""
        open_engine: AbstractContextManager[Engine] = nullcontext(self.engine) if self.keep_open else self.engine
        with open_engine as engine, closing(engine.generate(_without_faults(rows, faults), self.sampling)) as results:
            for result in results:
                while (fault := faults.popleft()) is not None:
                    yield _refused(fault)
                yield Answer(result.text, _error(result.error))
        yield from (_refused(fault) for fault in faults if fault is not None)

    def batch(self, answers: Iterable[Answer]) -> pa.RecordBatch:
        """Answers as columns."""
        some = list(answers)
        columns = [[answer.text for answer in some], [answer.error for answer in some]]
        return pa.record_batch(
            [pa.array(values, field.type) for values, field in zip(columns, self.schema, strict=True)],
            schema=self.schema,
        )


def _without_faults(rows: Iterable[RawRow], faults: deque[RowFault | None]) -> Iterator[Mapping[str, Any]]:
    for row in rows:
        faults.append(row.fault)
        if row.fault is None and row.data is not None:
            yield row.data


def _refused(fault: RowFault) -> Answer:
    return Answer(None, {"code": str(fault.code), "message": fault.message, "param": fault.param})


def _error(error: ResultError | None) -> Mapping[str, str | None] | None:
    return None if error is None else {"code": error.code, "message": error.message, "param": error.param}
