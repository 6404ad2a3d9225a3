"""The command line with a stub in place of the job."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from batchgen.cli.main import app
from batchgen.config import JobConfig
from batchgen.progress import Progress, Reporter


@dataclass
class StubSummary:
    """What the stub job answers."""

    exit_code: int = 0

    def to_json(self) -> dict[str, Any]:
        return {"status": "completed", "größe": 1}


@dataclass
class StubJob:
    """Stands in for `batchgen.job`: remembers the calls, then does as told."""

    calls: list[tuple[JobConfig, Path]] = field(default_factory=list)
    crews: list[object] = field(default_factory=list)
    act: Callable[[], StubSummary] = StubSummary

    def run_job(self, config: JobConfig, home: Path, reporter: Reporter, crew: object) -> StubSummary:
        self.calls.append((config, home))
        self.crews.append(crew)
        reporter.stage("generating")
        reporter.update(Progress(rows_total=2, rows_done=2, elapsed_s=1.0))
        return self.act()

    @property
    def config(self) -> JobConfig:
        """The configuration of the only call."""
        ((config, _),) = self.calls
        return config


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> StubJob:
    stub = StubJob()
    module = ModuleType("batchgen.job")
    module.run_job = stub.run_job  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "batchgen.job", module)
    return stub


Invoke = Callable[..., Result]


@pytest.fixture
def invoke(monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """Run the app in this process: `invoke("run-batch", "x.jsonl", env={...})`."""
    monkeypatch.setenv("BATCHGEN_HOME", "/nowhere/home")

    def run(*arguments: str | Path, env: Mapping[str, str] | None = None, **options: Any) -> Result:
        return CliRunner().invoke(app, [str(argument) for argument in arguments], env=dict(env or {}), **options)

    return run
