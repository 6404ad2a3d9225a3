"""`batchgen status` and `batchgen inspect` as programs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from batchgen.errors import UsageError
from batchgen.io.manifest import Manifest, write_manifest
from tests.cli.conftest import Invoke

INPUT = {"file": "in.jsonl", "identity": None, "rows": 5}


def output(tmp_path: Path) -> Path:
    """A folder that a run was stopped in."""
    folder = tmp_path / "out"
    (folder / ".batchgen").mkdir(parents=True)
    counts = {"rows": 3, "failed": 1, "retryable": 0, "resumed": 2}
    manifest = Manifest(run_id="r", created=0, settings={"model": "m"}, layout={}, input=INPUT, counts=counts)
    write_manifest(folder, manifest)
    return folder


def test_status_as_text_and_json(invoke: Invoke, tmp_path: Path) -> None:
    folder = output(tmp_path)
    text = invoke("status", folder).stdout
    assert text.startswith(f"{folder}: stopped | 3/5 rows (60%) | 1 failed | 2 resumed | ")
    for by in (invoke("status", folder, "--json"), invoke("status", folder, env={"BATCHGEN_JSON": "1"})):
        status = json.loads(by.stdout)
        assert (status["state"], status["rows_done"], status["model"]) == ("stopped", 3, "m")


def test_an_output_that_is_not_there(invoke: Invoke, tmp_path: Path) -> None:
    assert isinstance(invoke("status", tmp_path / "none").exception, UsageError)
    assert isinstance(invoke("inspect", tmp_path / "none").exception, UsageError)


@pytest.mark.parametrize("command", ["status", "inspect"])
def test_no_torch_is_loaded(tmp_path: Path, command: str) -> None:
    folder = output(tmp_path)
    code = (
        f"import sys; from batchgen.cli.main import app; app(['{command}', '{folder}'], standalone_mode=False)\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if command == "inspect":
        assert "there are no results" in done.stderr
    else:
        assert done.stdout.splitlines()[-1] == "False"
