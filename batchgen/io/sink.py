"""Where result rows go: a folder, one file made of such a folder, or standard output."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import asdict
from typing import IO, Protocol

import orjson
import pyarrow as pa

from batchgen.config import OutputConfig
from batchgen.io.claim import Claim
from batchgen.io.durable import durable_file, writing
from batchgen.io.ledger import Ledger, Stored
from batchgen.io.manifest import Manifest
from batchgen.io.reorder import InputOrder
from batchgen.io.store import Store
from batchgen.protocol.lines import LINES, AnsweredRow, LineFormat
from batchgen.protocol.result import ResultRow

__all__ = ["Sink", "open_sink"]


class Sink(Protocol):
    """Takes one result for each row of the input, in any order."""

    manifest: Manifest
    """Of the run that this sink belongs to."""

    def enter_earlier(self, ledger: Ledger, *, retry_failed: bool) -> None:
        """Let the ledger know the results of earlier runs, but for failed ones that are to be tried again."""
        ...

    def append(self, number: int, digest: str, row: ResultRow) -> None:
        """Take the result of the input's row `number`, counted from 0; `digest` names the request."""
        ...

    def keep(self, number: int, line: int, stored: Stored) -> None:
        """The result of an earlier run is that of row `number`, which stands on `line` of the input."""
        ...

    def tick(self) -> None:
        """Time has passed: see to it that rows are safe in time."""
        ...

    def finish(self) -> None:
        """All rows have results: complete the output."""
        ...

    def stop(self) -> None:
        """The job ends early: keep what was appended."""
        ...


def open_sink(
    claim: Claim, config: OutputConfig, schema: pa.Schema, manifest: Manifest, line_format: LineFormat
) -> Sink:
    """The sink for a claimed output."""
    if claim.folder is None:
        return _StandardOutput(config, manifest, line_format)
    return Store(claim, config, schema, manifest, line_format)


class _StandardOutput:
    """Nothing of it is kept: a run that ends early begins anew."""

    def __init__(self, config: OutputConfig, manifest: Manifest, line_format: LineFormat) -> None:
        self.manifest = manifest
        self._line = LINES[line_format]
        self._in_order = InputOrder() if config.order == "input" else None
        self._error_file = config.error_file
        # For the whole run, whatever takes the place of sys.stdout meanwhile.
        self._stream = sys.stdout.buffer
        self._opened = ExitStack()
        self._errors: IO[bytes] | None = None
        if config.error_file is not None:
            with writing(config.error_file):
                self._errors = self._opened.enter_context(durable_file(config.error_file))

    def enter_earlier(self, ledger: Ledger, *, retry_failed: bool) -> None:
        """There are none."""

    def append(self, number: int, digest: str, row: ResultRow) -> None:  # noqa: ARG002 - nothing is kept
        for ready in (row,) if self._in_order is None else self._in_order.push(number, row):
            self._write(ready)

    def keep(self, number: int, line: int, stored: Stored) -> None:
        raise NotImplementedError("standard output keeps no results")

    def tick(self) -> None:
        """Rows are written at once."""

    def finish(self) -> None:
        assert not self._in_order, "a row of the input has no result"
        self.stop()

    def stop(self) -> None:
        self._stream.flush()
        if self._error_file is not None:
            with writing(self._error_file):
                self._opened.close()

    def _write(self, row: ResultRow) -> None:
        error = None if row.error is None else asdict(row.error)
        response = None if row.response is None else orjson.dumps(row.response)
        answered = AnsweredRow(self.manifest.run_id, row.line, row.custom_id, row.status_code, response, error)
        line = orjson.dumps(self._line(answered), option=orjson.OPT_APPEND_NEWLINE)
        self._stream.write(line)
        if error is not None and self._error_file is not None and self._errors is not None:
            with writing(self._error_file):
                self._errors.write(line)
