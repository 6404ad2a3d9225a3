"""Messages of chats and prompts of completions."""

from __future__ import annotations

from typing import Any

from tests.table.case import Case, bad, chat, completion

USER = {"role": "user", "content": "the sea"}
SYSTEM = {"role": "system", "content": "be brief"}
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
LONG = "the sea " * 80


def said(name: str, *messages: Any, **expected: Any) -> Case:
    return chat(name, {"messages": list(messages)}, **expected)


def user(name: str, content: Any, **expected: Any) -> Case:
    return said(name, {"role": "user", "content": content}, **expected)


def refused(name: str, messages: Any, code: str, at: str) -> Case:
    return chat(name, {"messages": messages}, **bad(code, f"body.messages{at}"))


def prompted(name: str, prompt: Any, **expected: Any) -> Case:
    return completion(name, {"prompt": prompt}, **expected)


CHATS = [
    said("a chat", USER, finish="length", tokens=4),
    user("content is empty", ""),
    user("content is null", None),
    said("no content", {"role": "user"}),
    user("content in parts", [{"type": "text", "text": "the"}, {"type": "text", "text": "sea"}]),
    user("content is no part", []),
    user("content in strings", ["the", "sea"]),
    user("content of the newer kind", [{"type": "input_text", "text": "the sea"}]),
    user("content is an image", [{"type": "image_url", "text": ""}], **bad("invalid_value", None, "'text'")),
    user("content is sound", [{"type": "input_audio", "input_audio": {}, "text": ""}], **bad("invalid_value")),
    user("content is a number", 5, **bad("invalid_type", "body.messages[0].content")),
    user("content is an object", {"text": "x"}, **bad("invalid_type", "body.messages[0].content")),
    user("a part is a number", [5], **bad("invalid_type", "body.messages[0].content[0]")),
    user("a part has no text", [{"type": "text"}], **bad("missing_required_field", "body.messages[0].content[0].text")),
    user("letters of all kinds", "größe 日本 🙂\u0000\u202e\ufffd"),
    user("special tokens as text", "</s><s><|user|> {{ 1 }} {% raw %}"),
    user("too long", LONG, **bad("context_length_exceeded", "body.messages", "--max-model-len")),
    said("a conversation", SYSTEM, USER, {"role": "assistant", "content": "yes"}, USER),
    said("a developer", {"role": "developer", "content": "be brief"}, USER),
    said("a name", USER | {"name": "Ada"}),
    said("a name that is null", USER | {"name": None}),
    said("keys that nobody knows", USER | {"x": {"y": [1]}}),
    said("a role that nobody knows", {"role": "narrator", "content": "once"}),
    said("a role that the template refuses", {"role": "nobody", "content": ""},
         **bad("invalid_chat_template_input", "body.messages", "nobody may not speak")),
    said("calls and their results", USER, {"role": "assistant", "content": None, "tool_calls": [CALL]},
         {"role": "tool", "tool_call_id": "c1", "content": "2"}),
    said("no calls", USER, {"role": "assistant", "content": "yes", "tool_calls": []}, USER),
    said("a call without name", {"role": "assistant", "tool_calls": [{"function": {}}]},
         **bad("missing_required_field", "body.messages[0].tool_calls[0].function.name")),
    refused("no messages", None, "missing_required_field", ""),
    refused("messages are empty", [], "invalid_value", ""),
    refused("messages are text", "the sea", "invalid_type", ""),
    refused("messages are an object", USER, "invalid_type", ""),
    refused("a message is text", [USER, "the sea"], "invalid_type", "[1]"),
    refused("a message is null", [None], "invalid_type", "[0]"),
    refused("no role", [{"content": "x"}], "missing_required_field", "[0].role"),
    refused("role is a number", [{"role": 1, "content": "x"}], "invalid_type", "[0].role"),
    refused("role is empty", [{"role": "", "content": "x"}], "invalid_value", "[0].role"),
    chat("the last message is continued", {
        "messages": [USER, {"role": "assistant", "content": "it is"}], "continue_final_message": True}),
    chat("continued and begun", {"continue_final_message": True, "add_generation_prompt": True},
         **bad("invalid_value", "body.continue_final_message")),
    chat("continued is text", {"continue_final_message": "yes"}, **bad("invalid_type", "body.continue_final_message")),
    chat("no answer is begun", {"add_generation_prompt": False}),
    chat("names for the template", {"chat_template_kwargs": {"enable_thinking": False}}),
    chat("names that are taken", {"chat_template_kwargs": {"messages": []}}, **bad("invalid_value")),
    chat("names in a list", {"chat_template_kwargs": []}, **bad("invalid_type", "body.chat_template_kwargs")),
    chat("a template of its own", {"chat_template": "{{ 1 }}"},
         **bad("unsupported_parameter", "body.chat_template", "--chat-template")),
    chat("effort", {"reasoning_effort": "low"}),
    chat("effort of no kind", {"reasoning_effort": "utmost"}, **bad("invalid_value", "body.reasoning_effort")),
    chat("documents", {"documents": [{"title": "x", "text": "y"}]}),
    chat("special tokens are the template's", {"add_special_tokens": False}),
    chat("special tokens twice", {"add_special_tokens": True}, **bad("unsupported_parameter")),
    chat("tools", {"tools": [TOOL]}),
    chat("no tools", {"tools": []}),
    chat("tools that must not be used", {"tools": [TOOL], "tool_choice": "none"}),
    chat("a tool without kind", {"tools": [{"function": {"name": "x"}}]}, **bad("missing_required_field")),
    chat("a tool of another kind", {"tools": [{"type": "web_search"}]}, **bad("invalid_value", "body.tools[0].type")),
    chat("a tool with an odd name", {"tools": [{"type": "function", "function": {"name": "a b"}}]},
         **bad("invalid_value", "body.tools[0].function.name")),
    chat("a choice without tools", {"tool_choice": "required"}, **bad("invalid_value", "body.tool_choice")),
    chat("a choice of no tool", {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "x"}}},
         **bad("invalid_value", "body.tool_choice")),
    chat("a choice of no kind", {"tools": [TOOL], "tool_choice": "some"}, **bad("invalid_value", "body.tool_choice")),
]  # fmt: skip

PROMPTS = [
    prompted("a prompt", "the sea", finish="length", tokens=4),
    prompted("a list of one", ["the sea"]),
    prompted("a list of three", ["the sea", "the hat", "the sea"], choices=3, tokens=12),
    prompted("token ids", [5, 6, 7], prompt_tokens=3),
    prompted("lists of token ids", [[5], [6, 7]], choices=2, prompt_tokens=3),
    prompted("one token", [4], prompt_tokens=1),
    prompted("prompt is empty", "", **bad("invalid_value", "body.prompt", "no tokens")),
    prompted("one of the prompts is empty", ["the sea", ""], **bad("invalid_value", "body.prompt[1]")),
    prompted("no prompts", [], **bad("invalid_value", "body.prompt")),
    prompted("no ids", [[]], **bad("invalid_value", "body.prompt[0]")),
    prompted("prompt is null", None, **bad("missing_required_field", "body.prompt")),
    prompted("prompt is a number", 5, **bad("invalid_type", "body.prompt")),
    prompted("prompt is an object", {}, **bad("invalid_type", "body.prompt")),
    prompted("strings and numbers", ["a", 5], **bad("invalid_type", "body.prompt[1]")),
    prompted("numbers and strings", [5, "a"], **bad("invalid_type", "body.prompt[1]")),
    prompted("an id is a fraction", [5, 6.5], **bad("invalid_type", "body.prompt[1]")),
    prompted("an id is true", [True], **bad("invalid_type", "body.prompt[0]")),
    prompted("an id is negative", [-1], **bad("invalid_value", "body.prompt[0]")),
    prompted("an id is of no token", [5, 307], **bad("invalid_value", "body.prompt", "vocabulary")),
    prompted("an id is huge", [2**31], **bad("invalid_value", "body.prompt", "vocabulary")),
    prompted("too many tokens", LONG, **bad("context_length_exceeded", "body.prompt")),
    prompted("too many ids", [5] * 128, **bad("context_length_exceeded", "body.prompt")),
    prompted("as many ids as fit", [5] * 127, prompt_tokens=127, tokens=1, effective={"max_tokens": 1}),
    prompted("prompt of all letters", "größe 日本 🙂\u0000\u202e"),
    completion("special tokens of text", {"add_special_tokens": True}),
    completion("no special tokens of text", {"add_special_tokens": False}, **bad("unsupported_parameter")),
    completion("suffix", {"suffix": "x"}, **bad("unsupported_parameter", "body.suffix")),
    completion("no suffix", {"suffix": ""}),
]  # fmt: skip
