"""What outputs hold, in a form that tells runs apart only where they must not differ."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from batchgen.io.single_file import read_parts

__all__ = ["results", "without_varying"]

VARYING = frozenset({"cached_tokens", "prompt_tokens_details", "created"})
"""What depends on the cache's contents at the time, and on the time."""


def results(output: Path) -> list[Any]:
    """All rows of a finished output, in order, without what varies."""
    match output.suffix:
        case ".jsonl":
            return [without_varying(json.loads(line)) for line in output.read_text().splitlines()]
        case ".parquet":
            rows = pq.read_table(output).to_pylist()
        case ".arrow":
            rows = pa.ipc.open_stream(output.read_bytes()).read_all().to_pylist()
        case _:
            rows = [row for batch in read_parts(output) for row in batch.to_pylist()]
    return [without_varying({**row, "response": json.loads(row["response"] or "null")}) for row in rows]


def without_varying(value: Any) -> Any:
    """What a row or a body holds that tells runs apart only where they must not differ."""
    if isinstance(value, dict):
        return {key: without_varying(item) for key, item in value.items() if key not in VARYING}
    return [without_varying(item) for item in value] if isinstance(value, list) else value
