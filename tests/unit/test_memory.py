"""A process that may not have the memory that its settings ask for."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from batchgen.errors import OutOfResourcesError
from tests.unit.test_job import job, line, run, write

PROGRAM = """
import resource, sys
import psutil
import batchgen.job.generation  # torch and all else that the limit is not about
used = psutil.Process().memory_info().vms
resource.setrlimit(resource.RLIMIT_AS, (used + (300 << 20), resource.getrlimit(resource.RLIMIT_AS)[1]))
from batchgen.cli.main import main
main()
"""


@pytest.mark.parametrize("kernels", ["native", "torch"])
def test_too_little_memory_for_the_settings(tiny_model: Path, tmp_path: Path, kernels: str) -> None:
    source = write(tmp_path / "in.jsonl", [json.dumps(line("1"))])
    options = ["--model", str(tiny_model), "--kernels", kernels, "--threads", "1", "--kv-cache-memory", "4MiB"]
    command = [sys.executable, "-c", PROGRAM, "run-batch", str(source), "-o", str(tmp_path / "out"), *options]
    command += ["--max-num-batched-tokens", "4000000"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 5, done.stderr
    assert "the memory is full" in done.stderr.splitlines()[-1]
    summary = json.loads(done.stdout)
    assert (summary["status"], summary["exit_code"]) == ("failed", 5)


def test_a_cache_too_small_for_any_block(tiny_model: Path, tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", [json.dumps(line("1"))])
    config = job(tiny_model, source, tmp_path / "out")
    with pytest.raises(OutOfResourcesError, match="--kv-cache-memory 100"):
        run(replace(config, engine=replace(config.engine, kv_cache_memory=100)), tmp_path)
