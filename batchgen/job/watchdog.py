"""Ends a job in which nothing moves any more, and says where it stood."""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from types import FrameType, TracebackType
from typing import Any, Self

from batchgen.errors import StalledError, UsageError

__all__ = ["Watchdog"]

_log = logging.getLogger(__name__)

_CHECKS = 20
"""How often a timeout's time is looked at within it."""


class _Stalled(BaseException):
    """Unwinds the main thread. No `Exception`: code that turns faults of foreign code into rows must not catch it."""


class Watchdog:
    """Ends the `with` block by `StalledError` when `alive` was not called for `timeout_s` seconds.

    First the state is logged: what `describe` says, and the stack of every thread. Then the main thread gets a signal
    whose handler unwinds it, so that finished rows are kept. If it does not come back, the process exits with the
    error's code; shards that were closed before are whole. If even this thread can't run because native code holds the
    interpreter's lock, a timer of `faulthandler` prints the stacks and exits with code 1.
    """

    def __init__(
        self, timeout_s: float | None, describe: Callable[[], Mapping[str, Any]], *, grace_s: float = 10.0
    ) -> None:
        """`timeout_s` None watches nothing. `grace_s`: for the main thread to leave what it hangs in.

        Raises `UsageError` outside the main thread, which signals go to.
        """
        if timeout_s is not None and threading.current_thread() is not threading.main_thread():
            raise UsageError("--stall-timeout works in the main thread only")
        self._timeout_s = timeout_s
        self._grace_s = grace_s
        self._describe = describe
        self._alive_at = 0.0
        self._fired = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="batchgen watchdog", daemon=True)
        self._before: Any = None

    def alive(self) -> None:
        """Something moved: a token was computed, or a row was finished."""
        self._alive_at = time.monotonic()

    def __enter__(self) -> Self:
        self.alive()
        if self._timeout_s is not None:
            self._before = signal.signal(signal.SIGALRM, _unwind)
            self._set_timer(self._timeout_s)
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._timeout_s is None:
            return
        self._over.set()
        self._thread.join()
        signal.signal(signal.SIGALRM, self._before)
        if self._fired and error is not None:
            raise StalledError(
                f"nothing moved for {self._timeout_s:g} s (--stall-timeout); finished rows are kept, and the same "
                "command goes on from there"
            ) from error

    def _watch(self) -> None:
        timeout_s = self._timeout_s
        assert timeout_s is not None
        while not self._over.wait(timeout_s / _CHECKS):
            self._set_timer(timeout_s)
            if time.monotonic() - self._alive_at >= timeout_s:
                self._end(timeout_s)
                break
        faulthandler.cancel_dump_traceback_later()

    def _set_timer(self, timeout_s: float) -> None:
        if sys.__stderr__ is not None:
            faulthandler.dump_traceback_later(timeout_s + self._grace_s, exit=True, file=sys.__stderr__)

    def _end(self, timeout_s: float) -> None:
        self._fired = True
        state = json.dumps(self._describe())
        _log.error("nothing moved for %g s, the job ends; state: %s; threads:\n%s", timeout_s, state, _stacks())
        main = threading.main_thread().ident
        assert main is not None
        signal.pthread_kill(main, signal.SIGALRM)
        if not self._over.wait(self._grace_s):
            _log.error("the main thread did not end within %g s; exit without it", self._grace_s)
            os._exit(StalledError.exit_code)


def _unwind(_number: int, _frame: FrameType | None) -> None:
    raise _Stalled


def _stacks() -> str:
    """The stack of every thread."""
    # faulthandler walks the frames without locks, but writes to a descriptor alone.
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file=file, all_threads=True)
        file.seek(0)
        return file.read()
