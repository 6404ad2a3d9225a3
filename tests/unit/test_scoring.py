"""Log-probabilities, scored prompts, penalties, several samples: whole jobs on a tiny model, against transformers."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from openai.types import Completion
from openai.types.chat import ChatCompletion
from tokenizers import Tokenizer as Backend

from batchgen.config import EngineConfig, InputConfig, JobConfig, ModelConfig, OutputConfig
from batchgen.job import run_job
from tests.golden.models import make_model
from tests.unit.test_job import Silent, line

PROMPT = [5, 9, 40, 41, 200, 7, 7, 63, 150, 22, 31, 80, 81, 99, 120, 5, 9, 40, 300, 11]
CHAT = [{"role": "user", "content": "the sea 🙂"}]

LINES = [
    line("score", prompt=PROMPT, max_tokens=0, echo=True, logprobs=3),
    line("again", prompt=PROMPT, max_tokens=0, echo=True, logprobs=3),
    line("echo", prompt="the sea 🙂", max_tokens=2, echo=True, logprobs=0, temperature=0),
    line("late", prompt=PROMPT, max_tokens=0, echo=True, prompt_logprobs=1, prompt_logprobs_start=17),
    line("whole", prompt=PROMPT, max_tokens=0, echo=True, prompt_logprobs=1),
    line("silent", prompt="the sea", max_tokens=0, echo=True),
    line("both", prompt=[PROMPT, PROMPT[:3]], max_tokens=4, n=2, seed=5, prompt_logprobs=2, logprobs=1),
    line("best", prompt=PROMPT, max_tokens=5, n=2, best_of=6, seed=5, logprobs=2, ignore_eos=True),
    line("all", prompt=PROMPT, max_tokens=5, n=6, seed=5, logprobs=2, ignore_eos=True),
    line("chat", chat=True, messages=CHAT, max_tokens=4, temperature=0, logprobs=True, top_logprobs=4),
    line("few", chat=True, messages=CHAT, max_tokens=4, temperature=0, prompt_logprobs=1),
    line(
        "penalised",
        prompt=PROMPT,
        max_tokens=12,
        temperature=0,
        repetition_penalty=1.4,
        frequency_penalty=0.7,
        presence_penalty=-0.2,
        logit_bias={"77": 4, "78": -100},
        logprobs=0,
    ),
    line("patient", prompt=PROMPT, max_tokens=9, min_tokens=9, stop_token_ids=list(range(307)), logprobs=0, seed=2),
    line("sampled", prompt=PROMPT, temperature=1.3, top_p=0.9, presence_penalty=1.5, min_tokens=4, seed=9),
]
BAD = [
    line("bias", logit_bias={"307": 1}),
    line("long", prompt=[1] * 129, max_tokens=0, echo=True),
]


def job(model: Path, folder: Path, lines: list[dict[str, Any]], **engine: Any) -> dict[str, Any]:
    """The response bodies by custom_id."""
    folder.mkdir()
    source = folder / "in.jsonl"
    source.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    settings = EngineConfig(max_model_len=128, kv_cache_memory=4 << 20, threads=1, max_num_batched_tokens=64)
    config = JobConfig(
        model=ModelConfig(model=str(model)),
        engine=replace(settings, **engine),
        input=InputConfig(input_file=str(source)),
        output=OutputConfig(output_file=str(folder / "out.jsonl")),
    )
    run_job(config, folder / "home", Silent())
    rows = map(json.loads, (folder / "out.jsonl").read_text(encoding="utf-8").splitlines())
    return {row["custom_id"]: row["response"]["body"] for row in rows}


@pytest.fixture(scope="module")
def bodies(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    return job(tiny_model, tmp_path_factory.mktemp("scoring") / "first", [*LINES, *BAD])


@pytest.fixture(scope="module")
def backend(tiny_model: Path) -> Backend:
    return Backend.from_file(str(tiny_model / "tokenizer.json"))


class Oracle:
    """transformers' log-probabilities of the tiny model."""

    def __init__(self) -> None:
        self._model = make_model("llama")

    def logits(self, ids: list[int]) -> torch.Tensor:
        """[len(ids), V] float64."""
        with torch.inference_mode():
            logits: torch.Tensor = self._model(torch.tensor([ids])).logits
        return logits[0].double()

    def logprobs(self, ids: list[int]) -> torch.Tensor:
        """[len(ids), V]: row i is about the token after ids[i]."""
        return torch.log_softmax(self.logits(ids), dim=-1)


@pytest.fixture(scope="module")
def oracle() -> Oracle:
    return Oracle()


def test_a_scored_prompt_has_transformers_logprobs(bodies: Mapping[str, Any], oracle: Oracle, backend: Backend) -> None:
    expected = oracle.logprobs(PROMPT)
    for name in ("score", "again"):
        body = bodies[name]
        (choice,) = body["choices"]
        shown = choice["logprobs"]
        assert choice["text"] == backend.decode(PROMPT)
        assert choice["finish_reason"] == "length"
        assert body["usage"]["completion_tokens"] == 0
        assert body["usage"]["prompt_tokens"] == len(PROMPT) == len(shown["tokens"])
        assert shown["token_logprobs"][0] is shown["top_logprobs"][0] is None
        for place, token in enumerate(PROMPT[1:], start=1):
            row = expected[place - 1]
            assert shown["token_logprobs"][place] == pytest.approx(float(row[token]), abs=1e-4)
            best = sorted(shown["top_logprobs"][place].values(), reverse=True)
            assert best[:3] == pytest.approx(row.topk(3).values.tolist(), abs=1e-4)
            assert shown["top_logprobs"][place][shown["tokens"][place]] == shown["token_logprobs"][place]
    assert bodies["score"]["choices"] == bodies["again"]["choices"]


def test_what_stands_before_the_start_is_not_scored(bodies: Mapping[str, Any]) -> None:
    late, whole = (bodies[name]["choices"][0]["prompt_logprobs"] for name in ("late", "whole"))
    assert late == [None] * 17 + whole[17:]
    assert all(whole[1:])
    # The others begin with the same tokens, whose blocks serve this one although nobody has scored them.
    assert bodies["late"]["usage"]["prompt_tokens_details"]["cached_tokens"] == 16
    assert bodies["whole"]["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_an_echo_is_prompt_and_answer(bodies: Mapping[str, Any]) -> None:
    (choice,) = bodies["echo"]["choices"]
    text, shown = choice["text"], choice["logprobs"]
    assert text.startswith("the sea 🙂")
    assert len(shown["tokens"]) == sum(bodies["echo"]["usage"][part] for part in ("prompt_tokens", "completion_tokens"))
    assert shown["text_offset"] == sorted(shown["text_offset"])
    assert shown["text_offset"][0] == 0
    assert shown["text_offset"][-1] <= len(text)
    assert all(math.isfinite(logprob) for logprob in shown["token_logprobs"][1:])
    assert bodies["silent"]["choices"][0] == {
        **bodies["silent"]["choices"][0],
        "text": "the sea",
        "logprobs": None,
        "finish_reason": "length",
    }


def test_bodies_with_logprobs_are_openais(bodies: Mapping[str, Any]) -> None:
    chat = ChatCompletion.model_validate(bodies["chat"], strict=True)
    assert chat.choices[0].logprobs is not None
    content = chat.choices[0].logprobs.content
    assert content is not None
    assert len(content) == bodies["chat"]["usage"]["completion_tokens"]
    for token in content:
        assert token.bytes is not None
        assert bytes(token.bytes).decode("utf-8", "backslashreplace") == token.token
        assert [other.logprob for other in token.top_logprobs] == sorted(
            (other.logprob for other in token.top_logprobs), reverse=True
        )
        assert len(token.top_logprobs) == 4
        # The answer is greedy.
        assert token.top_logprobs[0].model_dump() == token.model_dump(exclude={"top_logprobs"})
    text = Completion.model_validate(bodies["best"], strict=True)
    assert [len(choice.logprobs.tokens or []) for choice in text.choices if choice.logprobs is not None] == [5, 5]


def test_prompt_logprobs_are_vllms(bodies: Mapping[str, Any], oracle: Oracle) -> None:
    expected = oracle.logprobs(PROMPT)
    for choice in bodies["both"]["choices"]:
        shown = choice["prompt_logprobs"]
        assert shown[0] is None
        for place, (token, entry) in enumerate(zip(PROMPT[1:], shown[1:], strict=False)):
            row = expected[place]
            assert entry[str(token)]["logprob"] == pytest.approx(float(row[token]), abs=1e-4)
            assert entry[str(token)]["rank"] == int((row > row[token]).sum()) + 1
            assert {int(other) for other in entry} == {token, *row.topk(2).indices.tolist()}
    assert [len(choice["prompt_logprobs"]) for choice in bodies["both"]["choices"]] == [20, 20, 3, 3]
    assert len(bodies["few"]["prompt_logprobs"]) == bodies["few"]["usage"]["prompt_tokens"]


def test_the_best_are_shown_and_all_are_counted(bodies: Mapping[str, Any]) -> None:
    def mean(choice: Mapping[str, Any]) -> float:
        logprobs: list[float] = choice["logprobs"]["token_logprobs"]
        return sum(logprobs) / len(logprobs)

    every, best = bodies["all"]["choices"], bodies["best"]["choices"]
    assert len({choice["text"] for choice in every}) == 6
    ranked = sorted(every, key=mean, reverse=True)[:2]
    assert [choice["logprobs"] for choice in best] == [choice["logprobs"] for choice in ranked]
    assert [choice["index"] for choice in best] == [0, 1]
    assert bodies["best"]["usage"] == bodies["all"]["usage"] | {
        "prompt_tokens_details": bodies["best"]["usage"]["prompt_tokens_details"]
    }
    assert bodies["best"]["usage"]["completion_tokens"] == 30


def test_penalties_and_biases_change_the_choice_and_not_the_logprobs(
    bodies: Mapping[str, Any], oracle: Oracle, backend: Backend
) -> None:
    ids, chosen, logprobs = list(PROMPT), [], []
    for _ in range(12):
        raw = oracle.logits(ids)[-1]
        logits = raw.clone()
        logits[77] += 4
        logits[78] -= 100
        for token in set(ids):
            logits[token] = logits[token] / 1.4 if logits[token] > 0 else logits[token] * 1.4
        for token in set(ids[len(PROMPT) :]):
            logits[token] -= 0.7 * ids[len(PROMPT) :].count(token) - 0.2
        ids.append(int(logits.argmax()))
        chosen.append(backend.id_to_token(ids[-1]))
        logprobs.append(float(torch.log_softmax(raw, dim=-1)[ids[-1]]))
    (choice,) = bodies["penalised"]["choices"]
    assert choice["logprobs"]["token_logprobs"] == pytest.approx(logprobs, abs=1e-4)
    assert choice["text"] == backend.decode(ids[len(PROMPT) :])


def test_no_end_before_min_tokens(bodies: Mapping[str, Any]) -> None:
    assert bodies["patient"]["usage"]["completion_tokens"] == 9
    assert all(math.isfinite(logprob) for logprob in bodies["patient"]["choices"][0]["logprobs"]["token_logprobs"])


def test_what_does_not_fit_the_model_is_refused(bodies: Mapping[str, Any]) -> None:
    assert bodies["bias"]["error"]["param"] == "body.logit_bias"
    assert "[0, 307)" in bodies["bias"]["error"]["message"]
    assert bodies["long"]["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    "engine",
    [
        {"max_num_seqs": 3, "max_num_batched_tokens": 5, "threads": 2, "block_size": 4},
        {"max_num_seqs": 1, "max_num_batched_tokens": 300},
    ],
)
def test_bits_do_not_depend_on_the_batch(
    engine: Mapping[str, int], bodies: Mapping[str, Any], tiny_model: Path, tmp_path: Path
) -> None:
    shuffled = random.Random(3).sample(LINES, len(LINES))
    again = job(tiny_model, tmp_path / "again", shuffled, **engine)
    for name, body in again.items():
        assert body["choices"] == bodies[name]["choices"]
        assert body.get("prompt_logprobs") == bodies[name].get("prompt_logprobs")


def test_two_runs_differ_in_the_time_alone(bodies: Mapping[str, Any], tiny_model: Path, tmp_path: Path) -> None:
    again = job(tiny_model, tmp_path / "again", [*LINES, *BAD])
    for name, body in again.items():
        assert body | {"created": 0} == bodies[name] | {"created": 0}
