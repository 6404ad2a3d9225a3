"""Penalties, biases, log-probabilities, scores of prompts, the best of several, embeddings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tests.table.case import Case, bad, chat, completion, embedding
from tests.table.parameters import ranged, taken, typed
from tests.tiny_tokenizers import byte_level

A = byte_level().token_to_id("a")
ALWAYS_A: Mapping[str, Any] = {"logit_bias": {str(A): 100}}
"""Of the model's random tokens this one is chosen always."""


def letters(name: str, body: Mapping[str, Any], **expected: Any) -> Case:
    return completion(name, {**ALWAYS_A, **body}, **expected)


def scored(wanted: Callable[[Any], bool]) -> dict[str, Any]:
    """The log-probabilities of the first choice are as wanted, and finite numbers."""

    def check(body: Mapping[str, Any]) -> bool:
        return wanted(body["choices"][0]["logprobs"])

    return {"check": check}


PENALTIES = [
    *taken("frequency_penalty", -2, 2, 0.5, 0, None),
    *ranged("frequency_penalty", -2.1, 2.1),
    *typed("frequency_penalty", "1", True),
    *taken("presence_penalty", -2, 2),
    *ranged("presence_penalty", 3),
    *typed("presence_penalty", [0]),
    *taken("repetition_penalty", 0.1, 1, 1.3),
    *ranged("repetition_penalty", 0, -1),
    *typed("repetition_penalty", "1.3", True),
    *taken("logit_bias", {}, {"5": -100}, {"5": 1.5, "6": 0}, None),
    *typed("logit_bias", [5], "5"),
    completion("a bias too large", {"logit_bias": {"5": 101}}, **bad("invalid_value")),
    completion("a bias in words", {"logit_bias": {"5": "much"}}, **bad("invalid_type")),
    completion("a bias for a word", {"logit_bias": {"the": 1}}, **bad("invalid_value")),
    completion("a bias for a fraction", {"logit_bias": {"1.5": 1}}, **bad("invalid_value")),
    completion(
        "a bias for no token", {"logit_bias": {"307": 1}}, **bad("invalid_value", "body.logit_bias", "vocabulary")
    ),
    letters("always the same", {}, text="aaaa", finish="length", tokens=4),
    letters("always the same, drawn", {"temperature": 2, "top_p": 0.5, "seed": 1}, text="aaaa"),
    letters("penalties too small to matter", {"frequency_penalty": 2, "presence_penalty": 2}, text="aaaa"),
    letters("a stop within the text", {"stop": "aaa"}, text="", finish="stop", tokens=3),
    letters("a stop that is shown", {"stop": "aa", "include_stop_str_in_output": True}, text="aa", finish="stop"),
    letters("the first of two stops", {"stop": ["aaa", "aa"]}, text="", finish="stop", tokens=2),
    letters("a stop that comes too late", {"stop": "aaaaa"}, text="aaaa", finish="length"),
    letters("a token that stops", {"stop_token_ids": [A]}, text="", finish="stop", tokens=1),
    letters("not before the third", {"stop_token_ids": [A], "min_tokens": 2}, finish="stop", tokens=3),
    *taken("min_tokens", 0, 4),
    *ranged("min_tokens", -1, 5),
    *typed("min_tokens", 1.5, "1", True),
]

SCORES = [
    chat("chosen tokens", {"logprobs": True}, **scored(lambda found: len(found["content"]) == 4)),
    chat("the most probable", {"logprobs": True, "top_logprobs": 20},
         **scored(lambda found: [len(token["top_logprobs"]) for token in found["content"]] == [20] * 4)),
    chat("none beside", {"logprobs": True, "top_logprobs": 0},
         **scored(lambda found: not any(token["top_logprobs"] for token in found["content"]))),
    chat("no scores", {"logprobs": False}, **scored(lambda found: found is None)),
    chat("too many beside", {"logprobs": True, "top_logprobs": 21}, **bad("invalid_value", "body.top_logprobs")),
    chat("beside nothing", {"top_logprobs": 2}, **bad("invalid_value", "body.top_logprobs", "logprobs")),
    chat("scores are a number", {"logprobs": 1}, **bad("invalid_type", "body.logprobs")),
    completion("scores of a completion", {"logprobs": 2}, **scored(lambda found: len(found["tokens"]) == 4)),
    completion("no scores beside", {"logprobs": 0}, **scored(lambda found: len(found["token_logprobs"]) == 4)),
    completion("no scores at all", {"logprobs": False}, **scored(lambda found: found is None)),
    completion("too many scores", {"logprobs": 21}, **bad("invalid_value", "body.logprobs")),
    completion("negative scores", {"logprobs": -1}, **bad("invalid_value", "body.logprobs")),
    completion("scores are true", {"logprobs": True}, **bad("invalid_type", "body.logprobs")),
    letters("a certain score", {"logprobs": 1}, **scored(lambda found: found["tokens"] == ["a"] * 4)),
    completion("scores of the prompt", {"prompt_logprobs": 1, "prompt": [5, 6, 7]},
               check=lambda body: list(map(bool, body["choices"][0]["prompt_logprobs"])) == [False, True, True]),
    chat("scores of the messages", {"prompt_logprobs": 0}, check=lambda body: body["prompt_logprobs"][0] is None),
    *ranged("prompt_logprobs", 21, -1),
    completion("scores of the end", {"prompt_logprobs": 0, "prompt_logprobs_start": 2, "prompt": [5, 6, 7]},
               check=lambda body: list(map(bool, body["choices"][0]["prompt_logprobs"])) == [False, False, True]),
    completion("scores from beyond the end", {"prompt_logprobs": 0, "prompt_logprobs_start": 9, "prompt": [5, 6]},
               check=lambda body: body["choices"][0]["prompt_logprobs"] == [None, None]),
    completion("the start of no scores", {"prompt_logprobs_start": 2},
               **bad("invalid_value", "body.prompt_logprobs_start", "prompt_logprobs")),
    completion("a start of all scores", {"prompt_logprobs": 0, "prompt_logprobs_start": 2, "echo": True, "logprobs": 0},
               **bad("invalid_value", "body.prompt_logprobs_start", "echo")),
    *ranged("prompt_logprobs_start", -1),
    *typed("prompt_logprobs", True),
    letters("an echo", {"echo": True}, text="the seaaaaa", finish="length", tokens=4),
    completion("nothing but an echo", {"echo": True, "max_tokens": 0}, text="the sea", tokens=0, finish="length"),
    completion("an echo with its scores", {"echo": True, "max_tokens": 0, "logprobs": 1, "prompt": [5, 6, 7]},
               parses=False, **scored(lambda found: len(found["tokens"]) == 3 and found["token_logprobs"][0] is None)),
    completion("an echo that fits just so", {"echo": True, "max_tokens": 0, "prompt": [5] * 128}, tokens=0),
    completion("nothing at all", {"max_tokens": 0}, **bad("invalid_value", "body.max_tokens", "echo")),
    completion("an echo is a number", {"echo": 1}, **bad("invalid_type", "body.echo")),
    chat("an echo of a chat", {"echo": True}, **bad("unsupported_parameter", "body.echo")),
    completion("the best of three", {"best_of": 3, "temperature": 1, "seed": 1}, tokens=12),
    completion("the best two of three", {"best_of": 3, "n": 2, "temperature": 1}, choices=2, tokens=12),
    completion("as many as asked for", {"best_of": 2, "n": 2}, choices=2, tokens=8),
    completion("fewer than asked for", {"best_of": 1, "n": 2}, **bad("invalid_value", "body.best_of")),
    completion("too many to choose from", {"best_of": 129}, **bad("invalid_value", "body.best_of")),
    completion("the best in words", {"best_of": "3"}, **bad("invalid_type", "body.best_of")),
    chat("the best chat", {"best_of": 2}, **bad("unsupported_parameter", "body.best_of")),
]  # fmt: skip

EMBEDDINGS = [
    embedding("an embedding", {}, check=lambda body: len(body["data"][0]["embedding"]) == 64),
    embedding("embeddings", {"input": ["the sea", "the hat"]}, check=lambda body: len(body["data"]) == 2),
    embedding("an embedding of ids", {"input": [5, 6, 7]}, prompt_tokens=3),
    embedding("embeddings of ids", {"input": [[5], [6, 7]]}, prompt_tokens=3),
    embedding("a short embedding", {"dimensions": 8}, check=lambda body: len(body["data"][0]["embedding"]) == 8),
    embedding("a packed embedding", {"encoding_format": "base64"}, parses=False,
              check=lambda body: isinstance(body["data"][0]["embedding"], str)),
    embedding("an embedding about the user", {"user": "u", "dimensions": None}),
    embedding("an embedding of as much as fits", {"input": [5] * 128}, prompt_tokens=128),
    embedding("an embedding of too much", {"input": [5] * 129}, **bad("context_length_exceeded", "body.input")),
    embedding("an embedding of nothing", {"input": ""}, **bad("invalid_value", "body.input")),
    embedding("no input", {"input": None}, **bad("missing_required_field", "body.input")),
    embedding("input is a number", {"input": 5}, **bad("invalid_type", "body.input")),
    embedding("input of no token", {"input": [307]}, **bad("invalid_value", "body.input")),
    embedding("no dimensions", {"dimensions": 0}, **bad("invalid_value", "body.dimensions")),
    embedding("too many dimensions", {"dimensions": 65}, **bad("invalid_value", "body.dimensions")),
    embedding("a format of no kind", {"encoding_format": "hex"}, **bad("invalid_value", "body.encoding_format")),
    embedding("an embedding that is drawn", {"temperature": 0.5}, **bad("unsupported_parameter", "body.temperature")),
]  # fmt: skip
