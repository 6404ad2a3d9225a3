"""The evaluation harness gives the same results with its own `hf` model and with ours."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lm_eval
import pytest
from lm_eval.api.instance import Instance
from lm_eval.api.registry import get_model, model_registry
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

from batchgen.errors import UsageError
from batchgen.integrations.lm_eval import BatchgenLM, main, register
from tests.golden.models import make_model, save_checkpoint
from tests.tiny_tokenizers import byte_fallback, byte_level

MAX_LENGTH = 60

TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system here') }}{% endif %}"
    "<|user|>{{ m.role }}: {{ m.content }}</s>{% endfor %}{% if add_generation_prompt %}<|user|>assistant:{% endif %}"
)

CHOICES = [
    {"question": "the cat sat on the", "choices": ["mat", "end", "wörld 🙂"], "answer": 0},
    {"question": "stop here ", "choices": ["STOP there", "the end."], "answer": 1},
    {"question": "", "choices": ["the cat", "def f(x):", "héllo"], "answer": 2},
    {"question": "the mat, the end. " * 9, "choices": ["the cat sat", "x"], "answer": 0},
]
"""The third has no context, the last one more than the models see."""

TEXTS = [{"text": "the cat sat on the mat, the end. " * count + "héllo 日本語"} for count in (1, 2, 12)]

QUESTIONS = [{"question": text} for text in ("the cat", "def f(x):\n", "héllo wörld 日本", "stop " * 60)]

TASKS: Mapping[str, tuple[list[dict[str, Any]], str]] = {
    "choose": (
        CHOICES,
        """
        output_type: multiple_choice
        doc_to_text: "{{question}}"
        doc_to_choice: "{{choices}}"
        doc_to_target: "{{answer}}"
        metric_list: [{metric: acc}, {metric: acc_norm}]
        """,
    ),
    "answer": (
        QUESTIONS,
        """
        output_type: generate_until
        doc_to_text: "{{question}}"
        doc_to_target: "the end."
        generation_kwargs: {until: ["e", "x)"], max_gen_toks: 20, do_sample: false}
        metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
        """,
    ),
    "read": (
        TEXTS,
        """
        output_type: loglikelihood_rolling
        doc_to_text: ""
        doc_to_target: "{{text}}"
        metric_list: [{metric: word_perplexity}, {metric: bits_per_byte}]
        """,
    ),
}
"""Documents and the rest of the task's file."""


def make_folder(folder: Path, tokenizer: Any) -> Path:
    """A random Llama with a tokenizer that has a BOS or not."""
    folder.mkdir()
    save_checkpoint(make_model("llama"), folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "</s>",
        "chat_template": TEMPLATE,
        **({"bos_token": "<s>"} if tokenizer.encode("").ids else {}),
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


@pytest.fixture(scope="module", params=["byte-level", "byte-fallback with BOS"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = byte_level(300) if request.param == "byte-level" else byte_fallback()
    return make_folder(tmp_path_factory.mktemp("models") / "random", tokenizer)


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of tasks with their documents."""
    folder = tmp_path_factory.mktemp("tasks")
    for name, (documents, rest) in TASKS.items():
        data = folder / f"{name}.jsonl"
        data.write_text("\n".join(map(json.dumps, documents)), encoding="utf-8")
        head = f"task: {name}\ntest_split: test\ndataset_path: json\n"
        kwargs = json.dumps({"data_files": {"test": str(data)}, "cache_dir": str(folder / "cache")})
        lines = [line.strip() for line in rest.strip().splitlines()]
        (folder / f"{name}.yaml").write_text(f"{head}dataset_kwargs: {kwargs}\n" + "\n".join(lines), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def theirs(folder: Path) -> HFLM:
    return HFLM(pretrained=str(folder), dtype="float32", device="cpu", batch_size=3, max_length=MAX_LENGTH)


@pytest.fixture(scope="module")
def ours(folder: Path) -> BatchgenLM:
    return BatchgenLM(str(folder), max_length=MAX_LENGTH, max_num_seqs=8, threads=1, kv_cache_memory=4 << 20)


def instances(*arguments: tuple[Any, ...]) -> list[Instance]:
    return [Instance("loglikelihood", {}, each, number) for number, each in enumerate(arguments)]


def evaluated(model: Any, tasks: Path) -> Mapping[str, Any]:
    manager = TaskManager(include_path=str(tasks), include_defaults=False)
    found: Mapping[str, Any] = lm_eval.simple_evaluate(
        model, tasks=list(TASKS), task_manager=manager, log_samples=True, bootstrap_iters=0
    )
    return found


def test_tasks_come_out_as_with_the_hf_model(theirs: HFLM, ours: BatchgenLM, tasks: Path) -> None:
    expected, found = evaluated(theirs, tasks), evaluated(ours, tasks)
    for name, (documents, _) in TASKS.items():
        samples = [sorted(each["samples"][name], key=lambda sample: sample["doc_id"]) for each in (expected, found)]
        assert [len(each) for each in samples] == [len(documents)] * 2
        for one, other in zip(*samples, strict=True):
            if name == "answer":
                assert other["resps"] == one["resps"]
            else:
                scores, own = (list(_flat(sample["resps"])) for sample in (one, other))
                assert own == pytest.approx(scores, abs=1e-4)
        for metric, value in expected["results"][name].items():
            if isinstance(value, float):
                assert found["results"][name][metric] == pytest.approx(value, rel=1e-5)
    assert any(sample["resps"][0][0] for sample in found["samples"]["answer"])
    assert len({sample["acc"] for sample in found["samples"]["choose"]}) == 2


def _flat(values: Any) -> Any:
    """The numbers in nested lists."""
    if isinstance(values, list | tuple):
        for value in values:
            yield from _flat(value)
    else:
        yield float(values)


def test_the_greedy_token_is_the_most_probable_one(theirs: HFLM, ours: BatchgenLM) -> None:
    context = ours.tok_encode("the cat sat on")
    each = [(None, context, [token]) for token in range(307)]
    found, expected = (model._loglikelihood_tokens(each, disable_tqdm=True) for model in (ours, theirs))
    assert [score for score, _ in found] == pytest.approx([score for score, _ in expected], abs=1e-4)
    assert [greedy for _, greedy in found] == [greedy for _, greedy in expected]
    assert sum(greedy for _, greedy in found) == 1
    best = max(range(307), key=lambda token: found[token][0])
    pairs = [(None, context, [best, 7]), (None, context, [7, best])]
    assert [greedy for _, greedy in ours._loglikelihood_tokens(pairs, disable_tqdm=True)] == [False, False]


CHATS = [
    [{"role": "user", "content": "the cat"}],
    [{"role": "user", "content": "a"}, {"role": "assistant", "content": " b "}, {"role": "user", "content": "c"}],
    [{"role": "system", "content": "be brief"}, {"role": "user", "content": "the cat"}],
    [{"role": "user", "content": "the cat"}, {"role": "assistant", "content": "The answer is"}],
]


@pytest.mark.parametrize("chat", CHATS)
def test_chats_are_rendered_as_by_transformers(theirs: HFLM, ours: BatchgenLM, chat: list[dict[str, str]]) -> None:
    begins = chat[-1]["role"] == "user"
    text = ours.apply_chat_template(chat, add_generation_prompt=begins)
    assert text == theirs.apply_chat_template(chat, add_generation_prompt=begins)
    assert ours.tok_encode(text) == theirs.tok_encode(text)
    assert ours.chat_template(True) == TEMPLATE
    assert ours.chat_template(False) is None


def test_sampled_answers_differ_and_stop(ours: BatchgenLM) -> None:
    until = [*"abcdefghijklmnopqr"]  # more than a request takes
    settings = {"until": until, "max_gen_toks": 12, "do_sample": True, "temperature": 1.5}
    texts = ours.generate_until([Instance("generate_until", {}, ("the cat", settings), number) for number in range(8)])
    assert len(set(texts)) > 1
    assert not any(stop in text for text in texts for stop in until)


def test_what_can_not_be_done_is_said(ours: BatchgenLM) -> None:
    refused: dict[str, dict[str, Any]] = {
        "no room": {"max_gen_toks": MAX_LENGTH},
        "unsupported_parameter": {"max_gen_toks": 4, "num_beams": 4},
    }
    for words, settings in refused.items():
        with pytest.raises(UsageError, match=words):
            ours.generate_until([Instance("generate_until", {}, ("the cat", {"until": []} | settings), 0)])
    with pytest.raises(UsageError, match="the model sees 1 to 60"):
        ours.loglikelihood(instances(("the", " cat" * 80)), disable_tqdm=True)


def test_the_command_line_of_the_harness_knows_the_model(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["lm_eval"])
    main()
    assert "lm-eval" in capsys.readouterr().out
    register()
    assert "batchgen" in model_registry
    # As the command line makes it of --model_args.
    model = get_model("batchgen").create_from_arg_obj(
        {"pretrained": str(folder), "max_num_seqs": 2}, {"batch_size": 1, "max_batch_size": None, "device": "cuda:0"}
    )
    assert model.max_length == 255
    assert model.tokenizer_name.startswith("random-")
