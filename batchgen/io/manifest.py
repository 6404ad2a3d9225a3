"""What an output folder says of itself: `.batchgen/manifest.json`. The format is told in docs/output-format.md."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson

from batchgen.errors import OutputMismatchError
from batchgen.io.durable import durable_file

__all__ = ["BOOKKEEPING", "FORMAT", "Manifest", "manifest_of", "manifest_path", "write_manifest"]

BOOKKEEPING = ".batchgen"
"""Folder of the manifest, the lock and rows that are in no part yet, within the output folder."""
FORMAT = 2
"""Version of the files and of this manifest."""


@dataclass(slots=True, kw_only=True)
class Manifest:
    """The state of an output. The files themselves say which rows they have; nothing here is needed to read them."""

    run_id: str
    created: int
    """Seconds since the epoch at the first start: the `created` of every response body, also after a resume."""
    settings: Mapping[str, Any]
    """What answers depend on, as far as it is known before the model is loaded."""
    layout: Mapping[str, Any]
    """How rows are laid out in files; may change between runs."""
    format: int = FORMAT
    engine: Mapping[str, Any] | None = None
    """What answers depend on beside `settings`, known once the model was loaded."""
    input: Mapping[str, Any] = field(default_factory=dict)
    """`file`; `identity`, which changes with the file, null where that can't be told; `model`, the name that its lines
    agree on, null where they don't or nobody asked; `rows`, null until they were counted."""
    finished: bool = False
    counts: Mapping[str, int] = field(default_factory=dict)
    """`rows`, `failed`, `retryable` (of the failed), `resumed` (of the rows); of the last run over the input so far."""
    files: list[dict[str, Any]] = field(default_factory=list)
    """`file`, `rows`, `failed`, `first_line`, `last_line`, `bytes` of each file of rows."""
    products: dict[str, str] = field(default_factory=dict)
    """Identities of what was made of the parts at the end: the single file, the error file."""
    updated: float = 0.0
    """Seconds since the epoch."""


def manifest_of(folder: Path) -> Manifest | None:
    """What the manifest of a folder says; None where there is none.

    Raises `OutputMismatchError` for one that this version can't read.
    """
    path = manifest_path(folder)
    if not path.is_file():
        return None
    advice = f"--overwrite replaces the results in {folder}, or name another output"
    try:
        said = orjson.loads(path.read_bytes())
        if said["format"] != FORMAT:
            raise OutputMismatchError(f"{path} has format {said['format']}, this version writes {FORMAT}; {advice}")
        return Manifest(**said)
    except (orjson.JSONDecodeError, TypeError, KeyError) as error:
        raise OutputMismatchError(f"{path} is not a manifest: {error}; {advice}") from error


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Replace the folder's manifest, in one step also if the machine stops."""
    manifest.updated = round(time.time(), 3)
    with durable_file(manifest_path(folder)) as file:
        file.write(orjson.dumps(asdict(manifest), option=orjson.OPT_INDENT_2))


def manifest_path(folder: Path) -> Path:
    """Where a folder's manifest is."""
    return folder / BOOKKEEPING / "manifest.json"
