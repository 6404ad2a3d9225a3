"""Chat templates: messages to the text that the model was trained on, as transformers renders them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from datetime import datetime
from functools import cached_property
from types import MappingProxyType
from typing import Any, NoReturn

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser

from batchgen.checkpoint.types import Checkpoint
from batchgen.errors import UsageError
from batchgen.sandbox import BoundedEnvironment

__all__ = ["ChatTemplate", "load_template"]

_PROBE = "batchgen probes content"


class ChatTemplate:
    """A compiled chat template. It comes with the model, from anywhere, so it runs in a sandbox."""

    def __init__(self, source: str, variables: Mapping[str, str]) -> None:
        """Compile Jinja `source`; `variables` are the special tokens that it may name, such as `bos_token`.

        Raises `UsageError` where it does not compile.
        """
        environment = BoundedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
        )
        environment.filters["tojson"] = _to_json
        environment.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
        try:
            self._template = environment.from_string(source)
        except TemplateSyntaxError as error:
            raise UsageError(
                f"the chat template cannot be compiled: line {error.lineno}: {error.message}; "
                "give another with --chat-template"
            ) from error
        self.source = source
        self._variables = dict(variables)

    def render(
        self,
        messages: SequenceOf[Mapping[str, Any]],
        *,
        tools: SequenceOf[Mapping[str, Any]] | None = None,
        documents: SequenceOf[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] = MappingProxyType({}),
    ) -> str:
        """The prompt for these messages, up to where the assistant's answer begins, or to the last message's end.

        Raises whatever the template raises: `jinja2.TemplateError`, or any error of the operations in it.
        """
        # The names that transformers passes. tools and documents are there also where there are none.
        names = self._variables | dict(variables)
        return self._template.render(
            **names, messages=messages, tools=tools, documents=documents, add_generation_prompt=add_generation_prompt
        )

    def names(self, word: str) -> bool:
        """Whether the template speaks of a role or a variable."""
        return re.search(rf"\b{word}\b", self.source) is not None

    @cached_property
    def takes_text(self) -> bool:
        """Whether a message's content may be a string."""
        return _PROBE in self._probe(_PROBE)

    @cached_property
    def takes_parts(self) -> bool:
        """Whether a message's content may be a list of parts, as templates of multimodal models expect."""
        shown = self._probe([{"type": "text", "text": _PROBE}])
        return _PROBE in shown and "'type'" not in shown and '"type"' not in shown

    def _probe(self, content: object) -> str:
        """What the template makes of one user message; empty where it fails on it."""
        try:
            return self.render([{"role": "user", "content": content}])
        except Exception:  # noqa: BLE001 - a template is foreign code and may raise anything; so it takes no such content
            return ""


def load_template(checkpoint: Checkpoint) -> ChatTemplate | None:
    """The checkpoint's chat template, None where it has none. Raises `UsageError` where it does not compile."""
    if checkpoint.chat_template is None:
        return None
    tokens = {k: v for k, v in checkpoint.tokenizer_config.items() if k.endswith("_token") and isinstance(v, str)}
    return ChatTemplate(checkpoint.chat_template, tokens)


class _Generation(Extension):
    """`{% generation %} … {% endgeneration %}` marks the assistant's words for training; here it is its content."""

    tags = {"generation"}  # noqa: RUF012 - the name and type that jinja2 wants

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(line)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Like Jinja's filter, but without escaping for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)
