"""Lines of message batches: what chat requests they become, and whose words their faults speak."""

from __future__ import annotations

from typing import Any

import pytest
from anthropic.types.message_create_params import MessageCreateParamsNonStreaming
from pydantic import TypeAdapter

from batchgen.protocol.anthropic_request import MessageParams, as_sent, chat_body, is_message_request
from batchgen.protocol.faults import Code, RowFault
from batchgen.protocol.parse import Parsed, Parser, model_of
from batchgen.protocol.request import ChatPrompt, Endpoint, RawRow

HI: list[dict[str, Any]] = [{"role": "user", "content": "Hi"}]


def line(**params: Any) -> dict[str, Any]:
    return {"custom_id": "a", "params": {"model": "m", "max_tokens": 5, "messages": HI} | params}


def parse(data: dict[str, Any], *, lenient: bool = False) -> Parsed:
    return Parser(lenient).parse(RawRow(7, data))


def body(**params: Any) -> dict[str, Any]:
    sent = line(**params)["params"]
    TypeAdapter(MessageCreateParamsNonStreaming).validate_python(sent)
    return chat_body(MessageParams.model_validate(sent), sent)


def test_a_request_with_everything() -> None:
    parsed = parse(
        line(
            system="Be brief.",
            temperature=0.5,
            top_p=0.9,
            top_k=3,
            stop_sequences=["\n", "END"],
            metadata={"user_id": "u"},
            service_tier="auto",
            cache_control={"type": "ephemeral"},
            thinking={"type": "disabled"},
            stream=False,
            tools=None,
        )
    )
    assert parsed.faults == parsed.warnings == ()
    request = parsed.request
    assert request is not None
    assert (request.custom_id, request.line, request.endpoint, request.model) == ("a", 7, Endpoint.CHAT, "m")
    (prompt,) = request.prompts
    assert isinstance(prompt, ChatPrompt)
    assert list(prompt.messages) == [{"role": "system", "content": "Be brief."}, *HI]
    assert prompt.variables == {"enable_thinking": False}
    sampling = request.sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p, sampling.top_k) == (5, 0.5, 0.9, 3)
    assert sampling.stop == ("\n", "END")


def test_tools_and_what_they_gave() -> None:
    text = {"type": "text", "text": "Adding.", "cache_control": {"type": "ephemeral"}}
    made = body(
        messages=[
            {"role": "user", "content": "2 + 2?"},
            {
                "role": "assistant",
                "content": [text, {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 2, "b": 2}}],
            },
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "And so?"},
                    {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "4"}]},
                ],
            },
        ],
        tools=[{"name": "add", "description": "Adds.", "input_schema": {"type": "object"}}],
        tool_choice={"type": "tool", "name": "add", "disable_parallel_tool_use": True},
    )
    arguments = '{"a":2,"b":2}'
    assert made["messages"] == [
        {"role": "user", "content": "2 + 2?"},
        {
            "role": "assistant",
            "content": [{"type": "text", "text": "Adding."}],
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": arguments}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "4"}]},
        {"role": "user", "content": [{"type": "text", "text": "And so?"}]},
    ]
    function = {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}
    assert made["tools"] == [{"type": "function", "function": function}]
    assert made["tool_choice"] == {"type": "function", "function": {"name": "add"}}
    assert made["parallel_tool_calls"] is False


@pytest.mark.parametrize(("choice", "chat"), [("auto", "auto"), ("any", "required"), ("none", "none")])
def test_choices_of_tools(choice: str, chat: str) -> None:
    assert body(tool_choice={"type": choice})["tool_choice"] == chat


def test_turns_of_one_role_are_one_turn() -> None:
    made = body(messages=[*HI, {"role": "user", "content": [{"type": "text", "text": "there"}]}])
    parts = [{"type": "text", "text": "Hi"}, {"type": "text", "text": "there"}]
    assert made["messages"] == [{"role": "user", "content": parts}]


def test_an_answer_that_was_begun_is_continued() -> None:
    made = body(messages=[*HI, {"role": "assistant", "content": "The answer is ("}])
    assert made["messages"][-1] == {"role": "assistant", "content": "The answer is ("}
    assert made["continue_final_message"] is True
    assert "continue_final_message" not in body()


def test_a_schema_for_the_output() -> None:
    made = body(output_config={"format": {"type": "json_schema", "schema": {"type": "object"}}})
    schema = {"name": "output", "schema": {"type": "object"}}
    assert made["response_format"] == {"type": "json_schema", "json_schema": schema}


@pytest.mark.parametrize(
    ("params", "code", "param"),
    [
        ({"max_tokens": None}, Code.MISSING_REQUIRED_FIELD, "params.max_tokens"),
        ({"max_tokens": 0}, Code.INVALID_VALUE, "params.max_tokens"),
        ({"max_tokens": "5"}, Code.INVALID_TYPE, "params.max_tokens"),
        ({"messages": None}, Code.MISSING_REQUIRED_FIELD, "params.messages"),
        ({"messages": []}, Code.INVALID_VALUE, "params.messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, Code.INVALID_VALUE, "params.messages[0].role"),
        ({"messages": [{"role": "user"}]}, Code.MISSING_REQUIRED_FIELD, "params.messages[0].content"),
        ({"messages": [{"role": "user", "content": None}]}, Code.INVALID_TYPE, "params.messages[0].content"),
        (
            {"messages": [*HI, {"role": "user", "content": [{"type": "image"}]}]},
            Code.INVALID_VALUE,
            "params.messages[1].content[0]",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            Code.MISSING_REQUIRED_FIELD,
            "params.messages[0].content[0].text",
        ),
        ({"system": 5}, Code.INVALID_TYPE, "params.system"),
        ({"system": [{"type": "image", "text": ""}]}, Code.INVALID_VALUE, "params.system[0].type"),
        ({"tools": [{"name": "x"}]}, Code.MISSING_REQUIRED_FIELD, "params.tools[0].input_schema"),
        ({"tool_choice": {"type": "some"}}, Code.INVALID_VALUE, "params.tool_choice.type"),
        ({"stop_sequences": ["a", ""]}, Code.INVALID_VALUE, "params.stop_sequences[1]"),
        ({"temperature": 3}, Code.INVALID_VALUE, "params.temperature"),
        ({"top_k": 1.5}, Code.INVALID_TYPE, "params.top_k"),
        ({"stream": True}, Code.STREAM_NOT_SUPPORTED, "params.stream"),
        ({"wat": 1}, Code.UNSUPPORTED_PARAMETER, "params.wat"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, Code.UNSUPPORTED_PARAMETER, "params.thinking"),
        ({"output_config": {"effort": "low"}}, Code.UNSUPPORTED_PARAMETER, "params.output_config"),
    ],
)
def test_faults_are_told_in_the_words_of_the_line(params: dict[str, Any], code: Code, param: str) -> None:
    parsed = parse(line(**params))
    assert parsed.request is None
    (fault,) = parsed.faults
    assert (fault.code, fault.param) == (code, param)
    assert fault.message.startswith(f"{param} ") or fault.message.startswith(f"{param}:")


def test_faults_of_the_envelope() -> None:
    assert [f.param for f in parse({"params": 5}).faults] == ["custom_id", "params"]
    assert [f.param for f in parse({"custom_id": None, "params": {"messages": HI}}).faults] == [
        "custom_id",
        "params.max_tokens",
    ]


def test_unknown_parameters_are_left_out_when_lenient() -> None:
    parsed = parse(line(wat=1), lenient=True)
    assert parsed.request is not None
    assert [warning.param for warning in parsed.warnings] == ["params.wat"]


def test_what_the_form_of_a_line_is() -> None:
    assert is_message_request(line())
    assert not is_message_request(line() | {"body": {}})
    assert not is_message_request({"custom_id": "a"})
    assert not is_message_request(None)
    assert model_of(RawRow(1, line())) == "m"


def test_faults_found_later_are_told_in_the_words_of_the_line_too() -> None:
    fault = RowFault(Code.INVALID_CHAT_TEMPLATE_INPUT, "body.messages[1].content is odd", "body.messages[1].content")
    assert as_sent(line(), fault) == RowFault(fault.code, "params.messages is odd", "params.messages")
    assert as_sent({"body": {}}, fault) is fault
    whole = RowFault(Code.INTERNAL_ERROR, "odd")
    assert as_sent(line(), whole) is whole
