"""Tool calls: how families of models write them, grammars that make them write some, and reading them back."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from batchgen.protocol.constraints import Constraint
from batchgen.protocol.request import ChatPrompt, GenRequest, ToolUse
from batchgen.protocol.result import ToolCall
from batchgen.text.template import ChatTemplate
from batchgen.text.tokenizer import Tokenizer

__all__ = ["Tools", "tools_of"]

_TAGGED = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_PYTHON_TAG = "<|python_tag|>"
_NO_ARGUMENTS: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


def tools_of(request: GenRequest) -> ToolUse | None:
    """The tools that a request's answer may call."""
    prompt = request.prompts[0]
    tools = prompt.tools if isinstance(prompt, ChatPrompt) else None
    return None if tools is None or tools.mode == "none" else tools


@dataclass(frozen=True, slots=True)
class Tools:
    """One model's way to write calls.

    Hermes and Qwen put each into a `<tool_call>` element, `{"name": …, "arguments": {…}}`, and may write text around
    them. Llama 3 writes one alone, `{"name": …, "parameters": {…}}`, perhaps after `<|python_tag|>`; models of no known
    family are read the same way.
    """

    tagged: bool
    """Whether calls stand in elements."""
    special_tags: bool
    """Whether the tags are special tokens, which text does not show."""

    @classmethod
    def of_model(cls, template: ChatTemplate | None, tokenizer: Tokenizer) -> Tools:
        """What a model's template shows of its way."""
        tagged = template is not None and "<tool_call>" in template.source
        return cls(tagged, "<tool_call>" in tokenizer.special_names)

    def prepared(self, request: GenRequest) -> GenRequest:
        """A request whose constraint and settings let its answer call what it may, and make it call what it must."""
        tools = tools_of(request)
        if tools is None:
            return request
        sampling = request.sampling
        if self.special_tags and self.tagged:
            sampling = replace(sampling, skip_special_tokens=False)
        return replace(request, sampling=sampling, constraint=self._constraint(tools, request.constraint))

    def read(self, tools: ToolUse, text: str) -> tuple[str | None, tuple[ToolCall, ...]]:
        """Content and calls of a finished answer. A text with a call that can't be read is all content."""
        try:
            content, calls = self._read_tagged(text) if self.tagged else _read_bare(tools, text)
        except (ValueError, RecursionError):
            return text, ()
        if not calls:
            return text, ()
        return content.strip() or None, tuple(calls if tools.parallel else calls[:1])

    def _constraint(self, tools: ToolUse, wanted: Constraint | None) -> Constraint | None:
        if tools.mode == "auto" and (wanted is None or wanted.kind != "json"):
            return wanted
        functions = [tool["function"] for tool in tools.definitions]
        called = [f for f in functions if tools.name in {None, f["name"]}]
        calls = ' ("\\n" call)*' if self.tagged and tools.parallel else ""
        rules = [f"call: {' | '.join(f'call_{number}' for number in range(len(called)))}"]
        rules += [rule for number, function in enumerate(called) for rule in self._rules(number, function)]
        if tools.mode == "auto" and wanted is not None:
            answer = f"answer: %json {_schema(json.loads(wanted.text), wanted.strict)}"
            grammar = "\n".join([f"start: call{calls} | answer", answer, *rules])
            return Constraint("grammar", grammar, wanted.param, answer_schema=wanted.text)
        return Constraint("grammar", "\n".join([f"start: call{calls}", *rules]), "body.tools")

    def _rules(self, number: int, function: Mapping[str, Any]) -> Iterator[str]:
        key = "arguments" if self.tagged else "parameters"
        # Token by token as in %json: a longer literal would win over the tokens of an answer that begins alike.
        begin = ("{", '"name"', ": ", json.dumps(function["name"]), ", ", f'"{key}"', ": ")
        parts = [*map(json.dumps, begin), f"arguments_{number}", json.dumps("}")]
        if self.tagged:
            tags = ("<tool_call>", "</tool_call>")
            opened, closed = tags if self.special_tags else map(json.dumps, tags)
            parts = [opened, json.dumps("\n"), *parts, json.dumps("\n"), closed]
        yield f"call_{number}: {' '.join(parts)}"
        parameters = function.get("parameters") or _NO_ARGUMENTS
        yield f"arguments_{number}: %json {_schema(parameters, function.get('strict') is True)}"

    def _read_tagged(self, text: str) -> tuple[str, list[ToolCall]]:
        return _TAGGED.sub("", text), [_call(_loaded(found)) for found in _TAGGED.findall(text)]


def _read_bare(tools: ToolUse, text: str) -> tuple[str, list[ToolCall]]:
    before, tag, rest = text.partition(_PYTHON_TAG)
    content, rest = (before, rest) if tag else ("", text)
    calls: list[ToolCall] = []
    at = len(rest) - len(rest.lstrip())
    while at < len(rest):
        value, at = json.JSONDecoder(parse_constant=_refuse).raw_decode(rest, at)
        at += len(rest[at:]) - len(rest[at:].lstrip("; \n"))
        calls.append(_call(value))
    names = {tool["function"]["name"] for tool in tools.definitions}
    # Without tags, an object is a call only if it names a function that is there.
    if not {call.name for call in calls} <= names:
        raise ValueError("no function of that name")
    return content, calls


def _schema(schema: Mapping[str, Any], strict: bool) -> str:
    """A schema for `%json`, with the whitespace and the leniency of other constraints."""
    options = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
    options |= {"lenient": not strict, "coerce_one_of": not strict}
    return json.dumps({"x-guidance": options, **schema})


def _call(value: Any) -> ToolCall:
    """Raises `ValueError` for what is no call."""
    match value:
        case {"name": str() as name, "arguments": dict() as arguments} | {
            "name": str() as name,
            "parameters": dict() as arguments,
        }:
            return ToolCall(_valid(name), _valid(json.dumps(arguments, ensure_ascii=False, allow_nan=False)))
    raise ValueError("not a call")


def _loaded(text: str) -> Any:
    return json.loads(text, parse_constant=_refuse)


def _valid(text: str) -> str:
    text.encode()  # an escape can make half of a surrogate pair, which no file can hold; its error is a ValueError
    return text


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
