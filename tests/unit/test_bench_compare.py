"""Runs with several batch sizes, the saved file, and the comparison of two of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as SequenceOf
from pathlib import Path
from typing import Any

import pytest

from batchgen.bench.compare import CompareConfig, Comparison, compare
from batchgen.bench.datasets import BenchRequest, DatasetConfig
from batchgen.bench.saved import digest_of, read_saved, result_json
from batchgen.bench.sweep import Point, RunsConfig, fastest, measure_points, point_lines
from batchgen.bench.throughput import Throughput
from batchgen.config import EngineConfig, ModelConfig
from batchgen.core.sampling import SamplingParams
from batchgen.core.sequence import Sequence
from batchgen.errors import UsageError
from batchgen.job.loading import open_engine
from batchgen.ui import QuietReporter

REQUESTS = (BenchRequest([1, 2, 3], 4), BenchRequest([5], 2))


def run(elapsed_s: float) -> Throughput:
    return Throughput(
        elapsed_s=elapsed_s, num_requests=2, prompt_tokens=60, output_tokens=40, cached_tokens=0, preemptions=0
    )


def save(path: Path, *points: Point, **changed: Any) -> Path:
    content = result_json(
        points,
        requests=changed.get("requests", REQUESTS),
        dataset=DatasetConfig(dataset_name="custom", dataset_path=Path("x.jsonl")),
        model=ModelConfig(),
        settings=changed.get("settings", EngineConfig()),
        engine={"model": changed.get("model", "m"), "precision": "float32", "kernels": "torch"},
        machine={"cpu": changed.get("cpu", "c"), "python": "3", "system": "any"},
        load_time=1.5,
        bound_s=0.5,
    )
    path.write_text(json.dumps(content))
    return path


def test_the_median_run_and_the_fastest_point_count(tmp_path: Path) -> None:
    points = [Point(8, [run(4.0), run(1.0), run(2.0)]), Point(32, [run(1.5), run(9.0)])]
    assert [point.median.elapsed_s for point in points] == [2.0, 1.5]
    assert fastest(points).max_num_seqs == 32
    content = read_saved(save(tmp_path / "a.json", *points)).content
    assert (content["elapsed_time"], content["tokens_per_second"], content["max_num_seqs"]) == (1.5, 100 / 1.5, 32)
    assert [point["efficiency"] for point in content["points"]] == [0.25, 1 / 3]
    assert [run["elapsed_time"] for run in content["points"][0]["runs"]] == [4.0, 1.0, 2.0]
    _, small, large = point_lines(content["points"])
    assert small.split() == ["8", "1.00", "50.0", "20.0", "150.0%", "25.0%"]
    assert large.split() == ["32", "1.33", "66.7", "26.7", "500.0%", "33.3%"]


def test_the_digest_tells_work_apart() -> None:
    others = [REQUESTS[::-1], REQUESTS[:1], (BenchRequest([1, 2, 3], 5), REQUESTS[1])]
    assert len({digest_of(REQUESTS), *map(digest_of, others)}) == 4
    assert digest_of(REQUESTS) == digest_of([BenchRequest((1, 2, 3), 4), BenchRequest(range(5, 6), 2)])


def found(tmp_path: Path, before: list[float], after: list[float], **config: Any) -> Comparison:
    one = save(tmp_path / "a.json", Point(8, [run(s) for s in before]))
    other = save(tmp_path / "b.json", Point(8, [run(s) for s in after]), settings=EngineConfig(quantization="int8"))
    return compare(one, other, CompareConfig(**config))


@pytest.mark.parametrize(
    ("before", "after", "verdict", "fails"),
    [
        ([4.0], [8.0], "noise unknown", True),
        ([4.0, 4.4], [8.0], "noise unknown", True),
        ([4.0, 4.4, 4.2], [8.0, 8.2, 8.1], "slower", True),
        ([4.0, 4.4, 9.0], [8.0, 8.2, 8.1], "within noise", False),
        ([4.0, 4.4, 4.2], [4.1, 4.9, 4.8], "within noise", False),
        ([8.0, 8.2, 8.1], [4.0, 4.4, 4.2], "faster", False),
    ],
)
def test_a_verdict_looks_at_all_runs(
    tmp_path: Path, before: list[float], after: list[float], verdict: str, fails: bool
) -> None:
    comparison = found(tmp_path, before, after)
    assert {figure.verdict for figure in comparison.figures} == {verdict}
    assert [figure.name for figure in comparison.below(0.95)] == ["total tok/s"] * fails
    assert comparison.differences == {"settings.quantization": ("none", "int8")}


def test_ratios_and_spreads(tmp_path: Path) -> None:
    _, speed, _ = found(tmp_path, [4.0, 5.0, 10.0], [2.0, 2.5, 4.0]).figures
    assert (speed.before, speed.after, speed.ratio) == (20.0, 40.0, 2.0)
    assert (speed.spread_before, speed.spread_after) == ((25.0 - 10.0) / 20.0, (50.0 - 25.0) / 40.0)
    lines = list(found(tmp_path, [4.0], [8.0]).lines())
    assert lines[2] == 'differs  settings.quantization: "none" -> "int8"'
    assert lines[5].split() == ["8", "total", "tok/s", "25.00", "12.50", "0.500", "noise", "unknown"]


@pytest.mark.parametrize(
    ("changed", "name"),
    [({"requests": REQUESTS[:1]}, "workload.digest"), ({"model": "n"}, "model.name"), ({"cpu": "d"}, "machine.cpu")],
)
def test_other_work_model_or_machine_is_refused(tmp_path: Path, changed: dict[str, Any], name: str) -> None:
    one, other = (
        save(tmp_path / "a.json", Point(8, [run(1.0)])),
        save(tmp_path / "b.json", Point(8, [run(1.0)]), **changed),
    )
    with pytest.raises(UsageError, match=name):
        compare(one, other, CompareConfig())
    assert name in compare(one, other, CompareConfig(compare_anyway=True)).differences


def test_batch_sizes_are_compared_with_themselves(tmp_path: Path) -> None:
    one = save(tmp_path / "a.json", Point(8, [run(1.0)]), Point(32, [run(2.0)]))
    other = save(tmp_path / "b.json", Point(32, [run(1.0)]), Point(64, [run(2.0)]))
    assert {(figure.max_num_seqs, figure.ratio) for figure in compare(one, other, CompareConfig()).figures} == {
        (32, 2.0)
    }
    with pytest.raises(UsageError, match=r"a\.json has \[8, 32\]"):
        compare(one, save(tmp_path / "c.json", Point(4, [run(1.0)])), CompareConfig())


@pytest.mark.parametrize(("text", "words"), [("{", "as JSON"), ("[]", "schema is None"), ('{"schema": 2}', "is 2")])
def test_other_files_are_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=words):
        read_saved(path)


@pytest.mark.parametrize("sizes", ["", "8,", "0", "8,x", "08"])
def test_sizes_that_are_none(sizes: str) -> None:
    with pytest.raises(UsageError):
        RunsConfig(sweep_max_num_seqs=sizes)


class Recording:
    """An engine that remembers how many sequences it was allowed."""

    def __init__(self) -> None:
        self.limits: list[int | None] = []

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


def test_batch_sizes_take_turns() -> None:
    engine = Recording()
    points = measure_points(engine, REQUESTS, (1, 4), 3, QuietReporter())
    assert engine.limits == [1, 4, 1, 4, 1, 4]
    assert [(point.max_num_seqs, len(point.runs)) for point in points] == [(1, 3), (4, 3)]


def test_a_limited_engine_runs_as_one_that_was_loaded_so(tiny_model: Path, tmp_path: Path) -> None:
    prompts = [[number, number + 1, number + 2] for number in range(6)]
    params = [SamplingParams(max_tokens=5, temperature=0.0)] * len(prompts)

    def steps(max_num_seqs: int, limit: int | None) -> tuple[list[tuple[int, list[int]]], int, int]:
        model, settings = ModelConfig(model=str(tiny_model)), EngineConfig(max_num_seqs=max_num_seqs)
        engine = open_engine(model, settings, tmp_path)
        try:
            order = [(s.seq_id, list(s.output)) for s in engine.generate(prompts, params, max_num_seqs=limit)]
            capacity = engine.capacity(limit)
        finally:
            engine.close()
        return order, capacity.max_num_seqs, capacity.num_blocks

    assert steps(6, 2) == steps(2, None)
    assert steps(6, 2) != steps(6, None)
