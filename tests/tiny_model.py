"""A whole tiny model in a folder: weights, tokenizer, chat template."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.golden.models import make_model, save_checkpoint
from tests.tiny_tokenizers import byte_level

__all__ = ["tiny_model"]

TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'nobody' %}{{ raise_exception('nobody may not speak') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}\n{% endfor %}<assistant>"
)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama with a byte-level tokenizer."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    folder.mkdir()
    save_checkpoint(make_model("llama"), folder)
    byte_level().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}), encoding="utf-8")
    return folder
