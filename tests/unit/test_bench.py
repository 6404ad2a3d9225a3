"""The data sets and figures of the throughput benchmark."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from batchgen.bench.datasets import BenchRequest, DatasetConfig, load_dataset
from batchgen.bench.throughput import Spent, Throughput, measure, profile_of, warm_up
from batchgen.core.sampling import SamplingParams
from batchgen.core.sequence import Sequence
from batchgen.errors import UsageError
from batchgen.protocol.request import ChatPrompt, Prompt, TextPrompt, TokenPrompt
from batchgen.ui import QuietReporter


def encode(prompt: Prompt) -> list[int]:
    """One token a character; a chat prompt begins with 1000."""
    match prompt:
        case TextPrompt(text):
            return [ord(c) for c in text]
        case TokenPrompt(ids):
            return list(ids)
        case ChatPrompt(messages):
            return [1000, *(ord(c) for message in messages for c in message["content"])]


def load(seed: int = 0, **options: Any) -> list[BenchRequest]:
    return load_dataset(DatasetConfig(**options), vocab_size=50, encode=encode, seed=seed)


def test_random_prompts_are_seeded_and_share_their_prefix() -> None:
    requests = load(num_prompts=5, input_len=7, output_len=3, prefix_len=4)
    assert requests == load(num_prompts=5, input_len=7, output_len=3, prefix_len=4)
    assert requests != load(seed=1, num_prompts=5, input_len=7, output_len=3, prefix_len=4)
    assert {(len(request.prompt), request.output_len) for request in requests} == {(11, 3)}
    assert len({tuple(request.prompt[:4]) for request in requests}) == 1
    assert len({tuple(request.prompt[4:]) for request in requests}) == 5
    assert {token for request in load(num_prompts=3) for token in request.prompt} == set(range(50))


def test_random_defaults_are_those_of_vllm() -> None:
    requests = load(num_prompts=2)
    assert [(len(request.prompt), request.output_len) for request in requests] == [(1024, 128)] * 2


def test_prefix_repetition_shares_each_prefix_equally() -> None:
    requests = load(dataset_name="prefix_repetition", num_prompts=13, num_prefixes=3, prefix_len=5, input_len=2)
    prefixes = [tuple(request.prompt[:5]) for request in requests]
    assert sorted(prefixes.count(prefix) for prefix in set(prefixes)) == [4, 4, 4]
    assert {(len(request.prompt), request.output_len) for request in requests} == {(7, 128)}


def sharegpt(tmp_path: Path, *pairs: tuple[str, str]) -> Path:
    entries = [
        {"id": str(i), "conversations": [{"from": "human", "value": q}, {"from": "gpt", "value": a}]}
        for i, (q, a) in enumerate(pairs)
    ]
    path = tmp_path / "sharegpt.json"
    path.write_text(json.dumps([*entries, {"conversations": [{"value": "no answer here"}]}]))
    return path


def test_sharegpt_takes_question_and_length_of_the_answer(tmp_path: Path) -> None:
    path = sharegpt(
        tmp_path, ("long enough", "fine answer"), ("abc", "short question"), ("a question", "no"), ("x" * 1025, "y" * 9)
    )
    assert load(dataset_name="sharegpt", dataset_path=path) == [BenchRequest(encode(TextPrompt("long enough")), 11)]
    fixed = load(dataset_name="sharegpt", dataset_path=path, output_len=2)
    assert sorted(len(request.prompt) for request in fixed) == [10, 11]
    assert {request.output_len for request in fixed} == {2}


def test_sharegpt_draws_by_the_seed(tmp_path: Path) -> None:
    path = sharegpt(tmp_path, *((f"question {i}", "answer") for i in range(40)))
    few = load(dataset_name="sharegpt", dataset_path=path, num_prompts=5)
    assert len(few) == 5
    assert few == load(dataset_name="sharegpt", dataset_path=path, num_prompts=5)
    assert few != load(1, dataset_name="sharegpt", dataset_path=path, num_prompts=5)


def test_custom_lines_in_all_their_forms(tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = [
        {"prompt": "a", "output_len": 2},
        {"prompt": "b", "output_tokens": 3},
        {"prompt": [5, 6]},
        {"custom_id": "x", "url": "/v1/completions", "body": {"prompt": "c", "max_tokens": 4}},
        {"body": {"messages": [{"role": "user", "content": "d"}], "max_completion_tokens": 5, "max_tokens": 9}},
    ]
    path = tmp_path / "custom.jsonl"
    path.write_text("\ufeff" + "\n\n".join(json.dumps(line) for line in lines), encoding="utf-8")
    assert load(dataset_name="custom", dataset_path=path) == [
        BenchRequest([97], 2),
        BenchRequest([98], 3),
        BenchRequest([5, 6], 256),
        BenchRequest([99], 4),
        BenchRequest([1000, 100], 5),
    ]
    assert load(dataset_name="custom", dataset_path=path, num_prompts=1, output_len=9) == [BenchRequest([97], 9)]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"prompt": "a"}\n{"text": "b"}', "line 2: neither"),
        ("\n[1]", "line 2: not a JSON object"),
        ('{"prompt": ', "line 1: not JSON"),
        ('{"prompt": "a", "output_len": 0}', "line 1: the output length"),
        ('{"prompt": "a", "max_tokens": "9"}', "line 1: the output length"),
        ("", "no prompts"),
    ],
)
def test_a_faulty_custom_line_is_named(tmp_path: Path, line: str, words: str) -> None:
    path = tmp_path / "custom.jsonl"
    path.write_text(line)
    with pytest.raises(UsageError, match=words):
        load(dataset_name="custom", dataset_path=path)


@pytest.mark.parametrize(
    "options",
    [
        {"dataset_name": "custom"},
        {"dataset_name": "custom", "dataset_path": Path("/nowhere/x.jsonl")},
        {"dataset_name": "sharegpt", "dataset_path": Path("/nowhere/x.json")},
        {"dataset_name": "sharegpt", "dataset_path": Path(__file__)},
        {"dataset_name": "custom", "dataset_path": Path(__file__), "input_len": 3},
        {"dataset_path": Path(__file__)},
        {"input_len": 0},
        {"dataset_name": "prefix_repetition", "num_prompts": 3},
        {"dataset_name": "prefix_repetition", "input_len": 0, "prefix_len": 0},
    ],
)
def test_options_that_do_not_fit(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        load(**options)


def test_text_needs_a_tokenizer() -> None:
    config = DatasetConfig(dataset_name="custom", dataset_path=Path(__file__))
    with pytest.raises(UsageError, match="tokenizer"):
        load_dataset(config, vocab_size=50, encode=None, seed=0)


@dataclass
class FakeEngine:
    """Answers with zeros, last prompt first; `lost` tokens of each answer are missing."""

    lost: int = 0
    params: list[SamplingParams] = field(default_factory=list)

    def generate(self, prompts: Iterable[SequenceOf[int]], params: Iterable[SamplingParams]) -> Iterator[Sequence]:
        pairs = list(zip(prompts, params, strict=True))
        for number, (prompt, sampling) in reversed(list(enumerate(pairs))):
            self.params.append(sampling)
            output = [0] * (sampling.max_tokens - self.lost)
            yield Sequence(number, prompt, sampling, output=output, cached=2, preemptions=1)


REQUESTS = (BenchRequest(range(10), 6), BenchRequest([1, 2], 3))


def test_measure_counts_what_the_engine_did() -> None:
    engine = FakeEngine()
    warm_up(engine, REQUESTS)
    result = measure(engine, REQUESTS, QuietReporter())
    assert result == Throughput(
        elapsed_s=result.elapsed_s,
        num_requests=2,
        prompt_tokens=12,
        output_tokens=9,
        cached_tokens=4,
        preemptions=2,
    )
    assert 0 < result.elapsed_s < 1
    assert [params.max_tokens for params in engine.params] == [4, 3, 6]  # the first warms up
    assert all(params.greedy and not params.stop_token_ids for params in engine.params)


def test_an_engine_that_stops_early_is_no_measurement() -> None:
    with pytest.raises(UsageError, match="7 of 9 tokens"):
        measure(FakeEngine(lost=1), REQUESTS, QuietReporter())


def test_lines_and_keys_of_vllm() -> None:
    result = Throughput(
        elapsed_s=4.0, num_requests=3, prompt_tokens=30, output_tokens=12, cached_tokens=0, preemptions=0
    )
    assert result.lines() == (
        "Throughput: 0.75 requests/s, 10.50 total tokens/s, 3.00 output tokens/s",
        "Total num prompt tokens:  30",
        "Total num output tokens:  12",
    )
    vllm = {
        "elapsed_time": 4.0,
        "num_requests": 3,
        "total_num_tokens": 42,
        "requests_per_second": 0.75,
        "tokens_per_second": 10.5,
    }
    assert vllm.items() <= result.to_json().items()


def test_a_profile_adds_up_to_the_whole_time() -> None:
    before = Spent({"norm": (1, 0.25)}, kernel_s=0.5)
    lines = profile_of(before, Spent({"norm": (4, 0.75), "linear": (7, 4.0)}, kernel_s=5.5), elapsed_s=8.0)
    assert [line.split() for line in lines] == [
        ["linear", "7", "4.000", "s", "50.0%"],
        ["outside", "kernels", "3.000", "s", "37.5%"],
        ["norm", "3", "0.500", "s", "6.2%"],
        ["other", "kernels", "0.500", "s", "6.2%"],
    ]
    silent = profile_of(Spent({}, 0.0), Spent({}, 5.0), 8.0)
    assert [line.split()[2] for line in silent] == ["5.000", "3.000"]
