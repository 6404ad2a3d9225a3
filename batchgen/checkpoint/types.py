"""A model on this disk, whatever it was published as, in one form that text and model rooms read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Checkpoint", "GGUFTensor", "GGUFWeights", "NoWeights", "SafetensorsWeights", "Weights"]


@dataclass(frozen=True, slots=True)
class SafetensorsWeights:
    """Tensors in one or more safetensors files, under their transformers names."""

    files: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """Where one tensor lies in a GGUF file."""

    name: str
    """Its GGUF name, such as `blk.0.attn_q.weight`."""
    shape: tuple[int, ...]
    """Row-major shape: [out, in] for a linear weight (the reverse of the file's order)."""
    qtype: str
    """Name of a `gguf.GGMLQuantizationType`, such as `Q4_K`."""
    offset: int
    """Bytes from the start of the file."""
    nbytes: int


@dataclass(frozen=True, slots=True)
class GGUFWeights:
    """Tensors in a GGUF file, with the index of its header (read once and cached)."""

    file: Path
    architecture: str
    """`general.architecture` of the header, such as `llama`."""
    tensors: tuple[GGUFTensor, ...]


@dataclass(frozen=True, slots=True)
class NoWeights:
    """`--load-format dummy`: random weights of the configuration's shape."""


Weights = SafetensorsWeights | GGUFWeights | NoWeights


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model whose parts were found."""

    name: str
    """The name shown in responses: the alias, the hub id, or the folder's or file's name."""
    config: Mapping[str, Any]
    """`config.json`, for a GGUF file the same keys made from its header."""
    generation_config: Mapping[str, Any]
    """`generation_config.json`, empty where there is none."""
    tokenizer_config: Mapping[str, Any]
    """`tokenizer_config.json`, empty where there is none; special tokens as strings (`bos_token`, `eos_token`)."""
    tokenizer_file: Path | None
    """A `tokenizer.json`; None where the model has none (then prompts must be token ids)."""
    chat_template: str | None
    """Jinja source: `chat_template.jinja`, else the tokenizer configuration's, else the GGUF's."""
    weights: Weights
    fingerprint: str
    """Identifies revision or file contents: equal for equal weights and tokenizer."""
    pooling: str = "last"
    """How embeddings are made of hidden states: `last`, `mean`, or the name of a way that we don't go."""
