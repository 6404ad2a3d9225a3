"""Tool calls: read as families of models write them, and made where they must be."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken

from batchgen.protocol.constraints import Constraint
from batchgen.protocol.faults import RowFault
from batchgen.protocol.request import ChatPrompt, Endpoint, GenRequest, ToolUse
from batchgen.protocol.result import ToolCall
from batchgen.text.grammar import Grammars
from batchgen.text.template import ChatTemplate
from batchgen.text.tokenizer import Tokenizer
from batchgen.text.tools import Tools, tools_of
from tests.tiny_tokenizers import byte_level
from tests.unit.test_text_grammar import END, walk

HERMES = "{{ tools }}<tool_call>{{ messages[0].content }}"
LLAMA = "{{ tools }}{% set tool_call = messages[0] %}{{ tool_call.content }}"
SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": [1, 2, "x"]}},
    "required": ["a"],
    "additionalProperties": False,
}
ADD = {"type": "function", "function": {"name": "add", "parameters": SCHEMA}}
NOW = {"type": "function", "function": {"name": "now"}}
BOTH = ToolUse((ADD, NOW))


def tokenizer(*, special: bool = False) -> Tokenizer:
    backend = byte_level()
    if special:
        backend.add_special_tokens([AddedToken(tag, special=True) for tag in ("<tool_call>", "</tool_call>")])
    return Tokenizer(backend, {})


def tools_for(template: str, *, special: bool = False) -> Tools:
    return Tools.of_model(ChatTemplate(template, {}), tokenizer(special=special))


def read(template: str, text: str, tools: ToolUse = BOTH) -> tuple[str | None, list[tuple[str, str]]]:
    content, calls = tools_for(template).read(tools, text)
    return content, [(call.name, call.arguments) for call in calls]


A1 = ("add", '{"a": 1}')
ADD_CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
NOW_CALL = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'


@pytest.mark.parametrize(
    ("template", "text", "content", "calls"),
    [
        (HERMES, '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>', None, [A1]),
        (HERMES, 'Wait.\n<tool_call>{"name": "add", "arguments": {"a":1}}</tool_call>', "Wait.", [A1]),
        (HERMES, f"{NOW_CALL}\n{ADD_CALL}", None, [("now", "{}"), A1]),
        (HERMES, '<tool_call>{"name": "add", "arguments": {"a": 1}}', None, [A1]),
        (HERMES, '<tool_call>{"name": "f", "arguments": {"é": "日"}}</tool_call>', None, [("f", '{"é": "日"}')]),
        (LLAMA, '{"name": "add", "parameters": {"a": 1}}', None, [A1]),
        (LLAMA, '<|python_tag|>{"name": "add", "parameters": {"a": 1}}', None, [A1]),
        (LLAMA, 'So: <|python_tag|>{"name": "add", "parameters": {"a": 1}}', "So:", [A1]),
        (LLAMA, '{"name": "add", "parameters": {"a": 1}}; {"name": "now", "arguments": {}}', None, [A1, ("now", "{}")]),
    ],
)  # fmt: skip
def test_calls_are_read(template: str, text: str, content: str | None, calls: list[tuple[str, str]]) -> None:
    assert read(template, text) == (content, calls)


@pytest.mark.parametrize(
    ("template", "text"),
    [
        (HERMES, "The answer is 4."),
        (HERMES, ""),
        (HERMES, '<tool_call>{"name": "add", "arguments": {"a": </tool_call>'),
        (HERMES, '<tool_call>{"name": "add", "arguments": {"a": NaN}}</tool_call>'),
        (HERMES, '<tool_call>{"name": "add", "arguments": {"a": 1e999}}</tool_call>'),
        (HERMES, '<tool_call>{"name": "add", "arguments": "text"}</tool_call>'),
        (HERMES, '<tool_call>{"name": "add", "arguments": {"a": "\\ud800"}}</tool_call>'),
        (HERMES, "<tool_call>" + "[" * 100_000),
        (HERMES, '{"name": "add", "arguments": {"a": 1}}'),
        (LLAMA, '{"name": "Bob", "parameters": {"a": 1}}'),
        (LLAMA, '{"name": "add"}'),
        (LLAMA, '{"name": "add", "parameters": {"a": 1}} is the call'),
        (LLAMA, "5"),
        (LLAMA, 'Call {"name": "add", "parameters": {"a": 1}}'),
        (LLAMA, "   "),
    ],
)
def test_what_is_no_call_is_content(template: str, text: str) -> None:
    assert read(template, text) == (text, [])


@given(st.text(alphabet=st.sampled_from('<tool_call>/{}":, nameargumts\n\\'), max_size=80))
def test_any_text_can_be_read(text: str) -> None:
    for template in (HERMES, LLAMA):
        read(template, text)


def test_one_call_where_several_are_not_wanted() -> None:
    assert len(read(HERMES, NOW_CALL * 2)[1]) == 2
    assert read(HERMES, NOW_CALL * 2, ToolUse((NOW,), parallel=False)) == (None, [("now", "{}")])


def request(tools: ToolUse | None, constraint: Constraint | None = None) -> GenRequest:
    prompt = ChatPrompt(({"role": "user", "content": "x"},), tools=tools)
    return GenRequest(
        custom_id="a", line=1, endpoint=Endpoint.CHAT, model=None, prompts=(prompt,), constraint=constraint
    )


@pytest.fixture(params=[(HERMES, False), (HERMES, True), (LLAMA, False)])
def way(request: pytest.FixtureRequest) -> Iterator[tuple[Tools, Tokenizer, Grammars]]:
    template, special = request.param
    chosen = tokenizer(special=special)
    grammars = Grammars(chosen, frozenset({END}), chosen.vocab_size)
    yield Tools.of_model(ChatTemplate(template, {}), chosen), chosen, grammars
    grammars.close()


def answers(way: tuple[Tools, Tokenizer, Grammars], asked: GenRequest, count: int) -> list[str]:
    tools, chosen, grammars = way
    prepared = tools.prepared(asked)
    assert prepared.constraint is not None
    make = grammars.compile(prepared.constraint)
    assert not isinstance(make, RowFault), make
    skip = prepared.sampling.skip_special_tokens
    return [chosen.decode(walk(make(), seed), skip_special_tokens=skip) for seed in range(count)]


def arguments_of(call: ToolCall) -> Any:
    return json.loads(call.arguments)


def test_a_required_call_is_made(way: tuple[Tools, Tokenizer, Grammars]) -> None:
    tools = ToolUse((ADD, NOW), "required")
    made = set()
    for text in answers(way, request(tools), 12):
        content, calls = way[0].read(tools, text)
        assert content is None
        assert calls
        for call in calls:
            jsonschema.validate(arguments_of(call), SCHEMA if call.name == "add" else {"maxProperties": 0})
        made |= {call.name for call in calls}
    assert made == {"add", "now"}


def test_a_named_function_is_called_once(way: tuple[Tools, Tokenizer, Grammars]) -> None:
    tools = ToolUse((NOW, ADD), "required", "add", parallel=False)
    for text in answers(way, request(tools), 4):
        _, (call,) = way[0].read(tools, text)
        assert call.name == "add"
        jsonschema.validate(arguments_of(call), SCHEMA)


def test_a_schema_beside_tools_is_for_the_answers_that_call_none(way: tuple[Tools, Tokenizer, Grammars]) -> None:
    wanted = Constraint("json", '{"const": {"ok": true}}', "body.response_format.json_schema.schema")
    texts = answers(way, request(ToolUse((NOW,), parallel=False), wanted), 20)
    read_back = [way[0].read(ToolUse((NOW,)), text) for text in texts]
    assert {bool(calls) for _, calls in read_back} == {True, False}
    assert {content for content, calls in read_back if not calls} == {'{"ok": true}'}


def test_requests_that_need_nothing_are_left_alone() -> None:
    regex = Constraint("regex", "a", "body.guided_regex")
    for template in (HERMES, LLAMA):
        for tools in (None, ToolUse((ADD,), "none"), BOTH):
            for constraint in (None, regex):
                asked = request(tools, constraint)
                assert tools_for(template).prepared(asked) == asked
    assert tools_of(request(ToolUse((ADD,), "none"))) is None
    assert tools_of(request(BOTH)) == BOTH


def test_a_schema_of_a_tool_that_cannot_be_kept_to() -> None:
    unique = {"type": "function", "function": {"name": "f", "strict": True, "parameters": {"uniqueItems": True}}}
    chosen = tokenizer()
    grammars = Grammars(chosen, frozenset({END}), chosen.vocab_size)
    constraint = tools_for(HERMES).prepared(request(ToolUse((unique,), "required"))).constraint
    assert constraint is not None
    fault = grammars.compile(constraint)
    grammars.close()
    assert isinstance(fault, RowFault)
    assert fault.param == "body.tools"
    assert "uniqueItems" in fault.message
