"""`batchgen status` and `batchgen inspect` as programs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from batchgen.errors import UsageError
from batchgen.io.manifest import Manifest, write_manifest
from batchgen.io.schema import result_schema
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


def test_report_writes_a_page_and_loads_no_torch(tmp_path: Path) -> None:
    schema = result_schema("string")
    with pa.ipc.new_stream(tmp_path / "answers.arrow", schema) as stream:
        stream.write_table(
            pa.Table.from_pylist([{"custom_id": "a", "line": 1, "status_code": 200, "text": "<b>"}], schema)
        )
    code = (
        "import sys; from batchgen.cli.main import app; app(['report', 'answers.arrow'], standalone_mode=False)\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["answers.arrow.html", "False"]
    assert "&lt;b&gt;" in (tmp_path / "answers.arrow.html").read_text(encoding="utf-8")


def test_report_of_nothing_and_into_nowhere(invoke: Invoke, tmp_path: Path) -> None:
    assert isinstance(invoke("report", tmp_path / "none").exception, UsageError)
    assert not list(tmp_path.iterdir())
    schema = result_schema("string")
    with pa.ipc.new_stream(tmp_path / "answers.arrow", schema):
        pass
    failed = invoke("report", tmp_path / "answers.arrow", "-o", tmp_path / "no" / "page.html")
    assert "cannot be written" in str(failed.exception)
