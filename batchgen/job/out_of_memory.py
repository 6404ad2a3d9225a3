"""Memory that is full, told as what it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from batchgen.errors import OutOfResourcesError

__all__ = ["telling_memory_is_full"]


@contextmanager
def telling_memory_is_full(advice: str) -> Iterator[None]:
    """Raise `OutOfResourcesError` with the advice where the memory is full within the block."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not _says_memory_is_full(error):
            raise
        raise OutOfResourcesError(f"the memory is full ({error or 'an allocation failed'}); {advice}") from error


def _says_memory_is_full(error: Exception) -> bool:
    """Also in the words of torch, which has no exception of its own for it on the CPU."""
    said = str(error)
    return isinstance(error, MemoryError) or "allocate memory" in said or "out of memory" in said
