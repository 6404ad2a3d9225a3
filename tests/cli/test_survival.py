"""The real program against signals, kills, full disks and a second run."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from batchgen.io.manifest import manifest_of
from tests import crash
from tests.memory import peak_mib

SLOW_CALL = "hashlib.pbkdf2_hmac('sha256', b'', b'', 2_000_000_000)"
"""Native code that lets other threads run and hears no signal, for minutes."""

PROGRAM = """
import hashlib, itertools, signal, sys, time
# A shell starts background jobs with this signal ignored, and children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
import batchgen.cli.signals
batchgen.cli.signals._GRACE_S = 600  # nothing here is to end by the last resort
BODY
from batchgen.cli.main import main
main()
"""

IN_LOAD = f"""
import batchgen.job.loading
def load_runner(*_):
    print("here", flush=True)
    {SLOW_CALL}
batchgen.job.loading.load_runner = load_runner
"""

IN_STEP = f"""
from batchgen.model.runner import Runner
begin, steps = Runner.begin, itertools.count()
def slow(self, plan):
    if next(steps) == 12:
        print("here", flush=True)
        {SLOW_CALL}
    return begin(self, plan)
Runner.begin = slow
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("in") / "in.jsonl"
    crash.write_requests(path, 100)
    return path


@pytest.fixture
def command(tiny_model: Path, source: Path) -> Callable[..., list[str]]:
    """A command line that runs the tiny model over `source` into an output."""

    def make(output: Path, *more: str, body: str = "") -> list[str]:
        settings = "--max-model-len 64 --kv-cache-memory 4MiB --threads 1 --max-num-seqs 8 --window 16"
        given = ["run-batch", str(source), "-o", str(output), "--model", str(tiny_model), *settings.split(), *more]
        return [sys.executable, "-c", PROGRAM.replace("BODY", body), *given]

    return make


def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, **options)


@pytest.mark.parametrize(
    ("body", "number", "code"),
    [(IN_LOAD, signal.SIGTERM, 143), (IN_STEP, signal.SIGINT, 130)],
    ids=["load", "step"],
)
def test_a_signal_is_heard_within_native_code(
    command: Callable[..., list[str]], tmp_path: Path, body: str, number: signal.Signals, code: int
) -> None:
    with subprocess.Popen(
        command(tmp_path / "out", body=body), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "here\n"
        running.send_signal(number)
        out, err = running.communicate(timeout=60)
    assert running.returncode == code, err
    assert json.loads(out.splitlines()[-1])["status"] == "interrupted"
    said = manifest_of(tmp_path / "out")
    assert said is not None
    assert (said.counts["rows"] > 0) == (body is IN_STEP)
    assert crash.stored_rows(tmp_path / "out") == said.counts["rows"]
    assert not list((tmp_path / "out").rglob("*.tmp"))


def test_a_second_interrupt_ends_at_once(command: Callable[..., list[str]], tmp_path: Path) -> None:
    body = (
        """
from batchgen.io.store import Store
def stop(self):
    print("closing", flush=True)
    time.sleep(600)
Store.stop = stop
"""
        + IN_STEP
    )
    with subprocess.Popen(
        command(tmp_path / "out", body=body), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "here\n"
        running.send_signal(signal.SIGINT)
        assert running.stdout.readline() == "closing\n"
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=60)
    assert running.returncode == 130


def test_a_second_run_is_refused_before_anything_is_loaded(command: Callable[..., list[str]], tmp_path: Path) -> None:
    with subprocess.Popen(
        command(tmp_path / "out", body=IN_LOAD), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "here\n"
        second = run(command(tmp_path / "out", body="sys.modules['torch'] = None"))
        first.kill()
    assert second.returncode == 75
    assert "another run is writing there" in second.stderr


def test_a_finished_output_needs_no_torch(command: Callable[..., list[str]], tmp_path: Path) -> None:
    first = run(command(tmp_path / "out"))
    assert first.returncode == 0, first.stderr
    without = "for name in ('torch', 'transformers', 'tokenizers', 'datasets'):\n    sys.modules[name] = None"
    again = run(command(tmp_path / "out", body=without))
    assert again.returncode == 0, again.stderr
    before, after = (json.loads(done.stdout.splitlines()[-1])["request_counts"] for done in (first, again))
    assert after == {**before, "resumed": before["total"]}


@contextmanager
def small_disk(folder: Path, size: int) -> Iterator[dict[str, Any]]:
    """Options of a subprocess for which `folder` fills up: a small file system where this process may mount one, else
    a limit on the size of its files."""
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode == 0:
        try:
            yield {}
        finally:
            subprocess.run(["umount", str(folder)], check=True)
        return

    def limit() -> None:
        # Without the signal a write fails with an error.
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, resource.RLIM_INFINITY))

    yield {"preexec_fn": limit}


def test_a_full_disk_keeps_what_was_finished(command: Callable[..., list[str]], tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 64 << 10) as options:
        target = tmp_path / "disk" / "out"
        full = run(command(target, "--rows-per-shard", "10"), **options)
        assert full.returncode == 5, full.stderr
        assert "the disk is full" in full.stderr.splitlines()[-1]
        assert "the same command goes on" in full.stderr.splitlines()[-1]
        assert json.loads(full.stdout.splitlines()[-1])["exit_code"] == 5
        kept = crash.stored_rows(target)
        assert kept >= 10
        roomy = tmp_path / "roomy"
        subprocess.run(["cp", "-a", str(tmp_path / "disk"), str(roomy)], check=True)
    done = run(command(roomy / "out"))
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout.splitlines()[-1])["request_counts"]
    assert counts["resumed"] == kept
    assert counts["total"] == 105


def test_a_folder_that_cannot_be_written(command: Callable[..., list[str]]) -> None:
    done = run(command(Path("/sys/out")))  # where not even the superuser makes folders
    assert done.returncode == 2, done.stderr
    assert "/sys/out: cannot be written: " in done.stderr.splitlines()[-1]


@pytest.mark.slow
def test_runs_that_are_killed_lose_and_double_nothing() -> None:
    """Five rounds of `make crash`, each time at the same moments."""
    done = run([sys.executable, "-m", "tests.crash", "--rounds", "8", "--seed", "3", "--rows", "150"])
    assert done.returncode == 0, done.stderr
    assert "nothing lost, nothing doubled" in done.stdout


@pytest.mark.slow
def test_memory_does_not_grow_with_the_input() -> None:
    """The same with two million lines and one of 30 MB: `python -m tests.memory 10000 2000000 --long-line 30`."""
    few = peak_mib(2_000)
    assert peak_mib(12_000) < few + 40
    assert peak_mib(2_000, 3_000_000) < few + 60
