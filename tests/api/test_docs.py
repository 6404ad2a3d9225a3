"""The examples in the documentation of the Python API are what happens: here with a tiny model in place of theirs."""

from __future__ import annotations

import doctest
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from batchgen.api import engine
from batchgen.checkpoint.resolve import resolve
from batchgen.job import loading
from batchgen.model.runner import load_runner
from tests.test_architecture import ROOT
from tests.tiny_tokenizers import byte_level


@pytest.fixture(autouse=True)
def _tiny(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an end token, so that answers can be constrained."""
    model = shutil.copytree(tiny_model, tmp_path / "tiny")
    settings = json.loads((model / "tokenizer_config.json").read_text(encoding="utf-8")) | {"eos_token": "</s>"}
    (model / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    byte_level(vocab_size=307).save(str(model / "tokenizer.json"))
    monkeypatch.setattr(loading, "find_checkpoint", lambda _, home: resolve(str(model), home=home))
    small = {"threads": 1, "kv_cache_memory": 4 << 20}
    monkeypatch.setattr(loading, "load_runner", lambda found, config: load_runner(found, replace(config, **small)))


def test_examples_of_docstrings() -> None:
    found = doctest.testmod(engine)
    assert (found.failed, found.attempted > 10) == (0, True)


def test_examples_of_the_guide() -> None:
    found = doctest.testfile(str(ROOT / "docs/python.md"), module_relative=False)
    assert (found.failed, found.attempted > 10) == (0, True)
