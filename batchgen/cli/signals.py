"""What SIGINT and SIGTERM do to a command."""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType

__all__ = ["Signals", "leave_now"]

_GRACE_S = 2.5


class Signals:
    """The first signal unwinds the main thread like an error, so that everything closes on the way out; the process
    ends with 128 + its number, the shell's convention. A second one ends the process at once, and so does time: what
    can't be closed soon is found by the next run.
    """

    def __init__(self) -> None:
        self._number: int | None = None

    def install(self) -> None:
        """Hear signals from now on. An interrupt that the parent has ignored, as shells do for jobs in the background,
        stays ignored."""
        signal.signal(signal.SIGTERM, self._unwind)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._unwind)

    def leave(self) -> None:
        """After a signal, end without waiting for threads that still compute. Without one, do nothing."""
        if self._number is None:
            return
        leave_now(128 + self._number)

    def _unwind(self, number: int, _frame: FrameType | None) -> None:
        if self._number is not None:
            os._exit(128 + number)
        self._number = number
        last_resort = threading.Timer(_GRACE_S, os._exit, (128 + number,))
        last_resort.daemon = True
        last_resort.start()
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        sys.exit(128 + number)


def leave_now(code: int) -> None:
    """End the process without waiting for threads, in which native code may still run."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # nobody reads it any more
            continue
    os._exit(code)
