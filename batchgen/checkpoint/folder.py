"""A folder in the layout of the model hub: configuration, tokenizer and safetensors files."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from batchgen.checkpoint.files import cached, read_json
from batchgen.checkpoint.types import SafetensorsWeights
from batchgen.errors import ModelNotFoundError, UnsupportedModelError

__all__ = ["folder_fingerprint", "read_chat_template", "read_tokenizer_config", "safetensors_in", "tokenizer_in"]

_SLOW_VOCABULARIES = ("tokenizer.model", "vocab.json", "tekken.json", "spiece.model", "vocab.txt")
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_SAMPLE = 4096


def safetensors_in(folder: Path) -> SafetensorsWeights:
    """The safetensors files of a folder: `model.safetensors`, else those that its index names.

    Raises `ModelNotFoundError` where there are none or one is missing, `UnsupportedModelError` for pickles.
    """
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.is_file():
        return SafetensorsWeights((single,))
    if index.is_file():
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict):
            raise ModelNotFoundError(f"{index} has no weight_map")
        files = tuple(folder / name for name in sorted(set(weight_map.values())))
        if missing := [file.name for file in files if not file.is_file()]:
            raise ModelNotFoundError(f"{folder} lacks {', '.join(missing)}, which model.safetensors.index.json names")
        return SafetensorsWeights(files)
    if pickles := [path.name for pattern in _PICKLES for path in folder.glob(pattern)]:
        raise UnsupportedModelError(
            f"{folder} has its weights in {pickles[0]} only. That is a pickle, which can run any code when it is "
            "loaded, so it is refused: convert it to safetensors (`save_pretrained` of transformers does)"
        )
    raise ModelNotFoundError(
        f"{folder} has no weights: expected model.safetensors, or model.safetensors.index.json and its files; "
        "--load-format dummy does without"
    )


def read_tokenizer_config(folder: Path) -> dict[str, Any]:
    """`tokenizer_config.json`, with special tokens as strings; those it lacks from `special_tokens_map.json`."""
    merged: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            merged |= read_json(folder / name)
    return {
        key: value["content"] if key.endswith("_token") and isinstance(value, dict) and "content" in value else value
        for key, value in merged.items()
    }


def read_chat_template(folder: Path, tokenizer_config: Mapping[str, Any]) -> str | None:
    """`chat_template.jinja`, else the tokenizer configuration's `chat_template`: a string, or the one named default."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text("utf-8")
    template = tokenizer_config.get("chat_template")
    if isinstance(template, list):
        template = {entry["name"]: entry["template"] for entry in template}.get("default")
    return template if isinstance(template, str) else None


def tokenizer_in(folder: Path, cache: Path) -> Path | None:
    """A folder's `tokenizer.json`; where it has another kind of tokenizer, that one, converted once into `cache`."""
    file = folder / "tokenizer.json"
    if file.is_file():
        return file
    sources = [folder / name for name in _SLOW_VOCABULARIES if (folder / name).is_file()]
    if not sources:
        return None
    extra = ("merges.txt", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "config.json")
    sources += [folder / name for name in extra if (folder / name).is_file()]
    name = f"tokenizers/{_digest(path.read_bytes() for path in sources)}/tokenizer.json"
    return cached(cache, name, lambda: _converted_tokenizer(folder, sources[0]))


def _converted_tokenizer(folder: Path, source: Path) -> bytes:
    from transformers import AutoTokenizer  # seconds to import: only for a tokenizer that was never seen

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        content: str = tokenizer.backend_tokenizer.to_str()
    except (ValueError, KeyError, TypeError, AttributeError, ImportError, OSError) as error:
        raise UnsupportedModelError(
            f"the tokenizer in {source} cannot be converted to tokenizer.json: {error}"
        ) from error
    return content.encode()


def folder_fingerprint(config: Mapping[str, Any], tokenizer_sha256: str, files: Iterable[Path]) -> str:
    """Hash over configuration, tokenizer and safetensors files: their names, sizes, headers, a piece of each tensor.

    Not over gigabytes of data: fine-tunes of one model share names and shapes, but differ in some piece.
    """
    parts = [json.dumps(config, sort_keys=True).encode(), tokenizer_sha256.encode()]
    for file in files:
        parts += [file.name.encode(), str(file.stat().st_size).encode(), *_sampled(file)]
    return _digest(parts)


def _sampled(path: Path) -> Iterable[bytes]:
    """The header of a safetensors file, then the middle 4 KiB of each tensor."""
    with path.open("rb") as file:
        try:
            (length,) = struct.unpack("<Q", file.read(8))
            header = file.read(min(length, path.stat().st_size))
            spans = [entry["data_offsets"] for name, entry in json.loads(header).items() if name != "__metadata__"]
        except (struct.error, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelNotFoundError(f"{path} is not a safetensors file: {error}") from error
        yield header
        for start, stop in sorted(spans):
            file.seek(8 + length + max(start, (start + stop - _SAMPLE) // 2))
            yield file.read(min(_SAMPLE, stop - start))


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()
