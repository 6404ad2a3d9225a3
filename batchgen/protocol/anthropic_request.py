"""Lines of Anthropic's message batches, `{"custom_id", "params"}`, as chat requests.

Shapes: the Messages API, https://docs.anthropic.com/en/api/messages. What a chat request knows by another name is
renamed; parameters that it has no name for go over as they are, to be judged there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import groupby
from typing import Annotated, Any, Literal

import orjson
from pydantic import Discriminator, Field, Tag

from batchgen.protocol.faults import RowFault
from batchgen.protocol.messages import Shape

__all__ = ["BLOCK_TAGS", "MessageParams", "as_sent", "chat_body", "is_message_request"]

_RENAMED: Mapping[str, str] = {"max_tokens": "max_completion_tokens", "stop_sequences": "stop"}
"""Names of the Messages API, and what a chat request calls them."""
_SENT_AS: Mapping[str, str] = {chat: sent for sent, chat in _RENAMED.items()} | {
    "continue_final_message": "messages",
    "parallel_tool_calls": "tool_choice",
    "response_format": "output_config",
}
_NO_EFFECT = frozenset({"cache_control", "diagnostics", "inference_geo", "speed", "user_profile_id", "workspace_id"})
"""Parameters that say how the hosted service works, not what it answers."""

_TEXT, _BLOCKS, _TEXT_BLOCK, _TOOL_USE, _TOOL_RESULT = "<string>", "<blocks>", "<text>", "<tool_use>", "<tool_result>"
BLOCK_TAGS = frozenset({_TEXT, _BLOCKS, _TEXT_BLOCK, _TOOL_USE, _TOOL_RESULT})
"""Which form a value has. They stand in the location of an error, beside the names of fields."""

Name = Annotated[str, Field(min_length=1)]


class TextBlock(Shape):
    """Text of a message, of the system prompt or of a tool's result."""

    type: Literal["text"]
    text: str


class ToolUseBlock(Shape):
    """A call that the assistant made."""

    type: Literal["tool_use"]
    id: Name
    name: Name
    input: dict[str, Any]


def _form(value: Any) -> str | None:
    return _TEXT if isinstance(value, str) else _BLOCKS if isinstance(value, list) else None


_TEXT_OR_BLOCKS = Discriminator(
    _form, custom_error_type="form_type", custom_error_message="must be a string or a list of content blocks"
)
TextContent = Annotated[Annotated[str, Tag(_TEXT)] | Annotated[list[TextBlock], Tag(_BLOCKS)], _TEXT_OR_BLOCKS]


class ToolResultBlock(Shape):
    """What a call gave."""

    type: Literal["tool_result"]
    tool_use_id: Name
    content: TextContent = ""


def _kind(block: Any) -> str | None:
    kind = f"<{block.get('type')}>" if isinstance(block, Mapping) else None
    return kind if kind in BLOCK_TAGS else None


Block = Annotated[
    Annotated[TextBlock, Tag(_TEXT_BLOCK)]
    | Annotated[ToolUseBlock, Tag(_TOOL_USE)]
    | Annotated[ToolResultBlock, Tag(_TOOL_RESULT)],
    Discriminator(
        _kind,
        custom_error_type="block",
        custom_error_message="must be a content block of type text, tool_use or tool_result",
    ),
]


class Turn(Shape):
    """A message."""

    role: Literal["user", "assistant", "system"]
    content: Annotated[Annotated[str, Tag(_TEXT)] | Annotated[list[Block], Tag(_BLOCKS)], _TEXT_OR_BLOCKS]


class Tool(Shape):
    """A function that the caller runs."""

    type: Literal["custom"] | None = None
    name: Name
    description: str | None = None
    input_schema: dict[str, Any]


class Choice(Shape):
    """Whether tools may or must be used."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False


class MessageParams(Shape):
    """The parameters that a chat request has in another shape. Its own checks see to the others."""

    max_tokens: Annotated[int, Field(ge=1)]
    messages: Annotated[list[Turn], Field(min_length=1)]
    system: TextContent | None = None
    tools: list[Tool] = Field(default_factory=list)
    tool_choice: Choice | None = None


def is_message_request(data: Mapping[str, Any] | None) -> bool:
    """Whether a row has the form of a message batch's line."""
    return data is not None and "params" in data and "body" not in data


def chat_body(params: MessageParams, sent: Mapping[str, Any]) -> dict[str, Any]:
    """The chat request that asks for the same. `sent`: the parameters as they were sent, none of them null."""
    body = {
        _RENAMED.get(name, name): value
        for name, value in sent.items()
        if name not in MessageParams.model_fields and name not in _NO_EFFECT
    }
    body["max_completion_tokens"] = params.max_tokens
    system = [] if params.system is None else [{"role": "system", "content": _parts(params.system)}]
    body["messages"] = system + [message for turn in _turns(params.messages) for message in turn]
    if params.messages[-1].role == "assistant":
        body["continue_final_message"] = True
    if params.tools:
        body["tools"] = [_function(tool) for tool in params.tools]
    if params.tool_choice is not None:
        body["tool_choice"] = _tool_choice(params.tool_choice)
        if params.tool_choice.disable_parallel_tool_use:
            body["parallel_tool_calls"] = False
    match sent.get("output_config"):
        case {"format": {"type": "json_schema", "schema": dict() as schema}, **others} if not others:
            del body["output_config"]
            body["response_format"] = {"type": "json_schema", "json_schema": {"name": "output", "schema": schema}}
    if sent.get("thinking") == {"type": "disabled"}:
        del body["thinking"]
        body["chat_template_kwargs"] = {"enable_thinking": False}
    return body


def as_sent(data: Mapping[str, Any] | None, fault: RowFault) -> RowFault:
    """A fault of the chat request in the words of the line that it was made of; of any other line, the fault itself."""
    path = fault.param
    if path is None or not path.startswith("body") or not is_message_request(data):
        return fault
    name = re.split(r"[.\[]", path.removeprefix("body."), maxsplit=1)[0]
    sent = f"params.{_SENT_AS.get(name, name)}"
    # Messages and tools are counted and shaped otherwise: of a path into them the beginning is kept.
    if _SENT_AS.get(name, name) not in MessageParams.model_fields:
        sent += path.removeprefix(f"body.{name}")
    begins = fault.message.startswith(path)
    return replace(fault, param=sent, message=sent + fault.message[len(path) :] if begins else fault.message)


def _turns(messages: list[Turn]) -> Iterator[list[dict[str, Any]]]:
    """Messages of the chat; those of one role that follow each other are one turn."""
    for role, group in groupby(messages, key=lambda message: message.role):
        contents = [message.content for message in group]
        if len(contents) == 1 and isinstance(contents[0], str):
            yield [{"role": role, "content": contents[0]}]
            continue
        blocks = [b for c in contents for b in ([TextBlock(type="text", text=c)] if isinstance(c, str) else c)]
        yield _messages(role, blocks)


def _messages(role: str, blocks: list[TextBlock | ToolUseBlock | ToolResultBlock]) -> list[dict[str, Any]]:
    results = [
        {"role": "tool", "tool_call_id": block.tool_use_id, "content": _parts(block.content)}
        for block in blocks
        if isinstance(block, ToolResultBlock)
    ]
    calls = [
        {
            "id": block.id,
            "type": "function",
            "function": {"name": block.name, "arguments": orjson.dumps(block.input).decode()},
        }
        for block in blocks
        if isinstance(block, ToolUseBlock)
    ]
    texts = [{"type": "text", "text": block.text} for block in blocks if isinstance(block, TextBlock)]
    message: dict[str, Any] = {"role": role, "content": texts or None}
    if calls:
        message["tool_calls"] = calls
    return results + ([message] if texts or calls or not results else [])


def _parts(content: str | list[TextBlock]) -> str | list[dict[str, str]]:
    return content if isinstance(content, str) else [{"type": "text", "text": block.text} for block in content]


def _function(tool: Tool) -> dict[str, Any]:
    described = {} if tool.description is None else {"description": tool.description}
    return {"type": "function", "function": {"name": tool.name, **described, "parameters": tool.input_schema}}


def _tool_choice(choice: Choice) -> str | dict[str, Any]:
    match choice.type:
        case "tool":
            return {"type": "function", "function": {"name": choice.name}}
        case "any":
            return "required"
        case kind:
            return kind
