"""Names for requests: equal for equal requests, whatever the form of the line."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

import orjson
import pyarrow as pa
import xxhash

from batchgen.protocol.request import RawRow

__all__ = ["plain_bytes", "request_digest"]


def request_digest(row: RawRow, columns: Collection[str], *context: object) -> str:
    """32 hex digits over all that a row's result depends on, the run's settings aside; the order of keys is no part
    of it.

    `columns`: the input columns that the output has. `context`: what else the result depends on, such as the line of
    an earlier row with the same custom_id.
    """
    fault = None if row.fault is None else (row.fault.code, row.fault.message)
    passed = {name: _plain(value) for name, value in row.extra.items() if name in columns}
    return xxhash.xxh3_128_hexdigest(plain_bytes((row.data, passed, fault, context)))


def _plain(value: pa.Array | str | None) -> Any:
    """A passed-through value: JSON text as it is, an Arrow array of one value as what it holds."""
    if not isinstance(value, pa.Array):
        return value
    try:
        return value.to_pylist()
    except (ValueError, OverflowError):  # a moment that Python's types can't hold
        return pa.record_batch([value], names=[""]).serialize().to_pybytes().hex()


def plain_bytes(value: Any) -> bytes:
    """Bytes for hashing: equal for equal values, and for values that begin alike, alike as far."""
    try:
        return orjson.dumps(value, default=repr, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_SORT_KEYS)
    except TypeError:  # half a surrogate pair, or a number that JSON has no room for
        return json.dumps(value, default=repr, sort_keys=True).encode()
