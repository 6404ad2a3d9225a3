"""Opening an input: a path, standard input or an fsspec address, packed or not."""

from __future__ import annotations

import io
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import IO, cast

from batchgen.errors import UsageError

__all__ = ["is_parquet", "is_stream", "open_binary"]


def is_stream(source: str) -> bool:
    """Whether the source can be read only once."""
    return source == "-"


def is_parquet(source: str) -> bool:
    """Whether the name says Parquet."""
    return source.endswith((".parquet", ".pq"))


def open_binary(source: str) -> AbstractContextManager[IO[bytes]]:
    """The source's bytes, unpacked where the name ends in .gz or .zst. Raises `UsageError` naming it."""
    if is_stream(source):
        return nullcontext(cast("IO[bytes]", sys.stdin.buffer))
    import fsspec

    compression = "gzip" if source.endswith(".gz") else "zstd" if source.endswith(".zst") else None
    try:
        if "://" not in source and compression is None:
            return Path(source).open("rb")
        if compression == "zstd":
            import zstandard

            packed = fsspec.open(source, "rb").open()
            # Frames that were appended to one another are one file, as the zstd tool has it.
            reader = zstandard.ZstdDecompressor().stream_reader(packed, read_across_frames=True, closefd=True)
            return cast("IO[bytes]", io.BufferedReader(cast("io.RawIOBase", reader)))
        return cast("IO[bytes]", fsspec.open(source, "rb", compression=compression).open())
    except (OSError, ValueError, ImportError) as error:
        raise UsageError(f"input {source}: cannot be read: {error}") from error
