"""What `batchgen report` tells of an output: its rows, its runs, its settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Sequence as SequenceOf
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

from batchgen.io.claim import is_held, kept_folder
from batchgen.io.figures import DETAILS, output_figures
from batchgen.io.history import read_runs
from batchgen.io.manifest import Manifest, manifest_of
from batchgen.io.shards import shards_beside
from batchgen.job.gathering import row_figures
from batchgen.job.status import status_of
from batchgen.ui.report import Report

__all__ = ["report_of"]


def report_of(output: Path) -> Report:
    """Everything about an output, finished or not, or about the shards of one that is yet to be merged.

    Memory does not grow with the rows, but by a byte for each one of a folder. Raises `UsageError` where there is no
    output.
    """
    pieces = _pieces(output)
    folders = [kept_folder(piece) for piece in pieces]
    runs = list(chain.from_iterable(map(_runs, folders)))
    manifest = next((found for folder in folders if (found := manifest_of(folder)) is not None), None)
    status = status_of(output) if manifest is not None else None
    return Report(
        output=str(output),
        state=None if status is None else status["state"],
        rows_total=None if status is None else status["rows_total"],
        figures=row_figures(chain.from_iterable(output_figures(piece, DETAILS) for piece in pieces)),
        runs=runs,
        settings={heading: known for heading, values in _settings(manifest, runs) if (known := _known(values))},
    )


def _pieces(output: Path) -> list[Path]:
    """The output; where it is not there, its shards."""
    folder = kept_folder(output)
    if output.exists() or manifest_of(folder) is not None or is_held(folder):
        return [output]
    return [shard.path for shard in shards_beside(output)] or [output]


def _runs(folder: Path) -> Iterator[Mapping[str, Any]]:
    """The runs of a folder. One that says that it is running, while nobody writes there, was killed."""
    runs = read_runs(folder)
    at_work = len(runs) - 1 if is_held(folder) else None
    for number, run in enumerate(runs):
        yield {**run, "state": "killed"} if run["state"] == "running" and number != at_work else run


def _settings(
    manifest: Manifest | None, runs: SequenceOf[Mapping[str, Any]]
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    last: Mapping[str, Any] = runs[-1] if runs else {}
    if manifest is not None:
        created = datetime.fromtimestamp(manifest.created, UTC).isoformat(" ", "seconds")
        input_ = {name: manifest.input.get(name) for name in ("file", "rows", "line_format")}
        yield "Job", {"created": created, "run_id": manifest.run_id, **input_, **manifest.layout}
    yield "Engine", {**(manifest.engine or {} if manifest is not None else {}), **last.get("engine", {})}
    yield "Machine", last.get("machine", {})
    if manifest is not None:
        yield "Settings that answers depend on", manifest.settings


def _known(values: Mapping[str, Any]) -> dict[str, Any]:
    """Without what was left to its default of nothing."""
    return {name: value for name, value in values.items() if value is not None}
