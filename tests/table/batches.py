"""Lines of message batches."""

from __future__ import annotations

from typing import Any

from tests.table.case import Case, bad, line, message, raw

USER = {"role": "user", "content": "the sea"}
USE = {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1}}
RESULT = {"type": "tool_result", "tool_use_id": "c1", "content": "2"}


def said(name: str, *messages: Any, **expected: Any) -> Case:
    return message(name, {"messages": list(messages)}, **expected)


def refused(name: str, code: str, at: str, **params: Any) -> Case:
    return message(name, params, **bad(code, f"params.{at}"))


BATCHES = [
    message("a message", {}, finish="length", tokens=4),
    message("system", {"system": "be brief"}),
    message("system in blocks", {"system": [{"type": "text", "text": "be brief", "cache_control": {}}]}),
    message("sampled", {"temperature": 0.7, "top_p": 0.9, "top_k": 5}),
    message("about the user", {"metadata": {"user_id": "u"}, "service_tier": "auto"}),
    message("stop sequences", {"stop_sequences": ["\n\n", "END"]}),
    message("no thoughts", {"thinking": {"type": "disabled"}}),
    said("blocks", {"role": "user", "content": [{"type": "text", "text": "the"}, {"type": "text", "text": "sea"}]}),
    said("two turns", USER, {"role": "assistant", "content": "yes"}, USER),
    said("a turn in two messages", USER, USER),
    said("an answer that was begun", USER, {"role": "assistant", "content": "it is"}),
    said("a use of a tool", USER, {"role": "assistant", "content": [USE]}, {"role": "user", "content": [RESULT]}),
    message("a tool", {"tools": [{"name": "add", "input_schema": {"type": "object"}}]}),
    refused("no limit at all", "missing_required_field", "max_tokens", max_tokens=None),
    refused("limit is nothing", "invalid_value", "max_tokens", max_tokens=0),
    refused("no messages in params", "missing_required_field", "messages", messages=None),
    refused("a tool's message", "invalid_value", "messages[0].role", messages=[{"role": "tool", "content": ""}]),
    refused("a picture", "invalid_value", "messages[0].content[0]",
            messages=[{"role": "user", "content": [{"type": "image", "source": {}}]}]),
    refused("too long a message", "context_length_exceeded", "messages",
            messages=[{"role": "user", "content": "the sea " * 80}]),
    refused("hot", "invalid_value", "temperature", temperature=3),
    refused("an empty sequence", "invalid_value", "stop_sequences[0]", stop_sequences=[""]),
    refused("thoughts", "unsupported_parameter", "thinking", thinking={"type": "enabled", "budget_tokens": 1024}),
    refused("a stream of events", "stream_not_supported", "stream", stream=True),
    refused("an unknown parameter", "unsupported_parameter", "tempreature", tempreature=1),
    refused("a tool of the service", "invalid_value", "tools[0].type",
            tools=[{"type": "web_search_20250305", "name": "web_search", "input_schema": {}}]),
    message("another model's message", {"model": "claude"}, **bad("model_mismatch", "params.model", status=404)),
    line("params are text", {"custom_id": "pt", "params": "x"}, **bad("invalid_type", "params")),
    line("params are null", {"custom_id": "pn", "params": None}, **bad("invalid_type", "params")),
    line("params without id", {"params": {"max_tokens": 1, "messages": [USER]}},
         **bad("missing_required_field", "custom_id")),
    raw("params are cut off", b'{"custom_id": "x", "params": {"max_tokens"', **bad("invalid_json_line", status=422)),
]  # fmt: skip
