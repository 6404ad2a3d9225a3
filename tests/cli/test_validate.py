"""`batchgen validate`: every fault of every line, without an engine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from batchgen.errors import UsageError
from tests.cli.conftest import Invoke

PROGRAM = "from batchgen.cli.main import main; main()"


def line(custom_id: Any, **body: Any) -> str:
    body = {"prompt": "the sea", **body}
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": body})


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


FAULTY = (
    line("a", model="m"),
    "",
    line("b", model="m", temperature=9, n=0),
    "{nonsense",
    line("a", model="n", wat=1),
    line("größe", stream=True),
)


def test_a_valid_file(invoke: Invoke, tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", line("a", model="m"), line("b"))
    result = invoke("validate", source)
    assert (result.exit_code, result.stdout) == (0, "2 lines, 0 invalid\n")
    report = json.loads(invoke("validate", "-i", source, "--format", "json").stdout)
    assert report == {"status": "valid", "lines": 2, "invalid_lines": 0, "faults": {}, "warnings": 0}


def test_every_fault_has_its_line_and_code_in_text(invoke: Invoke, tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", *FAULTY)
    result = invoke("validate", source)
    assert result.exit_code == 4
    *faults, summary = result.stdout.splitlines()
    assert [text.split(": ")[:2] for text in faults] == [
        [f"{source}:3", "invalid_value"],
        [f"{source}:3", "invalid_value"],
        [f"{source}:4", "invalid_json_line"],
        [f"{source}:5", "unsupported_parameter"],
        [f"{source}:5", "duplicate_custom_id"],
        [f"{source}:5", "model_mismatch"],
        [f"{source}:6", "stream_not_supported"],
    ]
    assert summary == (
        "5 lines, 4 invalid: 2 x invalid_value, 1 x invalid_json_line, 1 x unsupported_parameter, "
        "1 x duplicate_custom_id, 1 x model_mismatch, 1 x stream_not_supported"
    )


def test_every_fault_is_an_object_in_json(invoke: Invoke, tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", *FAULTY)
    result = invoke("validate", source, "--format", "json", "--lenient")
    assert result.exit_code == 4
    *faults, summary = map(json.loads, result.stdout.splitlines())
    assert [(found["line"], found["custom_id"], found["severity"], found["field"]) for found in faults] == [
        (3, "b", "error", "body.temperature"),
        (3, "b", "error", "body.n"),
        (4, None, "error", None),
        (5, "a", "error", "custom_id"),
        (5, "a", "error", "body.model"),
        (5, "a", "warning", "body.wat"),
        (6, "größe", "error", "body.stream"),
    ]
    assert "used on line 1" in faults[3]["message"]
    assert "line 1 asks for 'm'" in faults[4]["message"]
    assert (summary["status"], summary["invalid_lines"], summary["warnings"]) == ("invalid", 4, 1)
    assert sum(summary["faults"].values()) == 6


def test_models_may_be_mixed_where_names_do_not_matter(invoke: Invoke, tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", line("a", model="m"), line("b", model="n"))
    assert invoke("validate", source).exit_code == 4
    assert invoke("validate", source, "--ignore-request-model").exit_code == 0


def test_a_model_at_hand_is_asked_about_text(invoke: Invoke, tmp_path: Path, tiny_model: Path) -> None:
    chat = {"url": "/v1/chat/completions", "body": {"messages": [{"role": "nobody", "content": ""}]}}
    source = write(
        tmp_path / "in.jsonl",
        line("named", model=tiny_model.name),
        line("other", model="gpt-x"),
        line("long", prompt="the sea " * 80),
        line("outside", prompt=[1, 10**6]),
        json.dumps({"custom_id": "template", **chat}),
    )
    assert invoke("validate", source, "--ignore-request-model").exit_code == 0
    result = invoke("validate", source, "--model", tiny_model, "--max-model-len", "128", "--format", "json")
    assert result.exit_code == 4
    *faults, _ = map(json.loads, result.stdout.splitlines())
    assert [(found["custom_id"], found["code"], found["field"]) for found in faults] == [
        ("other", "model_mismatch", "body.model"),
        ("long", "context_length_exceeded", "body.prompt"),
        ("outside", "invalid_value", "body.prompt"),
        ("template", "invalid_chat_template_input", "body.messages"),
    ]
    assert "nobody may not speak" in faults[-1]["message"]


def test_what_cannot_be_read_is_a_usage_error(invoke: Invoke, tmp_path: Path) -> None:
    assert isinstance(invoke("validate").exception, UsageError)
    result = invoke("validate", tmp_path / "missing.jsonl")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "missing.jsonl" in result.stderr
    source = write(tmp_path / "in.jsonl", line("a"))
    assert invoke("validate", source, "--model", tmp_path / "none").exit_code == 2


@pytest.mark.parametrize("arguments", [(), ("--format", "json")])
def test_standard_input_without_torch(arguments: tuple[str, ...]) -> None:
    report = "import atexit, sys; atexit.register(lambda: print('torch' in sys.modules, file=sys.stderr))"
    command = [sys.executable, "-c", f"{report}\n{PROGRAM}", "validate", "-", "--quiet", *arguments]
    lines = "\n".join(FAULTY)
    done = subprocess.run(command, input=lines, capture_output=True, text=True, encoding="utf-8", check=False)
    assert (done.returncode, done.stderr) == (4, "False\n")
    assert len(done.stdout.splitlines()) == 8


def test_a_reader_that_goes_away_ends_it_quietly(tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", *(["{nonsense"] * 20_000))
    command = [sys.executable, "-c", PROGRAM, "validate", str(source)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        assert running.stdout.readline()
        running.stdout.close()
        errors = running.stderr.read()
    assert running.returncode == 141
    assert "Traceback" not in errors
