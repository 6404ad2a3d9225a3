"""Files that are there whole or not at all, also after a crash."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from batchgen.errors import BatchgenError, OutOfResourcesError, UsageError

__all__ = ["durable_file", "output_error"]


@contextmanager
def durable_file(path: Path) -> Iterator[IO[bytes]]:
    """Write a file under a temporary name; at the end flush it to disk and rename it. On an error nothing is left."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def output_error(path: Path, error: OSError) -> BatchgenError:
    """What a failed write means for the job."""
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return OutOfResourcesError(f"{path}: the disk is full; finished shards are kept. Free some space")
    return UsageError(f"{path}: cannot be written: {error}")


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
