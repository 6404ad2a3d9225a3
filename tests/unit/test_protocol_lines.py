"""Lines of JSON output, as the readers of each format take them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import orjson
import pytest
from anthropic.types.messages import MessageBatchIndividualResponse

from batchgen.protocol.lines import LINES, AnsweredRow, LineFormat

USAGE = {
    "prompt_tokens": 9,
    "completion_tokens": 4,
    "total_tokens": 13,
    "prompt_tokens_details": {"cached_tokens": 5},
}


def body(*choices: Mapping[str, Any]) -> dict[str, Any]:
    return {"id": "chatcmpl-1", "model": "m", "choices": list(choices), "usage": USAGE}


def chat(content: str | None = "Hello", reason: str = "stop", **choice: Any) -> dict[str, Any]:
    calls = {"tool_calls": choice.pop("tool_calls")} if "tool_calls" in choice else {}
    message = {"role": "assistant", "content": content, **calls}
    return {"index": 0, "message": message, "finish_reason": reason, "stop_reason": None, **choice}


def line(form: LineFormat, **fields: Any) -> dict[str, Any]:
    row: dict[str, Any] = {"custom_id": "a", "line": 1, "status_code": 200, "response": None, "error": None}
    row |= fields
    if isinstance(row["response"], dict):
        row["response"] = orjson.dumps(row["response"]).decode()
    made: dict[str, Any] = json.loads(orjson.dumps(LINES[form](AnsweredRow("run", **row))))
    return made


ERROR: dict[str, Any] = {"code": "invalid_value", "message": "change it", "param": "body.n", "line": 1}
REFUSED: dict[str, Any] = {"status_code": 400, "error": ERROR, "response": {"error": {"message": "change it"}}}
NO_REQUEST: dict[str, Any] = {"custom_id": None, "status_code": 422, "error": ERROR | {"param": None}}


def test_openais_three_shapes() -> None:
    made = line("openai", response={"x": 1})
    assert made.keys() == {"id", "custom_id", "response", "error"}
    assert made["response"].keys() == {"status_code", "request_id", "body"}
    assert (made["custom_id"], made["error"]) == ("a", None)
    assert (made["response"]["status_code"], made["response"]["body"]) == (200, {"x": 1})
    refused = line("openai", line=2, **REFUSED)
    assert (refused["response"]["status_code"], refused["error"]) == (400, None)
    assert refused["response"]["body"] == REFUSED["response"]
    nothing = line("openai", line=3, **NO_REQUEST)
    assert (nothing["custom_id"], nothing["response"]) == (None, None)
    assert nothing["error"] == {"code": "invalid_value", "message": "change it"}
    assert len({made["id"], refused["id"], nothing["id"]}) == 3


def test_vllms_rows() -> None:
    made = line("vllm", response={"x": 1})
    name = made["id"].removeprefix("vllm-")
    assert made == {
        "id": f"vllm-{name}",
        "custom_id": "a",
        "response": {"status_code": 200, "request_id": f"vllm-batch-{name}", "body": {"x": 1}},
        "error": None,
    }
    for fields, status, kind in ((REFUSED, 400, "BadRequestError"), (NO_REQUEST, 422, "UnprocessableEntityError")):
        refused = line("vllm", **fields)
        assert refused["response"] == {
            "status_code": status,
            "request_id": refused["id"].replace("vllm-", "vllm-batch-"),
            "body": None,
        }
        param = fields["error"]["param"]
        assert refused["error"] == {
            "error": {"message": "change it", "type": kind, "param": param, "code": status},
        }


@pytest.mark.parametrize(
    ("choice", "reason", "sequence", "content"),
    [
        (chat(), "end_turn", None, [{"type": "text", "text": "Hello"}]),
        (chat(""), "end_turn", None, [{"type": "text", "text": ""}]),
        (chat(reason="length"), "max_tokens", None, [{"type": "text", "text": "Hello"}]),
        (chat(stop_reason="\n\n"), "stop_sequence", "\n\n", [{"type": "text", "text": "Hello"}]),
        (chat(stop_reason=7), "end_turn", None, [{"type": "text", "text": "Hello"}]),
        (
            {"index": 0, "text": "Hi", "finish_reason": "stop", "stop_reason": None},
            "end_turn",
            None,
            [{"type": "text", "text": "Hi"}],
        ),
        (
            chat(
                None,
                "tool_calls",
                tool_calls=[{"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}],
            ),
            "tool_use",
            None,
            [{"type": "tool_use", "id": "c", "name": "add", "input": {"a": 1}}],
        ),
    ],
)
def test_anthropics_messages(choice: Any, reason: str, sequence: str | None, content: list[Any]) -> None:
    made = line("anthropic", response=body(choice) | {"batchgen": {"effective": {"seed": 3}}})
    parsed = MessageBatchIndividualResponse.model_validate(made, strict=True)
    assert parsed.to_dict() == made, "nothing is added, nothing missing"
    assert parsed.custom_id == "a"
    assert parsed.result.type == "succeeded"
    message = parsed.result.message
    assert (message.type, message.role, message.model) == ("message", "assistant", "m")
    assert (message.stop_reason, message.stop_sequence) == (reason, sequence)
    assert made["result"]["message"]["content"] == content
    assert (message.usage.input_tokens, message.usage.cache_read_input_tokens) == (4, 5)
    assert message.usage.output_tokens == 4


@pytest.mark.parametrize(
    ("status", "kind"), [(400, "invalid_request_error"), (404, "not_found_error"), (500, "api_error")]
)
def test_anthropics_errors(status: int, kind: str) -> None:
    made = line("anthropic", **REFUSED | {"status_code": status})
    parsed = MessageBatchIndividualResponse.model_validate(made, strict=True)
    assert parsed.to_dict() == made
    assert parsed.result.type == "errored"
    assert (parsed.result.error.error.type, parsed.result.error.error.message) == (kind, "change it")
    assert line("anthropic", **NO_REQUEST)["result"]["type"] == "errored"


@pytest.mark.parametrize("answer", [body(chat(), chat()), {"object": "list", "data": [], "usage": {}}])
def test_what_is_not_one_message_keeps_openais_shape(answer: dict[str, Any]) -> None:
    assert line("anthropic", response=answer) == line("openai", response=answer)
