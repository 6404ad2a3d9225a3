"""One engine with a tiny model for all tests of the Python API."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from batchgen import Engine

SETTINGS: Mapping[str, Any] = {
    "max_model_len": 128,
    "kv_cache_memory": 4 << 20,
    "threads": 1,
    "max_num_batched_tokens": 64,
    "max_num_seqs": 16,
}
"""Those of the jobs in `tests.unit.test_job`."""
GREEDY: Mapping[str, Any] = {"max_tokens": 5, "temperature": 0}


@pytest.fixture(scope="session")
def engine(tiny_model: Path) -> Iterator[Engine]:
    """An engine that is loaded by the first test."""
    with Engine(str(tiny_model), **SETTINGS) as engine:
        yield engine
