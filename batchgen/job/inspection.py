"""What came out of a job: rows, failures by code, lengths, timing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from batchgen.io.claim import kept_folder
from batchgen.io.figures import FIGURES, output_figures
from batchgen.job.status import last_progress

__all__ = ["inspect_output"]

_LENGTHS = ("prompt_tokens", "completion_tokens", "cached_tokens")
_QUANTILES = (0.5, 0.9, 0.99)


def inspect_output(output: Path) -> dict[str, Any]:
    """Figures of an output, finished or not. Memory grows by 12 bytes a row.

    Raises `UsageError` where there is none.
    """
    codes: Counter[str] = Counter()
    first_lines: dict[str, int | None] = {}
    reasons: Counter[str] = Counter()
    rows = 0
    lengths: list[pa.RecordBatch] = []
    for batch in output_figures(output):
        rows += batch.num_rows
        for code, line in zip(batch.column("code").to_pylist(), batch.column("line").to_pylist(), strict=True):
            if code is not None:
                codes[code] += 1
                first_lines.setdefault(code, line)
        reasons.update(reason for reason in batch.column("finish_reason").to_pylist() if reason is not None)
        lengths.append(batch.filter(pc.equal(batch.column("status_code"), 200)).select(list(_LENGTHS)))
    table = pa.Table.from_batches(lengths, pa.schema([FIGURES.field(name) for name in _LENGTHS]))
    failed = codes.total()
    return {
        "output": str(output),
        "rows": {"total": rows, "completed": rows - failed, "failed": failed},
        "failures": [
            {"code": code, "rows": count, "first_line": first_lines[code]} for code, count in codes.most_common()
        ],
        "finish_reasons": dict(reasons.most_common()),
        "lengths": {name: _spread(table.column(name)) for name in _LENGTHS},
        "timing": _timing(last_progress(kept_folder(output))),
    }


def _spread(column: pa.ChunkedArray) -> dict[str, float] | None:
    """None where no row has a value."""
    if len(column) == column.null_count:
        return None
    p50, p90, p99 = pc.quantile(column, list(_QUANTILES), interpolation="nearest").to_pylist()
    ends = pc.min_max(column).as_py()
    mean = round(pc.mean(column).as_py(), 1)
    total = pc.sum(column).as_py()
    return {"sum": total, "mean": mean, "min": ends["min"], "p50": p50, "p90": p90, "p99": p99, "max": ends["max"]}


def _timing(told: Mapping[str, Any] | None) -> dict[str, float] | None:
    """Of the last run that computed anything."""
    if told is None or not (seconds := told["progress"]["elapsed_s"]):
        return None
    progress = told["progress"]
    return {
        "generation_s": round(seconds, 3),
        "prompt_tokens_per_s": round(progress["prompt_tokens"] / seconds, 1),
        "output_tokens_per_s": round(progress["output_tokens"] / seconds, 1),
        "computed_tokens": progress["computed_tokens"],
        "preemptions": progress["preemptions"],
        "ended": told["updated"],
    }
