"""Files that appear whole or not at all, and names for their contents."""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import orjson

from batchgen.errors import ModelNotFoundError

__all__ = ["atomic_file", "cached", "cached_sha256", "file_sha256", "read_json"]

_log = logging.getLogger(__name__)


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


def cached(cache: Path, name: str, make: Callable[[], bytes]) -> Path:
    """The file `name` of a cache folder, made if it is not there.

    Where the folder can't be written, as on a read-only disk, it is made in a temporary folder for this process.
    """
    path = cache / name
    if path.is_file():
        return path
    content = make()
    try:
        with atomic_file(path) as file:
            file.write(content)
    except OSError as error:
        _log.warning("%s cannot be written, so it is made anew in every run: %s", path, error)
        temporary = Path(tempfile.mkdtemp(prefix="batchgen-"))
        atexit.register(shutil.rmtree, temporary, ignore_errors=True)
        path = temporary / path.name
        path.write_bytes(content)
    return path


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file of a checkpoint. Raises `ModelNotFoundError` where the file holds anything else."""
    try:
        value = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        raise ModelNotFoundError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelNotFoundError(f"{path} must hold a JSON object, found {type(value).__name__}")
    return value


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
    name = hashlib.sha256(os.fsencode(identity)).hexdigest()
    return cached(cache, f"sha256/{name}", lambda: file_sha256(path).encode("ascii")).read_text("ascii")
