"""From what the user calls a model to its parts on this disk."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from batchgen.checkpoint import hub, store
from batchgen.checkpoint.files import cached_sha256, read_json
from batchgen.checkpoint.folder import (
    folder_fingerprint,
    read_chat_template,
    read_tokenizer_config,
    safetensors_in,
    tokenizer_in,
)
from batchgen.checkpoint.gguf_import import import_header, import_tokenizer
from batchgen.checkpoint.pooling import read_pooling
from batchgen.checkpoint.types import Checkpoint, NoWeights, Weights
from batchgen.errors import ModelNotFoundError, UsageError

__all__ = ["resolve"]

LoadFormat = Literal["auto", "dummy"]


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a reference leads."""

    name: str
    path: Path
    """A folder, or a GGUF file."""
    commit: str | None = None
    """Of a hub id."""


@dataclass(frozen=True, slots=True)
class _ModelParts:
    config: Mapping[str, Any]
    generation_config: Mapping[str, Any]
    weights: Weights
    fingerprint: str
    pooling: str = "last"


@dataclass(frozen=True, slots=True)
class _TextParts:
    """What turns text into tokens. `--tokenizer` replaces all of it."""

    tokenizer_config: Mapping[str, Any]
    tokenizer_file: Path | None
    chat_template: str | None


def resolve(
    reference: str | None,
    *,
    home: Path,
    revision: str | None = None,
    tokenizer: str | None = None,
    load_format: LoadFormat = "auto",
    generation_config: str = "auto",
    chat_template: str | None = None,
) -> Checkpoint:
    """Find a model and read everything of it but the weights.

    `reference` is an alias of an embedded model, a folder, a GGUF file, or a hub id with an optional `@revision`;
    None is the default model. `home` is the model home, under which conversions are cached. The other arguments are
    those of `config.ModelConfig`. Raises `ModelNotFoundError`, `UnsupportedModelError` or `UsageError`, with advice.
    """
    cache = home / "cache"
    place = _locate(reference or store.DEFAULT_ALIAS, home, revision, load_format)
    model = _read_model(place, cache, load_format)
    text = _read_text(place if tokenizer is None else _locate(tokenizer, home, None, "dummy"), cache)
    fingerprint = model.fingerprint
    if tokenizer is not None:
        if text.tokenizer_file is None:
            raise ModelNotFoundError(f"--tokenizer {tokenizer} holds no tokenizer")
        both = f"{fingerprint} {cached_sha256(text.tokenizer_file, cache)}"
        fingerprint = hashlib.sha256(both.encode()).hexdigest()
    return Checkpoint(
        name=place.name,
        config=model.config,
        generation_config=_choose_generation_config(generation_config, model.generation_config),
        tokenizer_config=text.tokenizer_config,
        tokenizer_file=text.tokenizer_file,
        chat_template=text.chat_template if chat_template is None else _given_template(chat_template),
        weights=model.weights,
        fingerprint=fingerprint,
        pooling=model.pooling,
    )


def _locate(reference: str, home: Path, revision: str | None, load_format: LoadFormat) -> _Place:
    path = Path(reference).expanduser()
    if reference in store.ALIASES or path.exists():
        if revision is not None:
            raise UsageError(f"--revision {revision} is for hub ids, but {reference} is on this disk; leave it out")
        return _Place(*_local(reference, path, home))
    if not hub.is_hub_id(reference):
        raise ModelNotFoundError(f"no such file or folder: {reference}; {store.near_aliases(reference)}")
    name, _, at = reference.partition("@")
    if at and revision not in {None, at}:
        raise UsageError(f"{reference} and --revision {revision} name two revisions; leave one out")
    try:
        folder = hub.download(name, at or revision, with_weights=load_format != "dummy")
    except ModelNotFoundError as error:
        raise ModelNotFoundError(f"{error}; {store.near_aliases(reference)}") from error
    return _Place(name, folder, commit=folder.name)


def _local(reference: str, path: Path, home: Path) -> tuple[str, Path]:
    if reference in store.ALIASES:
        if (found := store.find(reference, home)) is None:
            raise ModelNotFoundError(f"{reference} is not here; fetch it with `batchgen models pull {reference}`")
        return reference, found
    path = path.resolve()
    if path.is_dir() and not (path / "config.json").is_file():
        files = sorted(path.glob("*.gguf"))
        if len(files) != 1:
            found_instead = f"{len(files)} GGUF files; name one of them" if files else "no GGUF file"
            raise ModelNotFoundError(f"{path} has no config.json and {found_instead}")
        return path.name, files[0]
    return path.stem if path.suffix == ".gguf" else path.name, path


def _read_model(place: _Place, cache: Path, load_format: LoadFormat) -> _ModelParts:
    weights: Weights = NoWeights()
    generation_config: Mapping[str, Any] = {}
    if place.path.is_file():
        imported = import_header(place.path, cache)
        config, weights, fingerprint = imported.config, imported.weights, imported.sha256
    else:
        config = read_json(place.path / "config.json")
        generation_file = place.path / "generation_config.json"
        generation_config = read_json(generation_file) if generation_file.is_file() else {}
        files: tuple[Path, ...] = ()
        if load_format == "auto":
            weights = safetensors_in(place.path)
            files = weights.files
        tokenizer_file = place.path / "tokenizer.json"
        tokenizer_sha = cached_sha256(tokenizer_file, cache) if tokenizer_file.is_file() else ""
        fingerprint = (
            f"{place.name}@{place.commit}" if place.commit else folder_fingerprint(config, tokenizer_sha, files)
        )
    if load_format == "dummy":
        weights, fingerprint = NoWeights(), f"dummy {fingerprint}"
    pooling = read_pooling(place.path) if place.path.is_dir() else "last"
    return _ModelParts(config, generation_config, weights, fingerprint, pooling)


def _read_text(place: _Place, cache: Path) -> _TextParts:
    if place.path.is_file():
        imported = import_header(place.path, cache)
        tokenizer_file = import_tokenizer(place.path, imported, cache)
        return _TextParts(imported.tokenizer_config, tokenizer_file, imported.chat_template)
    tokenizer_config = read_tokenizer_config(place.path)
    template = read_chat_template(place.path, tokenizer_config)
    return _TextParts(tokenizer_config, tokenizer_in(place.path, cache), template)


def _choose_generation_config(choice: str, own: Mapping[str, Any]) -> Mapping[str, Any]:
    if choice == "auto":
        return own
    if choice == "none":
        return {}
    file = Path(choice).expanduser() / "generation_config.json"
    if not file.is_file():
        raise UsageError(f"--generation-config {choice}: expected auto, none, or a folder with generation_config.json")
    return read_json(file)


def _given_template(given: str) -> str:
    if "{" in given:
        return given
    file = Path(given).expanduser()
    if not file.is_file():
        raise UsageError(f"--chat-template {given}: there is no such file, and it is no Jinja template either")
    return file.read_text("utf-8")
