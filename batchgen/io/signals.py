"""Signals wait while files change."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["rearm", "uninterrupted"]

_WAITING = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold back what SIGINT, SIGTERM and SIGALRM do until the block is over; a second signal ends the process at once.

    Python runs handlers between any two instructions of the main thread, so an exception of theirs would leave a file
    half changed. In other threads, where handlers never run, this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []
    handlers = {number: signal.getsignal(number) for number in _WAITING}

    def hold(number: int, _frame: FrameType | None) -> None:
        if arrived:
            os._exit(128 + number)
        arrived.append(number)

    for number, handler in handlers.items():
        if callable(handler):
            signal.signal(number, hold)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            if callable(handler):
                signal.signal(number, handler)
        for late in arrived:
            signal.raise_signal(late)


def rearm() -> None:
    """Have Python hear signals again that a library's native code has taken for itself. For the main thread; in others
    this does nothing."""
    if threading.current_thread() is threading.main_thread():
        for number in _WAITING:
            handler = signal.getsignal(number)
            if callable(handler):
                signal.signal(number, handler)
