"""Chat templates render as transformers renders them."""

from __future__ import annotations

from typing import Any

import pytest
from jinja2 import TemplateError

from batchgen.checkpoint.types import Checkpoint
from batchgen.errors import UsageError
from batchgen.text.template import ChatTemplate, load_template
from batchgen.text.tokenizer import load_tokenizer

TEMPLATES = {
    "chatml": "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
    "blocks and whitespace": "{{ bos_token }}\n{% for m in messages %}\n    {% if m.role == 'user' %}"
    "\n[{{ m.content }}]\n    {% else %}\n({{ m.content }})\n    {% endif %}\n{% endfor %}\n",
    "loop controls": "{% for m in messages %}{% if loop.index > 2 %}{% break %}{% endif %}"
    "{% if m.role == 'system' %}{% continue %}{% endif %}{{ m.content }}|{% endfor %}",
    "tojson": "{{ messages | tojson }}{{ messages[0] | tojson(indent=2) }}{{ messages | tojson(ensure_ascii=true) }}"
    "{{ messages[0] | tojson(separators=(',', ':'), sort_keys=true) }}",
    "generation": "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}\n{{ m.content }}"
    "{{ eos_token }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}",
    "nothing given": "{% if tools is none and documents is none %}{{ pad_token }}none{% endif %}{{ unknown_variable }}",
    "namespace and macro": "{% set ns = namespace(n=0) %}{% macro show(x) %}<{{ x }}>{% endmacro %}"
    "{% for m in messages %}{% set ns.n = ns.n + 1 %}{{ show(m.content) }}{% endfor %}{{ ns.n }}",
    "string methods": "{{ messages[0]['content'].strip().split(' ')[-1] | upper }}{{ messages[-1].role.title() }}",
    "date": "{{ strftime_now('%Y') }}",
}

EITHER = (
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}{{ p['text'] }}{% endfor %}{% endif %}{% endfor %}"
)

CHATS: dict[str, list[dict[str, Any]]] = {
    "one": [{"role": "user", "content": "  Hi <there> & \"you\" 'all' é 日本\n"}],
    "three": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello.\n\n"},
        {"role": "user", "content": "{{ not a template }} {% raw %}"},
    ],
}

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def theirs(template: str, messages: list[dict[str, Any]]) -> str:
    from transformers.utils.chat_template_utils import render_jinja_template

    rendered, _ = render_jinja_template(
        [messages], tools=None, documents=None, chat_template=template, add_generation_prompt=True, **TOKENS
    )
    return str(rendered[0])


@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("template", TEMPLATES)
def test_rendered_as_by_transformers(template: str, chat: str) -> None:
    source, messages = TEMPLATES[template], CHATS[chat]
    assert ChatTemplate(source, TOKENS).render(messages) == theirs(source, messages)


def test_a_template_can_refuse_and_is_kept_in_its_sandbox() -> None:
    messages = CHATS["one"]
    with pytest.raises(TemplateError, match="roles must alternate"):
        ChatTemplate("{{ raise_exception('roles must alternate') }}", {}).render(messages)
    for attack in ("{{ messages.__class__.__mro__ }}", "{{ messages.append(1) }}", "{{ ''.__class__() }}"):
        with pytest.raises(TemplateError):
            ChatTemplate(attack, {}).render(messages)


def test_a_template_that_does_not_compile() -> None:
    with pytest.raises(UsageError, match=r"line 2: .*--chat-template"):
        ChatTemplate("\n{% for %}", {})


@pytest.mark.parametrize(
    ("source", "text", "parts"),
    [
        (TEMPLATES["chatml"], True, False),
        ("{% for m in messages %}{{ m.content | trim }}{% endfor %}", True, False),
        ("{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}", False, True),
        (EITHER, True, True),
        ("{{ raise_exception('no') }}", False, False),
    ],
)
def test_which_content_a_template_takes(source: str, text: bool, parts: bool) -> None:
    template = ChatTemplate(source, {})
    assert (template.takes_text, template.takes_parts) == (text, parts)


def thirty_two_chats() -> list[list[dict[str, Any]]]:
    systems = [None, "You are terse.", "Réponds en français. 🙂", ""]
    questions = [
        "What is 2 + 2?",
        "  Write a haiku about\n\n<|im_end|> rain  ",
        "日本語で答えてください。",
        "```python\nprint('x')\n```\tExplain.",
    ]
    chats = []
    for system in systems:
        for question in questions:
            for history in (False, True):
                chat = [{"role": "system", "content": system}] if system is not None else []
                if history:
                    chat += [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi! "}]
                chats.append([*chat, {"role": "user", "content": question}])
    return chats


@pytest.mark.slow
def test_smollm2_chats_as_by_transformers(smollm2: Checkpoint) -> None:
    from transformers import AutoTokenizer

    file = smollm2.weights.file  # type: ignore[union-attr]
    reference = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    tokenizer, template = load_tokenizer(smollm2), load_template(smollm2)
    assert tokenizer is not None
    assert template is not None
    chats = thirty_two_chats()
    assert len(chats) == 32
    for chat in chats:
        rendered = template.render(chat)
        assert rendered == reference.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        expected = reference.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]
        assert tokenizer.encode_rendered(rendered) == expected
