"""Prompts become token ids, or a fault that says what to change."""

from __future__ import annotations

from typing import Any

import pytest

from batchgen.protocol.faults import Code, RowFault
from batchgen.protocol.request import ChatPrompt, Endpoint, GenRequest, Prompt, SamplingRequest, TextPrompt, TokenPrompt
from batchgen.text.embedding import EmbeddingSpec
from batchgen.text.prompt import Prompter
from batchgen.text.template import ChatTemplate
from batchgen.text.tokenizer import Tokenizer
from tests.tiny_tokenizers import byte_fallback

PLAIN = (
    "{{ bos_token }}{% for m in messages %}{{ m.role }}:{{ m['content'] + '|' }}{% endfor %}"
    "{% if messages[0].role == 'robot' %}{{ raise_exception('no robots here') }}{% endif %}"
)
PARTS = "{% for m in messages %}{% for p in m.content %}[{{ p.type }} {{ p.text }}]{% endfor %}{% endfor %}"


def prompter(template: str | None = PLAIN, max_model_len: int = 1000, vocab_size: int = 300) -> Prompter:
    tokenizer = Tokenizer(byte_fallback(), {"bos_token": "<s>"})
    compiled = None if template is None else ChatTemplate(template, {"bos_token": "<s>"})
    return Prompter(tokenizer, compiled, vocab_size, max_model_len, EmbeddingSpec(8, "last"))


def request(*prompts: Prompt, **sampling: Any) -> GenRequest:
    endpoint = Endpoint.CHAT if isinstance(prompts[0], ChatPrompt) else Endpoint.COMPLETIONS
    return GenRequest(
        custom_id="a", line=1, endpoint=endpoint, model=None, prompts=prompts, sampling=SamplingRequest(**sampling)
    )


def chat(*contents: object, role: str = "user") -> GenRequest:
    return request(ChatPrompt(tuple({"role": role, "content": content} for content in contents)))


def rendered(asked: GenRequest, template: str = PLAIN) -> str:
    chosen = prompter(template)
    encoded = chosen.encode(asked)
    assert isinstance(encoded, list)
    assert chosen.tokenizer is not None
    return chosen.tokenizer.decode(encoded[0])


def fault(asked: GenRequest, chosen: Prompter | None = None) -> RowFault:
    found = (chosen or prompter()).encode(asked)
    assert isinstance(found, RowFault)
    return found


def test_a_chat_has_the_special_tokens_that_its_template_writes() -> None:
    encoded = prompter().encode(chat("the cat"))
    assert isinstance(encoded, list)
    assert encoded[0].count(1) == 1
    assert rendered(chat("the cat")).strip() == "user:the cat|"


def test_texts_and_tokens_in_order() -> None:
    chosen = prompter()
    assert chosen.tokenizer is not None
    encoded = chosen.encode(request(TextPrompt("the"), TokenPrompt((5, 6))))
    assert encoded == [chosen.tokenizer.encode("the"), (5, 6)]


def test_content_that_is_null_missing_or_in_parts() -> None:
    assert rendered(chat(None, "a")).strip() == "user:|user:a|"
    assert rendered(request(ChatPrompt(({"role": "assistant", "name": None},)))).strip() == "assistant:|"
    parts = [{"type": "text", "text": "a"}, "b", {"type": "refusal", "refusal": "c"}]
    assert rendered(chat(parts)).strip() == "user:a\nb\nc|"
    assert rendered(chat(parts, "d"), PARTS).strip() == "[text a][text b][text c][text d]"


@pytest.mark.parametrize(
    ("content", "code", "path"),
    [
        ([{"type": "image_url", "image_url": {}}], Code.INVALID_VALUE, "body.messages[0].content[0].type"),
        ([{"type": "text"}], Code.INVALID_TYPE, "body.messages[0].content[0]"),
        ([3], Code.INVALID_TYPE, "body.messages[0].content[0]"),
        (3, Code.INVALID_TYPE, "body.messages[0].content"),
        ("\ud800", Code.INVALID_VALUE, "body.messages"),
    ],
)
def test_content_that_cannot_be_read(content: object, code: Code, path: str) -> None:
    assert (fault(chat(content)).code, fault(chat(content)).param) == (code, path)


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (PLAIN, "no robots here"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ messages.__class__.__mro__ }}", "unsafe"),
        ("{{ messages[7].content }}", "has no element 7"),
    ],
)
def test_whatever_a_template_raises_is_the_rows_fault(template: str, said: str) -> None:
    found = fault(chat("x", role="robot"), prompter(template))
    assert (found.code, found.param) == (Code.INVALID_CHAT_TEMPLATE_INPUT, "body.messages")
    assert said in found.message


def test_no_template_says_what_to_do() -> None:
    found = fault(chat("x"), prompter(template=None))
    assert found.code is Code.INVALID_CHAT_TEMPLATE_INPUT
    assert "--chat-template" in found.message
    assert "/v1/completions" in found.message


def test_no_tokenizer_takes_token_ids_alone() -> None:
    bare = Prompter(None, None, vocab_size=300, max_model_len=10, embedding=EmbeddingSpec(8, "last"))
    assert bare.encode(request(TokenPrompt((5, 6)))) == [(5, 6)]
    assert "--tokenizer" in fault(request(TextPrompt("x")), bare).message
    assert fault(request(TokenPrompt((5,)), stop=("x",)), bare).param == "body.stop"


@pytest.mark.parametrize("ids", [(300,), (5, -1), (5, 10**12)])
def test_token_ids_outside_the_vocabulary(ids: tuple[int, ...]) -> None:
    found = fault(request(TokenPrompt((5,)), TokenPrompt(ids)))
    assert (found.code, found.param) == (Code.INVALID_VALUE, "body.prompt[1]")
    assert f"token id {ids[-1]} is outside" in found.message


def test_text_with_a_token_that_the_model_has_no_row_for() -> None:
    assert "token id 3 is outside" in fault(request(TextPrompt("<|user|>")), prompter(vocab_size=3)).message


def test_an_empty_prompt() -> None:
    assert fault(request(TokenPrompt(()))).code is Code.INVALID_VALUE


def test_a_prompt_must_leave_room_for_one_token() -> None:
    assert prompter(max_model_len=4).encode(request(TokenPrompt((5, 6, 7)))) == [(5, 6, 7)]
    found = fault(request(TokenPrompt((5, 6, 7))), prompter(max_model_len=3))
    assert (found.code, found.param) == (Code.CONTEXT_LENGTH_EXCEEDED, "body.prompt")
    assert "3 tokens and the context 3" in found.message
    assert "--max-model-len" in found.message
