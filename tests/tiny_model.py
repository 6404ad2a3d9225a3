"""A whole tiny model in a folder: weights, tokenizer, chat template."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.golden.models import make_model, save_checkpoint
from tests.tiny_tokenizers import byte_level

__all__ = ["make_tiny_model", "tiny_model"]

TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'nobody' %}{{ raise_exception('nobody may not speak') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}\n{% endfor %}<assistant>"
)


def make_tiny_model(folder: Path) -> None:
    """A random Llama with a byte-level tokenizer, in a new folder."""
    folder.mkdir()
    save_checkpoint(make_model("llama"), folder)
    byte_level().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}), encoding="utf-8")


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of that model."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    make_tiny_model(folder)
    return folder
