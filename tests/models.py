"""The embedded models for tests: pulled and converted once, into the model home or pytest's cache."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from batchgen.checkpoint import store
from batchgen.checkpoint.resolve import resolve
from batchgen.checkpoint.types import Checkpoint

__all__ = ["gemma3_270m", "load_embedded", "model_home", "smollm2"]


def load_embedded(alias: str, home: Path) -> Checkpoint:
    """An embedded model under `home`, fetched there at the first call."""
    store.pull(alias, home)
    return resolve(alias, home=home)


@pytest.fixture(scope="session")
def model_home(pytestconfig: pytest.Config) -> Path:
    """`BATCHGEN_HOME` where it is set, so that models fetched for use serve the tests too; else pytest's cache."""
    own = os.environ.get("BATCHGEN_HOME")
    return Path(own) if own else Path(pytestconfig.cache.mkdir("batchgen-home"))


@pytest.fixture(scope="session")
def smollm2(model_home: Path) -> Checkpoint:
    """SmolLM2 135M Instruct."""
    return load_embedded("smollm2-135m-instruct", model_home)


@pytest.fixture(scope="session")
def gemma3_270m(model_home: Path) -> Checkpoint:
    """Gemma 3 270M, a base model."""
    return load_embedded("gemma3-270m", model_home)
