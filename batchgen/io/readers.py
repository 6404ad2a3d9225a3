"""Rows of the input, one after another. Memory holds one line, or one batch of a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import IO, Any

import orjson

from batchgen.config import InputConfig
from batchgen.io.columns import RowShaper, request_columns, with_defaults
from batchgen.io.json_text import TooDeepError, load_json
from batchgen.io.source import first_bytes_of_stream, is_stream, open_binary
from batchgen.io.table_rows import count_table_rows, table_rows
from batchgen.io.tables import is_table
from batchgen.protocol.faults import Code, RowFault
from batchgen.protocol.parse import model_of
from batchgen.protocol.request import RawRow

__all__ = ["count_rows", "first_rows", "models_named", "open_rows"]

_BOM = b"\xef\xbb\xbf"
_MAX_LINE = 64 << 20
"""Bytes of a line, at most: a file without line ends does not fill the memory."""


def open_rows(config: InputConfig) -> Iterator[RawRow]:
    """Every row that is not blank, in order. A row that can't be read is a `RawRow` with a fault.

    Raises `UsageError` where the input itself can't be read, or no row of it can be a request.
    """
    shaper = RowShaper(config)
    rows = table_rows(config, shaper) if is_table(config) else _json_rows(config, shaper)
    return rows if config.sampling is None else with_defaults(rows, config.sampling)


def count_rows(config: InputConfig) -> int | None:
    """Rows of an input that can be read twice; None for a stream."""
    if is_stream(config.input_file):
        return None
    if is_table(config):
        return count_table_rows(config)
    with open_binary(config.input_file) as file:
        return sum(1 for _ in _filled_lines(file))


def first_rows(config: InputConfig, count: int) -> Iterator[RawRow]:
    """Up to `count` rows from the start, which `open_rows` gives again.

    A stream can't be read twice: of it there is one row, or none where that is too long to be seen without taking it.
    """
    if not is_stream(config.input_file):
        yield from islice(open_rows(config), count)
        return
    line, end, _ = first_bytes_of_stream().removeprefix(_BOM).lstrip().partition(b"\n")
    if end:
        yield from _shaped(config, RowShaper(config), [(1, line)])


def models_named(config: InputConfig) -> list[str]:
    """Models that lines name, in order of appearance and two at most: enough to know whether there is one.

    Of a stream the first line alone is asked.
    """
    named: list[str] = []
    for row in first_rows(config, 1) if is_stream(config.input_file) else open_rows(config):
        model = model_of(row)
        if model is not None and model not in named:
            named.append(model)
            if len(named) == 2:
                break
    return named


def _json_rows(config: InputConfig, shaper: RowShaper) -> Iterator[RawRow]:
    with open_binary(config.input_file) as file:
        yield from _shaped(config, shaper, _filled_lines(file))


def _shaped(config: InputConfig, shaper: RowShaper, lines: Iterable[tuple[int, bytes | None]]) -> Iterator[RawRow]:
    for number, line in lines:
        row = _object(line)
        if isinstance(row, RowFault):
            yield RawRow(number, None, row)
        else:
            own = request_columns(config, row)
            extra = {name: orjson.dumps(value).decode() for name, value in row.items() if name not in own}
            yield shaper.shape(number, row, extra)


def _filled_lines(file: IO[bytes]) -> Iterator[tuple[int, bytes | None]]:
    """Lines that are not blank, with their numbers from 1; None for one that is too long."""
    number = 0
    while line := file.readline(_MAX_LINE):
        number += 1
        if len(line) == _MAX_LINE and not line.endswith(b"\n"):
            while (rest := file.readline(_MAX_LINE)) and not rest.endswith(b"\n"):
                pass
            yield number, None
        elif text := (line.removeprefix(_BOM) if number == 1 else line).strip():
            yield number, text


def _object(line: bytes | None) -> dict[str, Any] | RowFault:
    if line is None:
        message = f"the line is longer than {_MAX_LINE >> 20} MiB; end each request with a newline"
        return RowFault(Code.INVALID_JSON_LINE, message)
    try:
        value = load_json(line)
    except orjson.JSONDecodeError as error:
        return RowFault(Code.INVALID_JSON_LINE, _why_no_json(line, error))
    except TooDeepError as error:
        return RowFault(Code.INVALID_JSON_LINE, f"the line is {error}; flatten it")
    if not isinstance(value, dict):
        return RowFault(Code.INVALID_JSON_LINE, f"the line must be a JSON object, found {_start_of(line)}")
    return value


def _why_no_json(line: bytes, error: orjson.JSONDecodeError) -> str:
    try:
        line.decode()
    except UnicodeDecodeError as wrong:
        found = f"found 0x{line[wrong.start]:02x} at byte {wrong.start + 1}"
        return f"the line is not UTF-8: {found}; save the file as UTF-8"
    return f"the line is not valid JSON: {error.msg} at column {error.colno}; found {_start_of(line)}"


def _start_of(line: bytes) -> str:
    text = line[:80].decode("utf-8", "ignore")
    return repr(text if len(text) <= 40 else f"{text[:37]}...")
