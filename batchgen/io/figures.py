"""What can be counted of an output: one small table of figures for each piece of it, whatever form it has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from batchgen.errors import UsageError
from batchgen.io.claim import kept_folder
from batchgen.io.result_file import open_results
from batchgen.io.sources import result_files

__all__ = ["FIGURES", "output_figures"]

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
"""Columns of the tables. `code` is the error's; `line` is null in JSON lines, which do not tell it."""
_ROWS = 4096


def output_figures(output: Path) -> Iterator[pa.RecordBatch]:
    """The figures of all rows that an output has now, each once. Raises `UsageError` where there is no output."""
    folder = kept_folder(output)
    if output.is_file():
        yield from _of_file(output)
    elif files := result_files(folder) if folder.is_dir() else []:
        yield from _each_once(batch for path in files for batch in _of_results(path))
    else:
        raise UsageError(f"{output}: there are no results of batchgen")


def _of_file(path: Path) -> Iterator[pa.RecordBatch]:
    try:
        if path.suffix == ".jsonl":
            with path.open("rb") as lines:
                while some := list(islice(lines, _ROWS)):
                    yield pa.RecordBatch.from_pylist([_of_line(orjson.loads(line)) for line in some], FIGURES)
        elif path.suffix == ".parquet":
            import pyarrow.parquet as pq

            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(_ROWS, columns=[*_OWN, "error"]):
                    yield _of_batch(batch)
        else:
            with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as stream:
                yield from map(_of_batch, stream)
    except (pa.ArrowException, orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path}: is no result of batchgen: {error}") from error


def _of_results(path: Path) -> Iterator[pa.RecordBatch]:
    with open_results(path) as file:
        yield from map(_of_batch, file.batches)


_OWN = tuple(name for name in FIGURES.names if name != "code")


def _of_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    code = pc.struct_field(batch.column("error"), "code")
    return pa.record_batch([code if name == "code" else batch.column(name) for name in FIGURES.names], FIGURES)


def _of_line(line: dict[str, Any]) -> dict[str, Any]:
    """A line in the shape of OpenAI, of vLLM or of Anthropic."""
    if "result" in line:
        message = line["result"].get("message") or {}
        error = (line["result"].get("error") or {}).get("error") or {}
        usage, reason = message.get("usage") or {}, message.get("stop_reason")
        status = 200 if message else 400
    else:
        response = line["response"] or {}
        body = response.get("body") or {}
        error = line["error"] or body.get("error") or {}
        usage = body.get("usage") or {}
        reason = next((choice.get("finish_reason") for choice in body.get("choices") or ()), None)
        status = response.get("status_code", 422)
    code = None if status == 200 else str(error.get("code") or error.get("type"))
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", usage.get("cache_read_input_tokens"))
    return {
        "status_code": status,
        "code": code,
        "finish_reason": reason,
        "prompt_tokens": usage.get("prompt_tokens", usage.get("input_tokens")),
        "completion_tokens": usage.get("completion_tokens", usage.get("output_tokens")),
        "cached_tokens": cached,
    }


def _each_once(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows by their line: until an output is finished, a row may stand in two files."""
    seen: set[int] = set()
    for batch in batches:
        lines = batch.column("line").to_pylist()
        new = [line not in seen for line in lines]
        seen.update(lines)
        yield batch if all(new) else batch.filter(pa.array(new, pa.bool_()))
