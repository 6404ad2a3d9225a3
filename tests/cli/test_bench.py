"""`batchgen bench throughput` with a stub engine."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Sequence as SequenceOf
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from batchgen.config import EngineConfig, ModelConfig
from batchgen.core.bound import Work
from batchgen.core.sampling import SamplingParams
from batchgen.core.sequence import Sequence
from batchgen.errors import UsageError
from tests.cli.conftest import Invoke


class StubRunner:
    """Has done nothing."""

    kernel_s = 0.0

    def op_times(self) -> dict[str, tuple[int, float]]:
        return {}


class StubEngine:
    """Answers with zeros."""

    tokenizer = None
    runner = StubRunner()
    vocab_size = 50
    closed = False

    def generate(self, prompts: Iterable[SequenceOf[int]], params: Iterable[SamplingParams]) -> Iterator[Sequence]:
        for number, (prompt, sampling) in enumerate(zip(prompts, params, strict=True)):
            yield Sequence(number, prompt, sampling, output=[0] * sampling.max_tokens)

    def describe(self) -> Mapping[str, Any]:
        return {"dtype": "float32"}

    def bound_s(self, work: Work, _home: Path) -> float | None:
        assert work.tokens == 4 * (6 + 2)
        return None

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[tuple[ModelConfig, EngineConfig, StubEngine]]:
    """The engines that the command opened."""
    opened = []

    def open_engine(model: ModelConfig, engine: EngineConfig, _home: Path) -> StubEngine:
        opened.append((model, engine, StubEngine()))
        return opened[-1][2]

    module = ModuleType("batchgen.job")
    module.open_engine = open_engine  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "batchgen.job", module)
    return opened


Opened = list[tuple[ModelConfig, EngineConfig, StubEngine]]


def test_a_command_of_vllm_with_another_first_word(invoke: Invoke, opened: Opened, tmp_path: Path) -> None:
    command = """bench throughput --model m --load-format dummy --dataset-name random --random-input-len 6
        --output-len 3 --num-prompts 4 --max-num-seqs 2 --seed 1 --output-json"""
    result = invoke(*command.split(), tmp_path / "figures.json")
    assert result.exit_code == 0
    speed, prompt, output = result.stdout.splitlines()
    assert speed.startswith("Throughput: ")
    assert (prompt, output) == ("Total num prompt tokens:  24", "Total num output tokens:  12")
    ((model, engine, stub),) = opened
    assert model == ModelConfig(model="m", load_format="dummy")
    assert engine == EngineConfig(max_num_seqs=2, seed=1)
    assert stub.closed
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["total_num_tokens"] == 36
    assert figures["engine"] == {"dtype": "float32"}


def test_a_fault_closes_the_engine(invoke: Invoke, opened: Opened) -> None:
    result = invoke("bench", "throughput", "--input-len", "0")
    assert result.exit_code == 2
    assert "error: --input-len 0" in result.stderr
    assert opened[0][2].closed


def test_options_that_do_not_fit_are_found_before_the_model_is_loaded(invoke: Invoke, opened: Opened) -> None:
    assert isinstance(invoke("bench", "throughput", "--dataset-name", "sharegpt").exception, UsageError)
    assert not opened
