"""Tools that are called."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tests.table.case import bad, chat, message

SEVEN = {"type": "object", "properties": {"a": {"const": 7}}, "required": ["a"], "additionalProperties": False}
ADD = {"type": "function", "function": {"name": "add", "parameters": SEVEN}}
NOW = {"type": "function", "function": {"name": "now"}}
ODD = {"type": "function", "function": {"name": "odd", "parameters": {"type": "wat"}}}
ROOMY: Mapping[str, Any] = {"max_tokens": 90}


def calling(**called: Any) -> dict[str, Any]:
    """The first answer is these calls, by function and arguments."""

    def check(body: Mapping[str, Any]) -> bool:
        calls = body["choices"][0]["message"]["tool_calls"]
        found = {call["function"]["name"]: json.loads(call["function"]["arguments"]) for call in calls}
        return found == called and all(call["type"] == "function" and call["id"] for call in calls)

    return {"check": check, "finish": "tool_calls"}


CALLS = [
    chat("a call that must be made", {**ROOMY, "tools": [ADD], "tool_choice": "required", "parallel_tool_calls": False},
         **calling(add={"a": 7})),
    chat("a call of a name", {**ROOMY, "tools": [NOW, ADD],
         "tool_choice": {"type": "function", "function": {"name": "add"}}}, **calling(add={"a": 7})),
    chat("a call without arguments", {**ROOMY, "tools": [NOW, ADD],
         "tool_choice": {"type": "function", "function": {"name": "now"}}}, **calling(now={})),
    chat("a call that is cut off", {"tools": [ADD], "tool_choice": "required"}, finish="length", tokens=4),
    chat("arguments of no type", {"tools": [ODD], "tool_choice": "required"}, **bad("invalid_json_schema")),
    message("any tool", {**ROOMY, "tools": [{"name": "add", "input_schema": SEVEN}],
            "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}, **calling(add={"a": 7})),
    message("the tool of a name", {**ROOMY, "tools": [{"name": "add", "input_schema": SEVEN}],
            "tool_choice": {"type": "tool", "name": "add"}}, **calling(add={"a": 7})),
    message("an input of no type", {"tools": [{"name": "odd", "input_schema": {"type": "wat"}}],
            "tool_choice": {"type": "any"}}, **bad("invalid_json_schema", "params.tools")),
]  # fmt: skip
