"""`batchgen plan` and `batchgen bench calibrate` on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from batchgen.model import calibration
from tests.cli.conftest import Invoke

STEM = [*range(40)]
ROWS = [
    {"custom_id": f"r{i}", "method": "POST", "url": "/v1/completions", "body": {"prompt": prompt, **body}}
    for i, (prompt, body) in enumerate(
        [
            ([*STEM, 1, 2], {"max_tokens": 10}),
            ([*STEM, 1, 3], {"max_tokens": 20, "n": 2}),
            ([5], {"max_tokens": 30}),
            ([5], {"max_tokens": 0}),
        ]
    )
]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_text("\n".join(map(json.dumps, ROWS)), encoding="utf-8")
    return path


def test_a_plan_before_and_after_calibration(
    invoke: Invoke, source: Path, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "_SECONDS", 0.001)
    monkeypatch.setattr(calibration, "_WEIGHTS", 1)
    env = {"BATCHGEN_HOME": str(tmp_path / "home")}
    options = ["--model", tiny_model, "--max-model-len", "128", "--kv-cache-memory", "4MiB", "--threads", "1"]

    text = invoke("plan", source, *options, env=env)
    assert text.exit_code == 0
    assert "rows             4, of which 1 will be refused\n" in text.stdout
    assert "distinct tokens  44: 65.4% are shared\n" in text.stdout
    assert "42 (line 1, r0)" in text.stdout
    assert "bench calibrate" in text.stdout

    measured = invoke("bench", "calibrate", "--threads", "1", env=env)
    assert [line.split(":")[0] for line in measured.stdout.splitlines()] == ["float32", "int8"]

    report = json.loads(invoke("plan", source, *options, "--json", env=env).stdout)
    expected = {"rows": 4, "invalid_rows": 1, "sequences": 4, "prompt_tokens": 127, "distinct_tokens": 44}
    assert expected.items() <= report.items()
    assert report["max_output_tokens"] == 10 + 2 * 20 + 30
    assert report["longest_prompts"][0] == {"tokens": 42, "line": 2, "custom_id": "r1"}
    assert 0 <= report["prompts_s"] <= report["limit_s"]
    assert 0 < report["kv_needed_bytes"] < report["kv_cache_bytes"]


def test_a_damaged_calibration_counts_as_none(invoke: Invoke, source: Path, tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "calibration.json").write_text("{", encoding="utf-8")
    options = ["--model", tiny_model, "--max-model-len", "128", "--kv-cache-memory", "4MiB"]
    result = invoke("plan", source, *options, env={"BATCHGEN_HOME": str(tmp_path / "home")})
    assert result.exit_code == 0
    assert "bench calibrate" in result.stdout
