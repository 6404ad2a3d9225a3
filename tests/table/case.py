"""What a line of the table is, and what is expected of its row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

__all__ = ["Case", "bad", "chat", "completion", "embedding", "line", "message", "raw"]

HI: Mapping[str, Any] = {"messages": [{"role": "user", "content": "the sea"}], "max_tokens": 4, "temperature": 0}
ONCE: Mapping[str, Any] = {"prompt": "the sea", "max_tokens": 4, "temperature": 0}
ASKED: Mapping[str, Any] = {"messages": HI["messages"], "max_tokens": 4, "temperature": 0}
EMBED: Mapping[str, Any] = {"input": "the sea"}


@dataclass(frozen=True, slots=True)
class Case:
    """A line, and its row. What is None is not looked at."""

    name: str
    line: bytes
    custom_id: str | None
    """Of the row."""
    status: int = 200
    code: str | None = None
    """Of the error; None: an answer."""
    param: str | None = None
    words: str = ""
    """Stands in the error's message."""
    finish: str | None = None
    text: str | None = None
    """The whole text."""
    starts: str = ""
    """What the text starts with."""
    tokens: int | None = None
    """Of the answer."""
    prompt_tokens: int | None = None
    choices: int | None = 1
    effective: Mapping[str, Any] = field(default_factory=dict)
    """Stands in the effective values."""
    parses: bool = True
    """With the types of the `openai` package, which know no null score and no packed embedding."""
    check: Callable[[Mapping[str, Any]], bool] | None = None
    """Whether the response body is as it should be."""


def line(name: str, data: Any, **expected: Any) -> Case:
    """Any JSON as a line."""
    found = data.get("custom_id") if isinstance(data, dict) else None
    custom_id = expected.pop("custom_id", found if isinstance(found, str) else None)
    return Case(name, orjson.dumps(data), custom_id, **expected)


def raw(name: str, data: bytes, custom_id: str | None = None, **expected: Any) -> Case:
    """Any bytes as a line."""
    return Case(name, data, custom_id, **expected)


def bad(code: str, param: str | None = None, words: str = "", status: int = 400) -> dict[str, Any]:
    """What is expected of a row that is refused."""
    return {"status": status, "code": code, "param": param, "words": words, "choices": None}


def _request(name: str, url: str, body: Mapping[str, Any], expected: Mapping[str, Any]) -> Case:
    request = {"custom_id": name, "method": "POST", "url": url, "body": body}
    return line(name, request, **expected)


def chat(name: str, body: Mapping[str, Any], **expected: Any) -> Case:
    """A chat of four greedy tokens, changed by `body`."""
    return _request(name, "/v1/chat/completions", {**HI, **body}, expected)


def completion(name: str, body: Mapping[str, Any], **expected: Any) -> Case:
    """A completion of four greedy tokens, changed by `body`."""
    return _request(name, "/v1/completions", {**ONCE, **body}, expected)


def embedding(name: str, body: Mapping[str, Any], **expected: Any) -> Case:
    """An embedding, changed by `body`."""
    return _request(name, "/v1/embeddings", {**EMBED, **body}, {"choices": None} | expected)


def message(name: str, params: Mapping[str, Any], **expected: Any) -> Case:
    """A message-batch line of four greedy tokens, changed by `params`."""
    return line(name, {"custom_id": name, "params": {**ASKED, **params}}, **expected)
