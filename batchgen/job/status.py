"""How far a job is: running, stopped or finished, seen from outside."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from batchgen.errors import UsageError
from batchgen.io.claim import is_held, kept_folder
from batchgen.io.manifest import manifest_of
from batchgen.io.shards import shards_beside
from batchgen.job.progress_file import PROGRESS_FILE

__all__ = ["last_progress", "status_of"]

_SUMS = ("rows_total", "rows_done", "rows_failed", "rows_resumed", "rows_per_s", "output_tokens_per_s")


def status_of(output: Path) -> dict[str, Any]:
    """The state of an output, and of its shards where it has some. Nothing is locked or changed.

    Raises `UsageError` where there is no output.
    """
    folder = kept_folder(output)
    if manifest_of(folder) is None and not is_held(folder):
        if not (shards := shards_beside(output)):
            raise UsageError(f"{output}: there is no output of batchgen")
        return _together(output, shards[0].number, [_status_of_one(shard.path, shard.path) for shard in shards])
    return _status_of_one(output, folder)


def last_progress(folder: Path) -> Mapping[str, Any] | None:
    """What the last run told of itself: `stage`, `updated` and `progress`; None where there was none."""
    file = folder / PROGRESS_FILE
    return orjson.loads(file.read_bytes()) if file.is_file() else None


def _status_of_one(output: Path, folder: Path) -> dict[str, Any]:
    manifest, told, held = manifest_of(folder), last_progress(folder), is_held(folder)
    counts = {} if manifest is None else manifest.counts
    done, total = counts.get("rows", 0), None if manifest is None else manifest.input.get("rows")
    status: dict[str, Any] = {
        "output": str(output),
        "state": "running" if held else "finished" if manifest is not None and manifest.finished else "stopped",
        "stage": told["stage"] if held and told is not None else None,
        "rows_total": total,
        "rows_done": done,
        "rows_failed": counts.get("failed", 0),
        "rows_resumed": counts.get("resumed", 0),
        "updated": None if manifest is None else manifest.updated,
        "model": None if manifest is None else manifest.settings.get("model"),
        "rows_per_s": None,
        "output_tokens_per_s": None,
        "remaining_s": None,
    }
    if held and told is not None and (seconds := told["progress"]["elapsed_s"]):
        progress = told["progress"]
        done = max(done, progress["rows_done"])
        rate = (done - status["rows_resumed"]) / seconds
        status |= {
            "rows_done": done,
            "rows_failed": max(status["rows_failed"], progress["rows_failed"]),
            "updated": max(told["updated"], status["updated"] or 0.0),
            "rows_per_s": round(rate, 3),
            "output_tokens_per_s": round(progress["output_tokens"] / seconds, 1),
            "remaining_s": round((total - done) / rate, 1) if total is not None and rate > 0 else None,
        }
    return status


def _together(output: Path, number: int, shards: list[dict[str, Any]]) -> dict[str, Any]:
    states = {shard["state"] for shard in shards}
    if "running" in states:
        state = "running"
    else:
        state = "finished" if states == {"finished"} and len(shards) == number else "stopped"
    sums = {}
    for name in _SUMS:
        known = [shard[name] for shard in shards if shard[name] is not None]
        complete = len(known) == number if name == "rows_total" else known
        sums[name] = sum(known) if complete else None
    remaining = [shard["remaining_s"] for shard in shards if shard["remaining_s"] is not None]
    return {
        "output": str(output),
        "state": state,
        "num_shards": number,
        **sums,
        "updated": max((shard["updated"] or 0.0 for shard in shards), default=time.time()),
        "remaining_s": max(remaining, default=None),
        "shards": shards,
    }
