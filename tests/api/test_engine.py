"""The life of an `Engine`: settings, loading, copies in other processes, closing."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import cloudpickle
import dill
import pytest

from batchgen import Engine
from batchgen.errors import ModelNotFoundError, UsageError
from tests.api.conftest import GREEDY, SETTINGS
from tests.api.test_generate import texts


@pytest.mark.parametrize("pickler", [pickle, cloudpickle, dill])
def test_it_pickles_as_its_settings(engine: Engine, pickler: object) -> None:
    expected = texts(engine)
    packed = pickler.dumps(engine)  # type: ignore[attr-defined]
    assert len(packed) < 2000
    with pickler.loads(packed) as copy:  # type: ignore[attr-defined]
        assert repr(copy).endswith("not loaded>")
        assert texts(copy) == expected
        assert pickler.dumps(copy) == packed, "a name for caches"  # type: ignore[attr-defined]


def test_a_closed_engine_loads_again(tiny_model: Path) -> None:
    with Engine(str(tiny_model), **SETTINGS) as engine:
        left = engine.generate(["the sea"] * 50, GREEDY)
        expected = texts(engine)
        next(left)
        engine.close()
        with pytest.raises(UsageError, match="closed"):
            list(left)
        engine.load()
        assert repr(engine).endswith("loaded>")
        assert texts(engine) == expected
    engine.close()


def test_a_model_that_is_not_there_is_looked_for_again(tiny_model: Path, tmp_path: Path) -> None:
    engine = Engine(str(tmp_path / "model"), **SETTINGS)
    results = engine.generate(["the sea"])
    for _ in range(2):
        with pytest.raises(ModelNotFoundError):
            engine.load()
    with pytest.raises(ModelNotFoundError):
        list(results)
    (tmp_path / "model").symlink_to(tiny_model)
    with engine:
        assert len(texts(engine)) == 2


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"quantization": "int4"}, "quantization must be one of 'none', 'auto', 'int8', found 'int4'"),
        ({"max_num_seqs": 0}, "max_num_seqs must be at least 1, found 0"),
        ({"threads": 1.5}, "threads must be of type int, found 1.5"),
        ({"gpu_memory_utilization": 90}, "gpu_memory_utilization must be a number above 0 and up to 1, found 90"),
        ({"model": 3}, "model must be of type str, found 3"),
        ({"window": True}, "window must be of type int, found True"),
        ({"seed": None}, "seed must be of type int, found None"),
    ],
)
def test_settings_are_checked_at_once(settings: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=f"^{said}$"):
        Engine(**settings)  # type: ignore[arg-type]
    Engine(seed=-1, threads=None)


FORK = """
import os, sys
from batchgen import Engine
engine = Engine(sys.argv[1], max_model_len=128, kv_cache_memory=4 << 20, threads=2)
ask = lambda: [result.text for result in engine.generate(["the sea", "the hat"], {"max_tokens": 5, "temperature": 0})]
expected = ask()
running = engine.generate(["the sea"] * 200)
next(running)
if (child := os.fork()) == 0:
    os._exit(0 if ask() == expected else 1)
assert os.waitpid(child, 0)[1] == 0
assert sum(1 for _ in running) == 199
"""


def test_a_forked_process_loads_its_own(tiny_model: Path) -> None:
    """Also one that was forked in the middle of a run, whose threads it has not."""
    done = subprocess.run(
        [sys.executable, "-c", FORK, str(tiny_model)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr


def test_models_are_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCHGEN_HOME", str(tmp_path))
    with pytest.raises(ModelNotFoundError):
        Engine("smollm2-135m-instruct").load()
    assert os.environ["BATCHGEN_HOME"] == str(tmp_path)
