"""Exit codes, in this process and as a real program with signals and closed pipes."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from batchgen.errors import (
    BatchgenError,
    InvalidInputError,
    ModelNotFoundError,
    OutOfResourcesError,
    OutputLockedError,
    StalledError,
    UnsupportedModelError,
)
from tests.cli.conftest import Invoke, StubJob, StubSummary

PROGRAM = """
import signal, sys, time, types

# A shell starts background jobs with this signal ignored, and children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

class Summary:
    exit_code = 0
    def to_json(self):
        return {"status": "completed"}

def run_job(config, home, reporter, crew):
    BODY
    return Summary()

sys.modules["batchgen.job"] = types.SimpleNamespace(run_job=run_job)
from batchgen.cli.main import main
main()
"""


def program(body: str, *arguments: str) -> list[str]:
    """A command that runs `batchgen run-batch` with a job of this body."""
    return [sys.executable, "-c", PROGRAM.replace("BODY", body), "run-batch", "x.jsonl", *arguments]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ModelNotFoundError, 2),
        (UnsupportedModelError, 2),
        (InvalidInputError, 4),
        (OutOfResourcesError, 5),
        (OutputLockedError, 75),
        (StalledError, 124),
        (BatchgenError, 1),
    ],
)
def test_an_error_ends_with_its_code_and_a_plain_message(
    invoke: Invoke, job: StubJob, error: type[BatchgenError], code: int
) -> None:
    def fail() -> StubSummary:
        raise error("x.jsonl, line 3: [odd] markup; write 7 instead")

    job.act = fail
    result = invoke("run-batch", "x.jsonl")
    assert result.exit_code == code
    summary = json.loads(result.stdout)
    assert (summary["status"], summary["exit_code"]) == ("stalled" if code == 124 else "failed", code)
    assert summary["error"] == "x.jsonl, line 3: [odd] markup; write 7 instead"
    assert summary["request_counts"] == {"total": 2, "completed": 2, "failed": 0}
    assert result.stderr.splitlines()[-1].endswith("error: x.jsonl, line 3: [odd] markup; write 7 instead")
    assert "Traceback" not in result.stderr
    assert "Traceback" in invoke("run-batch", "x.jsonl", "--log-level", "debug").stderr


def test_the_summary_has_the_last_word(invoke: Invoke, job: StubJob) -> None:
    job.act = lambda: StubSummary(exit_code=3)
    result = invoke("run-batch", "x.jsonl")
    assert result.exit_code == 3
    assert json.loads(result.stdout)["exit_code"] == 3


def test_an_error_before_the_job_is_plain_as_well(tmp_path: Path) -> None:
    done = subprocess.run(
        program("pass", "--config", str(tmp_path / "none.yaml")), capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: --config ")


def test_a_bug_shows_its_traceback_and_what_to_do() -> None:
    done = subprocess.run(program("raise KeyError('odd')"), capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "KeyError: 'odd'" in done.stderr
    assert "Please report it" in done.stderr.splitlines()[-1]
    assert (json.loads(done.stdout)["status"], json.loads(done.stdout)["exit_code"]) == ("failed", 1)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_unwinds_and_ends_with_its_code(number: signal.Signals, code: int) -> None:
    body = """
    try:
        print("ready", flush=True)
        time.sleep(60)
    finally:
        print("unwound", flush=True)
"""
    with subprocess.Popen(program(body), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "ready\n"
        running.send_signal(number)
        out, err = running.communicate(timeout=30)
    assert running.returncode == code
    unwound, summary = out.splitlines()
    assert unwound == "unwound"
    assert (json.loads(summary)["status"], json.loads(summary)["exit_code"]) == ("interrupted", code)
    assert "Traceback" not in err


def test_a_stall_ends_the_process_although_a_thread_hangs() -> None:
    body = """
    import threading
    from batchgen.errors import StalledError
    threading.Thread(target=threading.Event().wait).start()  # Python would wait for it
    raise StalledError("nothing moved")
"""
    done = subprocess.run(program(body), capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 124
    assert (json.loads(done.stdout)["status"], json.loads(done.stdout)["exit_code"]) == ("stalled", 124)


def run_without_reader(command: list[str]) -> tuple[int, str]:
    """Exit code and standard error of a program that waits for a line before it writes to a closed pipe."""
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        running.stdout.close()
        running.stdout = None
        _, err = running.communicate("go on\n", timeout=30)
    return running.returncode, err


def test_a_finished_job_whose_reader_left_is_a_finished_job() -> None:
    assert run_without_reader(program("sys.stdin.readline()")) == (0, "")


def test_results_whose_reader_left_end_the_job_quietly() -> None:
    command = program("sys.stdin.readline(); sys.stdout.write('x' * 100_000); sys.stdout.flush()", "-o", "-")
    assert run_without_reader(command) == (141, "")


def test_the_files_are_written_however_the_job_ends(tmp_path: Path) -> None:
    summary, metrics = tmp_path / "summary.json", tmp_path / "metrics.json"
    files = ("--summary-file", str(summary), "--metrics-file", str(metrics))
    for body, code, status in (("pass", 0, "completed"), ("raise KeyError('odd')", 1, "failed")):
        done = subprocess.run(program(body, *files), capture_output=True, text=True, check=False)
        assert done.returncode == code
        assert summary.read_text() == done.stdout
        assert (json.loads(done.stdout)["status"], json.loads(metrics.read_text())["exit_code"]) == (status, code)


def test_another_broken_pipe_is_an_error() -> None:
    done = subprocess.run(program("raise BrokenPipeError('odd')"), capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.endswith("error: a pipe or a connection broke: odd\n")


def on_terminal(body: str, **environment: str) -> str:
    """What the program shows on a terminal of 80 columns."""
    parent, child = pty.openpty()
    inherited = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    env = inherited | {"TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"} | environment
    with subprocess.Popen(program(body), stdout=subprocess.DEVNULL, stderr=child, env=env) as running:
        os.close(child)
        shown = b""
        while True:
            try:
                chunk = os.read(parent, 65536)
            except OSError:  # how a pseudo-terminal says that the other side has closed
                break
            if not chunk:
                break
            shown += chunk
    os.close(parent)
    assert running.returncode == 0
    return shown.decode()


SHOW = """
    from batchgen.progress import Progress
    reporter.stage("generating")
    reporter.update(Progress(rows_total=4, rows_done=2, running=1, waiting=1, kv_used=0.5, elapsed_s=1.0))
"""


def test_a_terminal_gets_the_live_display() -> None:
    shown = on_terminal(SHOW)
    assert "2/4 rows (50%)" in shown
    assert "running 1 waiting 1 | KV 50%" in shown
    assert "\x1b[?25l" in shown  # the cursor is hidden
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")  # and shown again


def test_no_color_and_dumb_terminals_are_honoured() -> None:
    assert not re.search(r"\x1b\[[0-9;]*[34][0-9]", on_terminal(SHOW, NO_COLOR="1"))
    dumb = on_terminal(SHOW, TERM="dumb")
    assert "\x1b" not in dumb
    assert "2/4 rows (50%)" in dumb
