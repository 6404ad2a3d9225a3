"""Opening an input: a path, standard input or an fsspec address, packed or not."""

from __future__ import annotations

import gzip
import io
import sys
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, cast

from batchgen.errors import UsageError
from batchgen.io.durable import identity_of

__all__ = ["first_bytes_of_stream", "is_stream", "open_binary", "source_identity"]

_BUFFER = 1 << 20
_PACKED_PIECE = 4096
"""Bytes unpacked at a time: a block of zstd can grow 30,000-fold, and this bounds what it may fill."""


def is_stream(source: str) -> bool:
    """Whether the source can be read only once."""
    return source == "-"


@contextmanager
def open_binary(source: str) -> Iterator[IO[bytes]]:
    """The source's bytes, unpacked where the name ends in .gz or .zst.

    Raises `UsageError` naming the source where it can't be opened, or within the context where it can't be read on.
    """
    try:
        with ExitStack() as opened:
            file = _open(source, opened)
            if source.endswith(".gz"):
                file = io.BufferedReader(opened.enter_context(gzip.GzipFile(fileobj=file)), _BUFFER)
            elif source.endswith(".zst"):
                file = io.BufferedReader(_ZstdFile(file), _BUFFER)
            yield file
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"input {source}: cannot be read: {error}") from error


def source_identity(source: str) -> str | None:
    """What changes whenever the source does; None where that can't be told."""
    if is_stream(source):
        return None
    if "://" not in source:
        return identity_of(Path(source)) if Path(source).is_file() else None
    try:
        import fsspec

        filesystem, path = fsspec.url_to_fs(source)
        return str(filesystem.ukey(path))
    except Exception:  # noqa: BLE001 - storage clients have exceptions of their own; the reader will say what is wrong
        return None


def first_bytes_of_stream() -> bytes:
    """What standard input has ready, a few KiB, without taking it away."""
    return cast("io.BufferedReader", sys.stdin.buffer).peek()


def _open(source: str, opened: ExitStack) -> IO[bytes]:
    if is_stream(source):
        return sys.stdin.buffer
    if "://" not in source:
        return opened.enter_context(Path(source).open("rb", buffering=_BUFFER))
    try:
        import fsspec

        file = opened.enter_context(fsspec.open(source, "rb").open())
        # Files of many storages read lines without a bound.
        return io.BufferedReader(file, _BUFFER)
    except Exception as error:
        # Storage clients have exceptions of their own for a bucket that isn't there or a key that doesn't fit.
        raise UsageError(f"input {source}: cannot be opened: {error}") from error


class _ZstdFile(io.RawIOBase):
    """Unpacks the frames of a zstd file, one after another. Unlike the package's own reader it does not take a file
    that breaks off within a frame for a whole one."""

    def __init__(self, packed: IO[bytes]) -> None:
        import zstandard

        self._packed = packed
        self._new_frame = zstandard.ZstdDecompressor().decompressobj
        self._error = zstandard.ZstdError
        self._frame = self._new_frame()
        self._within_frame = False
        self._unpacked = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._unpacked:
            rest = self._frame.unused_data
            if self._frame.eof:
                self._frame, self._within_frame = self._new_frame(), False
            piece = rest or self._packed.read(_PACKED_PIECE)
            if not piece:
                if self._within_frame:
                    raise EOFError("the file ends within a zstd frame")
                return 0
            self._within_frame = True
            try:
                self._unpacked = memoryview(self._frame.decompress(piece))
            except self._error as error:
                raise OSError(str(error)) from error
        count = min(len(buffer), len(self._unpacked))
        buffer[:count] = self._unpacked[:count]
        self._unpacked = self._unpacked[count:]
        return count
