"""Chat messages in the shape that a template can take."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from typing import Any

from batchgen.protocol.faults import Code, RowFault
from batchgen.text.template import ChatTemplate

__all__ = ["fit_messages"]

_TEXT_PARTS: Mapping[str, str] = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
"""Types of content parts that are text, and the key that holds it."""


def fit_messages(messages: SequenceOf[Mapping[str, Any]], template: ChatTemplate) -> list[dict[str, Any]] | RowFault:
    """Messages with their content as the template wants it: a string, or a list of text parts.

    Text parts become one string, a line each; a string becomes one part where the template takes parts alone; a
    content that is null or missing is empty. Other keys that are null are dropped, since templates ask whether a key
    is there.
    """
    fitted = []
    for index, message in enumerate(messages):
        content = _content(message.get("content"), template, f"body.messages[{index}].content")
        if isinstance(content, RowFault):
            return content
        fitted.append({key: value for key, value in message.items() if value is not None} | {"content": content})
    return fitted


def _content(content: object, template: ChatTemplate, path: str) -> str | list[dict[str, str]] | RowFault:
    if content is None:
        content = ""
    if isinstance(content, str):
        return content if template.takes_text or not template.takes_parts else [{"type": "text", "text": content}]
    if not isinstance(content, list | tuple):
        found = type(content).__name__
        return RowFault(Code.INVALID_TYPE, f"content must be a string or a list of parts, found {found}", path)
    texts = []
    for number, part in enumerate(content):
        text = _part_text(part, f"{path}[{number}]")
        if isinstance(text, RowFault):
            return text
        texts.append(text)
    return [{"type": "text", "text": text} for text in texts] if template.takes_parts else "\n".join(texts)


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
