"""`batchgen bench throughput` with a stub engine, and `batchgen bench compare` of what it wrote."""

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
    """Answers with zeros, and remembers the batch size of each run."""

    def __init__(self) -> None:
        self.limits: list[int | None] = []

    tokenizer = None
    runner = StubRunner()
    vocab_size = 50
    closed = False

    def generate(
        self,
        prompts: Iterable[SequenceOf[int]],
        params: Iterable[SamplingParams],
        *,
        max_num_seqs: int | None = None,
    ) -> Iterator[Sequence]:
        self.limits.append(max_num_seqs)
        for number, (prompt, sampling) in enumerate(zip(prompts, params, strict=True)):
            yield Sequence(number, prompt, sampling, output=[0] * sampling.max_tokens)

    def describe(self) -> Mapping[str, Any]:
        return {"model": "stub", "precision": "float32", "kernels": "none"}

    def machine(self) -> Mapping[str, Any]:
        return {"cpu": "stub", "cores": 2, "python": "3", "system": "any"}

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
    assert (figures["schema"], figures["total_num_tokens"], figures["max_num_seqs"]) == ("batchgen.bench/1", 36, 2)
    assert (figures["engine"], figures["machine"]) == ({"kernels": "none"}, {"cpu": "stub", "cores": 2})
    assert figures["model"] == {"name": "stub", "precision": "float32"}
    assert (figures["settings"]["max_num_seqs"], figures["settings"]["load_format"]) == (2, "dummy")
    assert (figures["workload"]["dataset_name"], figures["workload"]["seed"]) == ("random", 1)
    (point,) = figures["points"]
    assert len(point["runs"]) == 1


def test_a_fault_closes_the_engine(invoke: Invoke, opened: Opened) -> None:
    result = invoke("bench", "throughput", "--input-len", "0")
    assert result.exit_code == 2
    assert "error: --input-len 0" in result.stderr
    assert opened[0][2].closed


def test_options_that_do_not_fit_are_found_before_the_model_is_loaded(invoke: Invoke, opened: Opened) -> None:
    assert isinstance(invoke("bench", "throughput", "--dataset-name", "sharegpt").exception, UsageError)
    assert not opened


WORK = ("--input-len", "6", "--output-len", "3", "--num-prompts", "4", "--max-num-batched-tokens", "16")


def test_a_sweep_loads_one_engine_and_takes_turns(invoke: Invoke, opened: Opened, tmp_path: Path) -> None:
    sweep = ("--sweep-max-num-seqs", "8,2,99", "--num-runs", "2", "--output-json", tmp_path / "sweep.json")
    result = invoke("bench", "throughput", *WORK, *sweep)
    assert result.exit_code == 0
    ((_, settings, stub),) = opened
    assert settings.max_num_seqs == 16  # a step of 16 tokens holds no more
    assert stub.limits == [None, 2, 8, 16, 2, 8, 16]  # the first warms up
    head, *rows, _, _, _ = result.stdout.splitlines()
    assert head.split()[0] == "max-num-seqs"
    assert [row.split()[0] for row in rows] == ["2", "8", "16"]
    figures = json.loads((tmp_path / "sweep.json").read_text())
    assert [(point["max_num_seqs"], len(point["runs"])) for point in figures["points"]] == [(2, 2), (8, 2), (16, 2)]
    assert figures["tokens_per_second"] == max(point["tokens_per_second"] for point in figures["points"])


def test_sizes_that_are_none_are_found_before_the_model_is_loaded(invoke: Invoke, opened: Opened) -> None:
    result = invoke("bench", "throughput", "--sweep-max-num-seqs", "8,0")
    assert isinstance(result.exception, UsageError)
    assert not opened


def test_compare_as_text_json_and_exit_code(invoke: Invoke, opened: Opened, tmp_path: Path) -> None:
    assert opened == []
    before, after = tmp_path / "a.json", tmp_path / "b.json"
    invoke("bench", "throughput", *WORK, "--output-json", before)
    figures = json.loads(before.read_text())
    for runs in (figures["points"][0]["runs"], figures["points"]):
        runs[0]["tokens_per_second"] /= 2
    after.write_text(json.dumps(figures))
    result = invoke("bench", "compare", before, after)
    assert result.exit_code == 0
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["A", "B", "max-num-seqs", *["16"] * 3, "One"]
    failed = invoke("bench", "compare", before, after, "--fail-below", "0.6", "--json")
    assert (failed.exit_code, invoke("bench", "compare", before, after, "--fail-below", "0.4").exit_code) == (3, 0)
    found = json.loads(failed.stdout)
    assert found["failed"]
    assert [(figure["name"], round(figure["ratio"], 3)) for figure in found["figures"]] == [
        ("requests/s", 1.0),
        ("total tok/s", 0.5),
        ("output tok/s", 1.0),
    ]
