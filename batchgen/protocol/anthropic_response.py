"""Answers to chat requests in the shapes of Anthropic's message-batch results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

__all__ = ["error_result", "message_result"]

_STOP_REASONS: Mapping[str, str] = {"length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
_ERROR_TYPES: Mapping[int, str] = {404: "not_found_error", 500: "api_error"}


def message_result(body: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """The result of a request with this response body; None where that is not one message."""
    match body.get("choices"):
        case [choice]:
            message = choice.get("message") or {"content": choice["text"]}
        case _:
            return None
    stopped_by = choice.get("stop_reason")
    stop_sequence = stopped_by if isinstance(stopped_by, str) else None
    reason = "stop_sequence" if stop_sequence is not None else _STOP_REASONS.get(choice["finish_reason"], "end_turn")
    usage = body["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    shaped: dict[str, Any] = {
        "id": name,
        "type": "message",
        "role": "assistant",
        "model": body["model"],
        "content": list(_blocks(message)),
        "stop_reason": reason,
        "stop_sequence": stop_sequence,
        "usage": {
            "input_tokens": usage["prompt_tokens"] - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": usage["completion_tokens"],
        },
    }
    if "batchgen" in body:
        shaped["batchgen"] = body["batchgen"]
    return {"type": "succeeded", "message": shaped}


def error_result(status_code: int, message: str, request_id: str) -> dict[str, Any]:
    """The result of a request that has no answer."""
    error = {"type": _ERROR_TYPES.get(status_code, "invalid_request_error"), "message": message}
    return {"type": "errored", "error": {"type": "error", "error": error, "request_id": request_id}}


def _blocks(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    calls = message.get("tool_calls") or []
    if message["content"] or not calls:
        yield {"type": "text", "text": message["content"] or ""}
    for call in calls:
        function = call["function"]
        yield {
            "type": "tool_use",
            "id": call["id"],
            "name": function["name"],
            "input": orjson.loads(function["arguments"]),
        }
