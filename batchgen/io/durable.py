"""Files that are there whole or not at all, also after a crash."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from batchgen.errors import OutOfResourcesError, UsageError

__all__ = ["durable_file", "identity_of", "sync_folder", "temporary_of", "writing"]


@contextmanager
def durable_file(path: Path) -> Iterator[IO[bytes]]:
    """Write a file under a temporary name; at the end flush it to disk and rename it. On an error nothing is left."""
    temporary = temporary_of(path)
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def temporary_of(path: Path) -> Path:
    """Where `durable_file` writes before the file is whole."""
    return path.with_name(f".{path.name}.tmp")


@contextmanager
def writing(output: Path) -> Iterator[None]:
    """Say what a failed write to `output` means for the job."""
    try:
        yield
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
            message = (
                f"{output}: the disk is full ({error.strerror}); finished rows are kept. Free some space, then the "
                "same command goes on"
            )
            raise OutOfResourcesError(message) from error
        raise UsageError(f"{output}: cannot be written: {error}") from error


def identity_of(path: Path) -> str:
    """What changes whenever a file does: its size, inode, and times of change to the nanosecond."""
    state = path.stat()
    return f"{state.st_size} {state.st_ino} {state.st_mtime_ns} {state.st_ctime_ns}"


def sync_folder(folder: Path) -> None:
    """Make renames within a folder safe."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
