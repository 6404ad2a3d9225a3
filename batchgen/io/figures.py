"""What can be counted and read of an output: one small table for each piece of it, whatever form it has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from batchgen.errors import UsageError
from batchgen.io.claim import kept_folder
from batchgen.io.result_file import open_results
from batchgen.io.sources import result_files

__all__ = ["DETAILS", "FIGURES", "output_figures"]

FIGURES = pa.schema(
    [
        ("line", pa.int64()),
        ("status_code", pa.int32()),
        ("code", pa.string()),
        ("finish_reason", pa.string()),
        ("prompt_tokens", pa.int32()),
        ("completion_tokens", pa.int32()),
        ("cached_tokens", pa.int32()),
    ]
)
"""What can be counted. `code` is the error's; `line` is null in JSON lines, which do not tell it."""
DETAILS = pa.schema([*FIGURES, ("custom_id", pa.string()), ("text", pa.string()), ("message", pa.string())])
"""With what can be read: `text` is the first choice's, `message` the error's."""
_ROWS = 4096


def output_figures(output: Path, columns: pa.Schema = FIGURES) -> Iterator[pa.RecordBatch]:
    """`FIGURES` or `DETAILS` of all rows that an output has now, each once.

    Raises `UsageError` where there is no output.
    """
    folder = kept_folder(output)
    if output.is_file():
        yield from _of_file(output, columns)
    elif folder.is_dir() and result_files(folder):
        yield from _each_once(_of_folder(folder, columns))
    else:
        raise UsageError(f"{output}: there are no results of batchgen")


def _of_file(path: Path, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
    try:
        if path.suffix == ".jsonl":
            with path.open("rb") as lines:
                while some := list(islice(lines, _ROWS)):
                    yield pa.RecordBatch.from_pylist([_of_line(orjson.loads(line)) for line in some], columns)
        elif path.suffix == ".parquet":
            import pyarrow.parquet as pq

            names = [name for name in columns.names if name not in _OF_ERROR]
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(_ROWS, columns=[*names, "error"]):
                    yield _of_batch(batch, columns)
        else:
            with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as stream:
                for batch in stream:
                    yield _of_batch(batch, columns)
    except (pa.ArrowException, orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path}: is no result of batchgen: {error}") from error


def _of_folder(folder: Path, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Batches of all files, some rows twice. A run may be at work: a file that is gone has its rows in a new part."""
    read: set[Path] = set()
    while fresh := [path for path in result_files(folder) if path not in read]:
        for path in fresh:
            read.add(path)
            try:
                with open_results(path) as file:
                    for batch in file.batches:
                        yield _of_batch(batch, columns)
            except FileNotFoundError:
                break


_OF_ERROR = frozenset({"code", "message"})


def _of_batch(batch: pa.RecordBatch, columns: pa.Schema) -> pa.RecordBatch:
    error = batch.column("error")
    arrays = [pc.struct_field(error, name) if name in _OF_ERROR else batch.column(name) for name in columns.names]
    return pa.record_batch(arrays, columns)


def _of_line(line: dict[str, Any]) -> dict[str, Any]:
    """A line in the shape of OpenAI, of vLLM or of Anthropic."""
    if "result" in line:
        message = line["result"].get("message") or {}
        error = (line["result"].get("error") or {}).get("error") or {}
        usage, reason = message.get("usage") or {}, message.get("stop_reason")
        text = next((block["text"] for block in message.get("content") or () if block.get("type") == "text"), None)
        status = 200 if message else 400
    else:
        response = line["response"] or {}
        body = response.get("body") or {}
        error = line["error"] or body.get("error") or {}
        usage = body.get("usage") or {}
        choice: dict[str, Any] = next(iter(body.get("choices") or ()), {})
        reason, text = choice.get("finish_reason"), choice.get("text", (choice.get("message") or {}).get("content"))
        status = response.get("status_code", 422)
    failed = status != 200
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", usage.get("cache_read_input_tokens"))
    return {
        "status_code": status,
        "code": str(error.get("code") or error.get("type")) if failed else None,
        "finish_reason": reason,
        "prompt_tokens": usage.get("prompt_tokens", usage.get("input_tokens")),
        "completion_tokens": usage.get("completion_tokens", usage.get("output_tokens")),
        "cached_tokens": cached,
        "custom_id": line.get("custom_id"),
        "text": text,
        "message": error.get("message") if failed else None,
    }


def _each_once(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows by their line: until an output is finished, a row may stand in two files. A byte for each line is kept."""
    seen = np.zeros(1 << 16, dtype=np.bool_)
    for batch in batches:
        lines = batch.column("line").to_numpy()
        if len(lines) and lines.max() >= len(seen):
            seen = np.concatenate([seen, np.zeros(lines.max(), dtype=np.bool_)])
        _, firsts = np.unique(lines, return_index=True)
        new = np.zeros(len(lines), dtype=np.bool_)
        new[firsts] = ~seen[lines[firsts]]
        seen[lines] = True
        yield batch if new.all() else batch.filter(pa.array(new))
