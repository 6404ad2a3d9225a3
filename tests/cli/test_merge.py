"""`batchgen merge` with a stub in place of the work."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence as SequenceOf
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from batchgen.config import MergeConfig
from batchgen.errors import UsageError
from tests.cli.conftest import Invoke

Calls = list[tuple[list[Path], MergeConfig]]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    made: Calls = []

    def merge_shards(given: SequenceOf[Path], config: MergeConfig) -> dict[str, Any]:
        made.append((list(given), config))
        if given == [Path("none")]:
            raise UsageError("none: nothing to merge")
        return {"status": "completed"}

    module = ModuleType("batchgen.job.merge")
    module.merge_shards = merge_shards  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "batchgen.job", ModuleType("batchgen.job"))
    monkeypatch.setitem(sys.modules, "batchgen.job.merge", module)
    return made


def test_options_and_summary(invoke: Invoke, calls: Calls, tmp_path: Path) -> None:
    file = tmp_path / "merge.yaml"
    file.write_text("error-file: e.jsonl\n")
    result = invoke(
        "merge", "a", "b", "-o", "x.jsonl", "--overwrite", "--config", file, env={"BATCHGEN_MERGE_ANYWAY": "1"}
    )
    assert json.loads(result.stdout) == {"status": "completed", "exit_code": 0}
    config = MergeConfig(merged_file="x.jsonl", error_file=Path("e.jsonl"), overwrite=True, merge_anyway=True)
    assert calls == [([Path("a"), Path("b")], config)]


def test_a_refusal_is_told(invoke: Invoke, calls: Calls) -> None:
    result = invoke("merge", "none")
    assert result.exit_code == 2
    assert "error: none: nothing to merge" in result.stderr
    assert calls == [([Path("none")], MergeConfig())]
