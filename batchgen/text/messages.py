"""Chat messages in the shape that a template can take."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from typing import Any

import orjson

from batchgen.protocol.faults import Code, RowFault
from batchgen.text.template import ChatTemplate

__all__ = ["fit_messages"]

_TEXT_PARTS: Mapping[str, str] = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
"""Types of content parts that are text, and the key that holds it."""


def fit_messages(messages: SequenceOf[Mapping[str, Any]], template: ChatTemplate) -> list[dict[str, Any]] | RowFault:
    """Messages with their content as the template wants it: a string, or a list of text parts.

    Text parts become one string, a line each; a string becomes one part where the template takes parts alone; a
    content that is null or missing is empty. Other keys that are null and empty lists of calls are dropped, since
    templates ask whether a key is there. Arguments of calls become objects. A developer is the system where the
    template knows no developer.
    """
    fitted: list[dict[str, Any]] = []
    for index, message in enumerate(messages):
        role = message.get("role")
        # What a tool answered is text: templates of models that read pictures take parts from users alone.
        takes_parts = template.takes_parts and role != "tool"
        content = _content(message.get("content"), template, takes_parts, f"body.messages[{index}].content")
        if isinstance(content, RowFault):
            return content
        kept = {key: value for key, value in message.items() if value is not None} | {"content": content}
        calls = kept.pop("tool_calls", None)
        if calls:
            kept["tool_calls"] = [_call(call) for call in calls]
        if role == "developer" and not template.names("developer"):
            kept["role"] = "system"
        fitted.append(kept)
    return fitted


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    """A call with its arguments as an object; text that is no JSON object is left for the model to see."""
    function = dict(call["function"])
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            parsed = orjson.loads(arguments)
        except orjson.JSONDecodeError:
            parsed = None
        arguments = parsed if isinstance(parsed, dict) else arguments
    return {**call, "function": function | {"arguments": arguments}}


def _content(
    content: object, template: ChatTemplate, takes_parts: bool, path: str
) -> str | list[dict[str, str]] | RowFault:
    if content is None:
        content = ""
    if isinstance(content, str):
        return content if template.takes_text or not takes_parts else [{"type": "text", "text": content}]
    if not isinstance(content, list | tuple):
        found = type(content).__name__
        return RowFault(Code.INVALID_TYPE, f"content must be a string or a list of parts, found {found}", path)
    texts = []
    for number, part in enumerate(content):
        text = _part_text(part, f"{path}[{number}]")
        if isinstance(text, RowFault):
            return text
        texts.append(text)
    return [{"type": "text", "text": text} for text in texts] if takes_parts else "\n".join(texts)


def _part_text(part: object, path: str) -> str | RowFault:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        return RowFault(Code.INVALID_TYPE, f"a part must be an object or a string, found {type(part).__name__}", path)
    key = _TEXT_PARTS.get(str(part.get("type")))
    if key is None:
        message = f"only parts of type 'text' can be read, found {part.get('type')!r}"
        return RowFault(Code.INVALID_VALUE, message, f"{path}.type")
    text = part.get(key)
    if not isinstance(text, str):
        return RowFault(Code.INVALID_TYPE, f"a part's text must be a string, found {type(text).__name__}", path)
    return text
