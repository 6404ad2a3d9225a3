"""Chat requests: tools, template settings, and what is wrong with them."""

from __future__ import annotations

from typing import Any

import pytest

from batchgen.protocol.faults import Code, RowFault
from batchgen.protocol.parse import Parser
from batchgen.protocol.request import ChatPrompt, RawRow, ToolUse

HI = [{"role": "user", "content": "Hi"}]
ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
SUB = {"type": "function", "function": {"name": "sub", "strict": True}}
NAMED = {"type": "function", "function": {"name": "add"}}


def parse(**body: Any) -> ChatPrompt | RowFault:
    data = {"custom_id": "a", "url": "/v1/chat/completions", "body": {"messages": HI, **body}}
    parsed = Parser().parse(RawRow(1, data))
    if parsed.request is None:
        assert len(parsed.faults) == 1
        return parsed.faults[0]
    (prompt,) = parsed.request.prompts
    assert isinstance(prompt, ChatPrompt)
    return prompt


@pytest.mark.parametrize(
    ("body", "tools"),
    [
        ({}, None),
        ({"tools": [], "tool_choice": "none"}, None),
        ({"tools": [ADD]}, ToolUse((ADD,))),
        ({"tools": [ADD], "tool_choice": "auto", "parallel_tool_calls": False}, ToolUse((ADD,), parallel=False)),
        ({"tools": [ADD], "tool_choice": "none"}, ToolUse((ADD,), "none")),
        ({"tools": [ADD, SUB], "tool_choice": "required"}, ToolUse((ADD, SUB), "required")),
        ({"tools": [ADD, SUB], "tool_choice": NAMED}, ToolUse((ADD, SUB), "required", "add", parallel=False)),
    ],
)
def test_tools_and_the_choice_of_them(body: dict[str, Any], tools: ToolUse | None) -> None:
    assert parse(**body) == ChatPrompt(tuple(HI), tools=tools)


@pytest.mark.parametrize(
    ("body", "prompt"),
    [
        ({"add_generation_prompt": False}, ChatPrompt(tuple(HI), add_generation_prompt=False)),
        (
            {"continue_final_message": True},
            ChatPrompt(tuple(HI), add_generation_prompt=False, continue_final_message=True),
        ),
        ({"documents": [{"title": "t", "text": "x"}]}, ChatPrompt(tuple(HI), documents=({"title": "t", "text": "x"},))),
        ({"chat_template_kwargs": {"a": [1]}}, ChatPrompt(tuple(HI), variables={"a": [1]})),
        (
            {"reasoning_effort": "low"},
            ChatPrompt(tuple(HI), variables={"enable_thinking": True, "reasoning_effort": "low"}),
        ),
        (
            {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}},
            ChatPrompt(tuple(HI), variables={"enable_thinking": True, "reasoning_effort": "none"}),
        ),
    ],
)
def test_settings_of_the_template(body: dict[str, Any], prompt: ChatPrompt) -> None:
    assert parse(**body) == prompt


@pytest.mark.parametrize(
    ("body", "code", "param", "said"),
    [
        ({"tools": ADD}, Code.INVALID_TYPE, "body.tools", "a list"),
        ({"tools": [{"function": ADD["function"]}]}, Code.MISSING_REQUIRED_FIELD, "body.tools[0].type", "missing"),
        ({"tools": [ADD | {"type": "custom"}]}, Code.INVALID_VALUE, "body.tools[0].type", "'function'"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, Code.INVALID_VALUE,
         "body.tools[0].function.name", "match"),
        ({"tools": [{"type": "function", "function": {"name": "a", "parameters": "{}"}}]}, Code.INVALID_TYPE,
         "body.tools[0].function.parameters", "an object"),
        ({"tool_choice": "required"}, Code.INVALID_VALUE, "body.tool_choice", "needs tools"),
        ({"tools": [ADD], "tool_choice": "any"}, Code.INVALID_VALUE, "body.tool_choice", "'required' or {"),
        ({"tools": [ADD], "tool_choice": {"type": "function"}}, Code.INVALID_VALUE, "body.tool_choice", "'auto'"),
        ({"tools": [SUB], "tool_choice": NAMED}, Code.INVALID_VALUE, "body.tool_choice", "names 'add', which is none"),
        ({"parallel_tool_calls": 1}, Code.INVALID_TYPE, "body.parallel_tool_calls", "true or false"),
        ({"continue_final_message": True, "add_generation_prompt": True}, Code.INVALID_VALUE,
         "body.continue_final_message", "excludes add_generation_prompt"),
        ({"documents": ["text"]}, Code.INVALID_TYPE, "body.documents[0]", "an object"),
        ({"reasoning_effort": "huge"}, Code.INVALID_VALUE, "body.reasoning_effort", "'medium'"),
        ({"chat_template_kwargs": {"messages": []}}, Code.INVALID_VALUE, "body.chat_template_kwargs", "messages"),
        ({"chat_template_kwargs": {"chat_template": ""}}, Code.INVALID_VALUE, "body.chat_template_kwargs",
         "no request"),
        ({"chat_template": "{{ messages }}"}, Code.UNSUPPORTED_PARAMETER, "body.chat_template", "--chat-template"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}]}, Code.MISSING_REQUIRED_FIELD,
         "body.messages[0].tool_calls[0].function.name", "missing"),
        ({"messages": [{"role": "tool", "content": "", "tool_call_id": 5}]}, Code.INVALID_TYPE,
         "body.messages[0].tool_call_id", "a string"),
    ],
)  # fmt: skip
def test_faults_of_chats(body: dict[str, Any], code: Code, param: str, said: str) -> None:
    fault = parse(**body)
    assert isinstance(fault, RowFault)
    assert (fault.code, fault.param) == (code, param)
    assert said in fault.message
