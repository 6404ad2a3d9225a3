"""Files that appear whole or not at all, and names for their contents."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import orjson

from batchgen.errors import ModelNotFoundError

__all__ = ["atomic_file", "cached_sha256", "file_sha256", "read_json", "write_json"]


@contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """A file to write that takes the name `path` when the block ends, replacing what is there.

    Readers, and writers of the same file, see all of it or nothing. An exception leaves no trace.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        temporary = Path(file.name)
        try:
            yield file
            file.flush()
            os.fsync(file.fileno())
            temporary.chmod(0o644)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file of a checkpoint. Raises `ModelNotFoundError` where the file holds anything else."""
    try:
        value = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        raise ModelNotFoundError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelNotFoundError(f"{path} must hold a JSON object, found {type(value).__name__}")
    return value


def write_json(path: Path, value: object) -> None:
    """Write `value` as JSON, atomically. Dataclasses become objects."""
    with atomic_file(path) as file:
        file.write(orjson.dumps(value))


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's contents in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def cached_sha256(path: Path, cache: Path) -> str:
    """`file_sha256`, computed once per state of the file: place, size, inode and time of change to the nanosecond.

    The answers are kept in the folder `cache`. Saves seconds at each start with a model of some gigabytes.
    """
    path = path.resolve()
    state = path.stat()
    identity = f"{path}\0{state.st_size}\0{state.st_ino}\0{state.st_mtime_ns}\0{state.st_ctime_ns}"
    entry = cache / "sha256" / hashlib.sha256(os.fsencode(identity)).hexdigest()
    if entry.is_file():
        return entry.read_text("ascii")
    digest = file_sha256(path)
    with atomic_file(entry) as file:
        file.write(digest.encode("ascii"))
    return digest
