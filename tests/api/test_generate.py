"""`Engine.generate`: one result for each input, whatever becomes of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from batchgen import Engine
from batchgen.errors import EngineBusyError, UsageError
from tests.api.conftest import GREEDY, SETTINGS


def texts(engine: Engine) -> list[str | None]:
    """Answers of an engine that is as it should be."""
    return [result.text for result in engine.generate(["the sea", "the hat"], GREEDY)]


def test_inputs_of_every_form(engine: Engine) -> None:
    inputs: list[Any] = [
        "the sea",
        [{"role": "user", "content": "the sea"}],
        ({"role": "user", "content": "the sea"},),
        {"prompt": "the sea", "max_tokens": 2},
        {"custom_id": "line", "method": "POST", "url": "/v1/completions", "body": {"prompt": "the sea"}},
        {"custom_id": "message", "params": {"messages": [{"role": "user", "content": "the sea"}]}},
        {"prompt": "the sea", "max_completion_tokens": 3},
        3,
        b"the sea",
        {"wat": 1},
        {"custom_id": None, "body": 3},
    ]
    results = list(engine.generate(inputs, GREEDY))
    assert [result.index for result in results] == list(range(len(inputs)))
    named = {4: "line", 5: "message"}
    assert [result.custom_id for result in results] == [named.get(i, f"row-{i + 1}") for i in range(len(inputs))]
    assert [result.completion_tokens for result in results] == [5, 5, 5, 2, 5, 5, 3] + [None] * 4
    assert results[0].text == results[4].text
    assert results[1].text == results[2].text == results[5].text
    errors = [result.error for result in results[7:]]
    assert [error and error.code for error in errors] == ["invalid_type"] * 2 + ["missing_required_field"] * 2
    assert [error and error.param for error in errors] == [None, None, None, "custom_id"]
    assert all(result.response for result in results)


def test_texts_go_where_they_are_sent(engine: Engine) -> None:
    (chat,) = engine.generate(["the sea"], GREEDY, endpoint="/v1/chat/completions")
    (message,) = engine.generate([[{"role": "user", "content": "the sea"}]], GREEDY)
    assert chat.text == message.text
    (embedding,) = engine.generate(["the sea"], endpoint="/v1/embeddings")
    assert embedding.response is not None
    assert sum(x * x for x in embedding.response["data"][0]["embedding"]) == pytest.approx(1, abs=1e-4)
    assert (embedding.text, embedding.completion_tokens, embedding.error) == (None, 0, None)
    (scored,) = engine.generate([{"prompt": "the sea", "max_tokens": 0, "echo": True, "logprobs": 1}])
    assert scored.response is not None
    assert scored.text == "the sea"
    assert len(scored.response["choices"][0]["logprobs"]["token_logprobs"]) == scored.prompt_tokens


def test_results_come_in_either_order(engine: Engine) -> None:
    inputs: list[Any] = [{"prompt": "the sea", "max_tokens": 60, "ignore_eos": True}, *["the hat"] * 20]
    ordered = [result.index for result in engine.generate(inputs, GREEDY)]
    finished = [result.index for result in engine.generate(inputs, GREEDY, order="completion")]
    assert ordered == list(range(21))
    assert finished[-1] == 0
    assert sorted(finished) == ordered


@pytest.mark.parametrize("order", ["input", "completion"])
def test_inputs_are_read_as_results_are_taken(tiny_model: Path, order: Any) -> None:
    read = count()
    with Engine(str(tiny_model), **SETTINGS, window=20) as engine:
        results = engine.generate((f"the sea {next(read)}" for _ in count()), GREEDY, order=order)
        next(results)
        stopped = next(read)
        assert stopped <= 60, "two windows, and a third that is read ahead"
        taken = [next(results) for _ in range(100)]
        assert len({result.index for result in taken}) == 100
        assert next(read) - stopped <= 160
        results.close()
        for thread in threading.enumerate():
            if thread.name.startswith("encode"):
                thread.join()
        assert len(texts(engine)) == 2


def test_a_run_that_is_left_gives_way_to_the_next(engine: Engine) -> None:
    expected = texts(engine)
    for first in engine.generate([f"the sea {n}" for n in range(100)], GREEDY):
        assert first.index == 0
        break
    left = engine.generate([f"the sea {n}" for n in range(100)], GREEDY)
    next(left)
    assert texts(engine) == expected
    with pytest.raises(EngineBusyError, match="began another run"):
        list(left)
    assert texts(engine) == expected


def test_exceptions_of_the_inputs_are_the_callers(engine: Engine) -> None:
    expected = texts(engine)

    def failing() -> Iterator[str]:
        yield from ["the sea"] * 10
        raise KeyError("lost")

    with pytest.raises(KeyError, match="lost"):
        list(engine.generate(failing(), GREEDY))
    assert texts(engine) == expected

    def asking() -> Iterator[str]:
        yield texts(engine)[0] or ""

    with pytest.raises(EngineBusyError, match="not over"):
        list(engine.generate(asking(), GREEDY))
    assert texts(engine) == expected


def test_one_run_at_a_time_in_any_thread(engine: Engine) -> None:
    expected = texts(engine)

    def in_thread(function: Any) -> Any:
        got: list[Any] = []

        def work() -> None:
            try:
                got.append(function())
            except EngineBusyError as error:
                got.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return got[0]

    assert in_thread(lambda: texts(engine)) == expected
    results = engine.generate(["the sea"] * 40, GREEDY)
    next(results)
    assert isinstance(in_thread(lambda: texts(engine)), EngineBusyError)
    assert len(in_thread(lambda: list(results))) == 39, "results may be taken in another thread than before"
    assert texts(engine) == expected


def test_what_a_run_leaves_in_the_cache_serves_the_next(engine: Engine) -> None:
    prompt = ["the sea and the hat and the cat " * 3]
    first, second = (next(engine.generate(prompt, GREEDY)) for _ in range(2))  # done, though nobody asks for an end
    assert second.cached_tokens
    assert second.text == first.text
    results = engine.generate([f"{prompt[0]}{n}" for n in range(30)], GREEDY)
    next(results)
    results.close()
    (fresh,) = engine.generate(prompt, GREEDY)
    assert fresh.cached_tokens == 0, "a run that broke off leaves nothing that could be half computed"
    assert fresh.text == first.text


@pytest.mark.parametrize(
    ("inputs", "options", "said"),
    [
        ("the sea", {}, "one str"),
        ({"prompt": "the sea"}, {}, "one dict"),
        (["the sea"], {"order": "random"}, "order must be one of input, completion; found 'random'"),
        (["the sea"], {"endpoint": "/v1/x"}, "endpoint must be one of"),
    ],
)
def test_arguments_that_cannot_be_meant(engine: Engine, inputs: Any, options: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        engine.generate(inputs, **options)


def test_a_bar_shows_the_progress(engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(list(engine.generate(["the sea"] * 30, GREEDY, progress=True))) == 30
    shown = capsys.readouterr()
    assert not shown.out
    assert "30/30" in shown.err
    assert "tok/s" in shown.err
    list(engine.generate(["the sea"], GREEDY))
    assert not capsys.readouterr().err
