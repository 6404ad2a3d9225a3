"""What a chat template sees of messages, tools and settings, and how a message is continued."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from batchgen.protocol.faults import Code, RowFault
from batchgen.protocol.request import ChatPrompt, Endpoint, GenRequest, ToolUse
from batchgen.text.embedding import EmbeddingSpec
from batchgen.text.messages import fit_messages
from batchgen.text.prompt import Prompter
from batchgen.text.template import ChatTemplate
from batchgen.text.tokenizer import Tokenizer
from tests.tiny_tokenizers import byte_level

TEXT = "{% for m in messages %}{{ m.content }}{% endfor %}"
PARTS = "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}"
SHOW = "{{ messages | tojson }}"
TURNS = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for d in documents or [] %}[{{ d.text }}]{% endfor %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}{% if mood is defined %}({{ mood }}){% endif %}"
)
TRIMMED = "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</{{ m.role }}>{% endfor %}"
TOOL = {"type": "function", "function": {"name": "add"}}
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": [1, 2]}'}}


def fitted(source: str, *messages: Mapping[str, Any]) -> list[dict[str, Any]]:
    found = fit_messages(messages, ChatTemplate(source, {}))
    assert isinstance(found, list)
    return found


def prompt_of(source: str, chat: ChatPrompt) -> str | RowFault:
    tokenizer = Tokenizer(byte_level(), {})
    prompter = Prompter(tokenizer, ChatTemplate(source, {}), tokenizer.vocab_size, 1000, EmbeddingSpec(8, "last"))
    request = GenRequest(custom_id="a", line=1, endpoint=Endpoint.CHAT, model=None, prompts=(chat,))
    encoded = prompter.encode(request)
    return encoded if isinstance(encoded, RowFault) else tokenizer.decode(encoded[0], skip_special_tokens=False)


def part(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def chat(content: object = "hi", role: str = "user", **settings: Any) -> ChatPrompt:
    return ChatPrompt(({"role": role, "content": content},), **settings)


def test_calls_in_the_history() -> None:
    asked, told = fitted(
        TEXT,
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": [part("3"), part("4")]},
    )
    assert asked["content"] == ""
    assert asked["tool_calls"] == [CALL | {"function": {"name": "add", "arguments": {"a": [1, 2]}}}]
    assert told == {"role": "tool", "tool_call_id": "c1", "content": "3\n4"}


@pytest.mark.parametrize(
    ("sent", "seen"),
    [(None, {}), ("", {}), ({"a": 1}, {"a": 1}), ("{oops", "{oops"), ("[1]", "[1]"), ("{}", {})],
)
def test_arguments_are_objects_where_they_can_be(sent: object, seen: object) -> None:
    (message,) = fitted(TEXT, {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": sent}}]})
    assert message["tool_calls"][0]["function"]["arguments"] == seen


def test_what_is_null_or_empty_is_not_there() -> None:
    message: dict[str, Any] = {"role": "assistant", "content": "a", "tool_calls": [], "refusal": None, "name": None}
    assert fitted(TEXT, message) == [{"role": "assistant", "content": "a"}]


def test_tools_answer_in_text_also_where_users_send_parts() -> None:
    user, tool = fitted(PARTS, {"role": "user", "content": "a"}, {"role": "tool", "content": [part("b")]})
    assert user["content"] == [part("a")]
    assert tool["content"] == "b"


def test_a_developer_is_the_system_unless_the_template_knows_better() -> None:
    assert prompt_of(TURNS, chat(role="developer")) == "<system>hi</system><assistant>"
    knows = TURNS + "{# developer #}"
    assert prompt_of(knows, chat(role="developer")) == "<developer>hi</developer><assistant>"


def test_tools_documents_and_variables_reach_the_template() -> None:
    tools = ToolUse((TOOL,))
    shown = prompt_of(TURNS, chat(tools=tools, documents=({"text": "d"},), variables={"mood": "glad"}))
    assert shown == f"{json.dumps([TOOL])}[d]<user>hi</user><assistant>(glad)"
    assert prompt_of(TURNS, chat(add_generation_prompt=False)) == "<user>hi</user>"


def test_what_a_template_would_leave_out_is_refused() -> None:
    for given, path in (
        ({"tools": ToolUse((TOOL,))}, "body.tools"),
        ({"documents": ({"text": "d"},)}, "body.documents"),
    ):
        fault = prompt_of(TEXT, chat(**given))
        assert isinstance(fault, RowFault)
        assert (fault.code, fault.param) == (Code.INVALID_CHAT_TEMPLATE_INPUT, path)
        assert "--chat-template" in fault.message
    # Tools that are not to be called need no place.
    assert prompt_of(TEXT, chat(tools=ToolUse((TOOL,), "none"))) == "hi"


@pytest.mark.parametrize("source", [TURNS, TRIMMED])
@pytest.mark.parametrize("content", ["The sea", "The sea ", "  ", "", "two\nlines\n"])
def test_a_message_is_continued_as_by_transformers(source: str, content: str) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": content}]
    (theirs,), _ = render_jinja_template([messages], chat_template=source, continue_final_message=True)
    ours = prompt_of(source, ChatPrompt(tuple(messages), add_generation_prompt=False, continue_final_message=True))
    assert ours == theirs


def test_the_last_part_is_continued() -> None:
    parts = [part("a"), part("b")]
    settings: dict[str, Any] = {"add_generation_prompt": False, "continue_final_message": True}
    assert prompt_of(PARTS + "!", chat(parts, **settings)) == "ab"
    fault = prompt_of(PARTS, chat([], **settings))
    assert isinstance(fault, RowFault)
    assert "no text that continue_final_message" in fault.message


def test_a_template_that_drops_the_last_message_cannot_continue_it() -> None:
    fault = prompt_of("{{ messages[0].role }}", chat(add_generation_prompt=False, continue_final_message=True))
    assert isinstance(fault, RowFault)
    assert "leaves out the end of the last message" in fault.message
