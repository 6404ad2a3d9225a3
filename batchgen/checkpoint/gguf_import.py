"""A GGUF file as a checkpoint: its header and its tokenizer, converted once and cached under the file's hash."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from batchgen.checkpoint.files import cached, cached_sha256
from batchgen.checkpoint.gguf_config import (
    MODEL_TYPES,
    config_from_header,
    read_header,
    tokenizer_config_from_header,
)
from batchgen.checkpoint.types import GGUFTensor, GGUFWeights
from batchgen.errors import ModelNotFoundError, UnsupportedModelError

__all__ = ["ImportedGGUF", "import_header", "import_tokenizer"]

_FORMAT = 1
"""Of the cached files. Raised whenever their content would come out differently."""


@dataclass(frozen=True, slots=True)
class ImportedGGUF:
    """The parts of a GGUF file but for its tokenizer."""

    sha256: str
    """Of the file."""
    config: Mapping[str, Any]
    """As in `config.json`."""
    tokenizer_config: Mapping[str, Any]
    """As in `tokenizer_config.json`."""
    chat_template: str | None
    weights: GGUFWeights


def import_header(file: Path, cache: Path) -> ImportedGGUF:
    """Read a GGUF file's header: seconds the first time, then milliseconds from the folder `cache`.

    Raises `ModelNotFoundError` for what is not a GGUF file.
    """
    with file.open("rb") as start:
        if start.read(4) != b"GGUF":
            raise ModelNotFoundError(f"{file} is not a GGUF file: it does not start with the letters GGUF")
    sha256 = cached_sha256(file, cache)
    entry = cached(cache, _name(sha256, "header.json"), lambda: orjson.dumps(_convert_header(file)))
    found = orjson.loads(entry.read_bytes())
    tensors = tuple(GGUFTensor(**tensor | {"shape": tuple(tensor["shape"])}) for tensor in found["tensors"])
    return ImportedGGUF(
        sha256=sha256,
        config=found["config"],
        tokenizer_config=found["tokenizer_config"],
        chat_template=found["chat_template"],
        weights=GGUFWeights(file, found["architecture"], tensors),
    )


def import_tokenizer(file: Path, imported: ImportedGGUF, cache: Path) -> Path | None:
    """A `tokenizer.json` made from a GGUF file's vocabulary by transformers, cached like the header.

    None for an architecture that is not run anyway. Raises `UnsupportedModelError` where it can't be converted.
    """
    if imported.weights.architecture not in MODEL_TYPES:
        return None
    return cached(cache, _name(imported.sha256, "tokenizer.json"), lambda: _convert_tokenizer(file))


def _name(sha256: str, file: str) -> str:
    return f"gguf/{sha256}/{_FORMAT}/{file}"


def _convert_tokenizer(file: Path) -> bytes:
    from transformers import AutoTokenizer  # seconds to import: only for a file that was never seen

    try:
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name, local_files_only=True)
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise UnsupportedModelError(
            f"the tokenizer in {file} cannot be converted: {error}; name another with --tokenizer"
        ) from error
    content: str = tokenizer.backend_tokenizer.to_str()
    return content.encode()


def _convert_header(file: Path) -> dict[str, Any]:
    header = read_header(file)
    return {
        "architecture": header.architecture,
        "config": config_from_header(header),
        "tokenizer_config": tokenizer_config_from_header(header),
        "chat_template": header.fields.get("tokenizer.chat_template"),
        "tensors": [asdict(tensor) for tensor in header.tensors],
    }
