"""What the runs of an output told of themselves: a file for each run under its `.batchgen/`."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from batchgen.io.durable import durable_file
from batchgen.io.manifest import BOOKKEEPING

__all__ = ["RUN_FILE", "next_run_file", "read_runs", "run_files", "write_run"]

RUN_FILE = f"{BOOKKEEPING}/run-{{:05d}}.json"
_KEPT = 64
"""Runs of which something is kept: an output that is run again every night must not grow for ever."""
_NUMBER = re.compile(r"run-(\d{5,})\.json")
_logger = logging.getLogger(__name__)


def run_files(folder: Path) -> list[Path]:
    """The files of all runs, in order."""
    paths = (folder / BOOKKEEPING).glob("run-*.json")
    return sorted((path for path in paths if _NUMBER.fullmatch(path.name)), key=_number)


def next_run_file(folder: Path) -> Path:
    """A name for one more run; of many the oldest are deleted."""
    there = run_files(folder)
    for path in there[: max(0, len(there) - _KEPT + 1)]:
        path.unlink()
    return folder / RUN_FILE.format(_number(there[-1]) + 1 if there else 0)


def write_run(path: Path, run: Mapping[str, Any]) -> None:
    """Replace the file, in one step also if the machine stops."""
    with durable_file(path) as file:
        file.write(orjson.dumps(run))


def read_runs(folder: Path) -> list[dict[str, Any]]:
    """What can be read of all runs, in order. A damaged file is logged and left out."""
    runs = []
    for path in run_files(folder):
        try:
            runs.append(orjson.loads(path.read_bytes()))
        except (OSError, orjson.JSONDecodeError) as error:
            _logger.warning("%s cannot be read, so that run is left out: %s", path, error)
    return runs


def _number(path: Path) -> int:
    return int(path.stem.removeprefix("run-"))
