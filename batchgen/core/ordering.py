"""In which order sequences are begun, and which one gives way. Pure functions."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf

from batchgen.core.sequence import Sequence

__all__ = ["offline_order", "victim"]


def offline_order(window: Iterable[Sequence]) -> list[Sequence]:
    """Depth-first order over the prefix tree of a window: those that share a beginning follow one another.

    Sorting by token ids is a walk over that tree, so that a shared block is used by all its users before others need
    its place. Equal prompts keep their order of arrival; apart from that the order of arrival has no influence.
    """
    return sorted(window, key=lambda sequence: (_sortable(sequence.prompt), sequence.seq_id))


def victim(running: SequenceOf[Sequence]) -> Sequence:
    """The running sequence to preempt: the one admitted last, which has the least work to lose."""
    return running[-1]


def _sortable(tokens: SequenceOf[int]) -> bytes:
    """Bytes that compare as the token ids do: fixed width, most significant byte first."""
    packed = array("I", tokens)
    if sys.byteorder == "little":
        packed.byteswap()
    return packed.tobytes()
