"""The watchdog against real hangs: in Python, in a system call, in native code with and without the interpreter."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

from batchgen.errors import StalledError, UsageError
from batchgen.job.watchdog import Watchdog

PROGRAM = """
import ctypes
from batchgen.job.watchdog import Watchdog

mutex = ctypes.create_string_buffer(64)  # zeros are a mutex that is open
lock = ctypes.LIBRARY(None).pthread_mutex_lock

def hang_here():
    lock(mutex)
    lock(mutex)  # a second time: waits for ever, signals or not

with Watchdog(0.2, lambda: {"running": 7}, grace_s=0.2):
    hang_here()
"""


def state() -> dict[str, int]:
    return {"running": 7}


def spin() -> None:
    while True:
        pass


def wait_for_a_lock() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def spin_where_exceptions_become_rows() -> None:
    try:
        spin()
    except Exception:  # noqa: BLE001 - as around a template
        spin()


@pytest.mark.parametrize("hang", [spin, lambda: time.sleep(3600), wait_for_a_lock, spin_where_exceptions_become_rows])
def test_a_hang_ends_with_the_state_and_all_stacks(hang: Callable[[], None], caplog: pytest.LogCaptureFixture) -> None:
    before = signal.getsignal(signal.SIGALRM)
    with caplog.at_level(logging.ERROR), pytest.raises(StalledError, match="--stall-timeout"), Watchdog(0.1, state):
        hang()
    assert StalledError.exit_code == 124
    assert '{"running": 7}' in caplog.messages[0]
    assert "test_watchdog.py" in caplog.messages[0]  # this frame, of the main thread
    assert "in _watch" in caplog.messages[0]  # and another thread's
    assert signal.getsignal(signal.SIGALRM) is before


def test_what_moves_is_left_alone_however_long_it_takes() -> None:
    began = time.monotonic()
    with Watchdog(2.0, state) as watchdog:
        while time.monotonic() - began < 2.5:
            watchdog.alive()


def test_another_error_passes() -> None:
    with pytest.raises(KeyError), Watchdog(60, state):
        raise KeyError("odd")


def test_only_the_main_thread_can_be_watched() -> None:
    refused = []

    def try_it() -> None:
        try:
            Watchdog(1, state)
        except UsageError as error:
            refused.append(error)

    thread = threading.Thread(target=try_it)
    thread.start()
    thread.join()
    assert len(refused) == 1


@pytest.mark.parametrize(("library", "code", "words"), [("CDLL", 124, "did not end"), ("PyDLL", 1, "Timeout")])
def test_native_code_that_never_returns(library: str, code: int, words: str) -> None:
    """CDLL gives the interpreter's lock back during the call, PyDLL holds it."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.replace("LIBRARY", library)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == code
    assert words in done.stderr
    assert "in hang_here" in done.stderr
