"""Rows as readers find them, made into requests in batch form: columns become the body, the rest is passed through."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import orjson

from batchgen.config import InputConfig
from batchgen.errors import UsageError
from batchgen.io.json_text import TooDeepError, load_json
from batchgen.protocol.faults import Code, RowFault
from batchgen.protocol.request import Endpoint, RawRow

__all__ = ["RowShaper", "check_columns", "request_columns", "with_defaults"]

_ENVELOPE = frozenset({"custom_id", "method", "url", "body"})
_MESSAGE_ENVELOPE = frozenset({"custom_id", "params"})
_LIMITS = frozenset({"max_completion_tokens", "max_tokens"})
"""Two names for one thing."""


def request_columns(config: InputConfig, names: Collection[str]) -> frozenset[str]:
    """The columns of a row that make its request; all others are passed through."""
    custom_id = config.id_column or "custom_id"
    if config.prompt_template is not None:
        return frozenset({custom_id})
    if config.prompt_column is not None:
        return frozenset({custom_id, config.prompt_column})
    if "body" not in names and config.messages_column in names:
        return frozenset({custom_id, config.messages_column})
    return _envelope(names) | {custom_id}


def check_columns(config: InputConfig, names: Collection[str]) -> None:
    """Raise `UsageError` where a table with these columns can't hold one request."""
    found = ", ".join(sorted(names)) or "none"
    for flag, name in (("--id-column", config.id_column), ("--prompt-column", config.prompt_column)):
        if name is not None and name not in names:
            raise UsageError(f"input {config.input_file}: {flag} names {name!r}; the columns are: {found}")
    by_setting = config.prompt_template is not None or config.prompt_column is not None
    if not by_setting and not {"body", "params", config.messages_column} & set(names):
        raise UsageError(
            f"input {config.input_file}: no column 'body', 'params' or {config.messages_column!r}; the columns are: "
            f"{found}. Say which to use with --messages-column, --prompt-column or --prompt-template"
        )


def with_defaults(rows: Iterable[RawRow], sampling: Mapping[str, Any]) -> Iterator[RawRow]:
    """The rows with parameters for those bodies that don't have them."""
    for row in rows:
        if row.data is None or row.fault is not None:
            yield row
            continue
        name = "params" if "params" in row.data and "body" not in row.data else "body"
        body = row.data.get(name)
        yield replace(row, data={**row.data, name: _merged(sampling, body)}) if isinstance(body, Mapping) else row


class RowShaper:
    """Makes a `RawRow` of a row's columns. Raises `UsageError` for a template that is none."""

    def __init__(self, config: InputConfig) -> None:
        self._config = config
        self._render = _template(config.prompt_template) if config.prompt_template is not None else None

    def shape(self, line: int, row: Mapping[str, Any], extra: Mapping[str, Any]) -> RawRow:
        """A row in batch form as it is; else the columns that the settings name become the request.

        `extra`: what is passed through. A row that has neither form is judged as a batch line, so that its faults say
        what is missing.
        """
        config = self._config
        by_setting = config.prompt_template is not None or config.prompt_column is not None
        if not by_setting and ("body" in row or config.messages_column not in row):
            return RawRow(line, self._batch_form(row), None, extra)
        unnamed = None if config.id_column is not None else f"row-{line}"
        data: dict[str, Any] = {"custom_id": row.get(config.id_column or "custom_id", unnamed), "method": "POST"}
        body = self._body(row)
        if isinstance(body, RowFault):
            return RawRow(line, data, body, extra)
        data["url"] = (Endpoint.CHAT if "messages" in body else Endpoint.COMPLETIONS).value
        return RawRow(line, data | {"body": body}, None, extra)

    def _batch_form(self, row: Mapping[str, Any]) -> dict[str, Any]:
        data = {name: row[name] for name in _envelope(row) if name in row}
        if self._config.id_column is not None:
            data["custom_id"] = row.get(self._config.id_column)
        for name in ("body", "params"):
            if isinstance(data.get(name), str):
                # A string that can't be read as JSON stays one: the parser refuses it.
                with suppress(orjson.JSONDecodeError, TooDeepError):
                    data[name] = load_json(data[name])
        return data

    def _body(self, row: Mapping[str, Any]) -> dict[str, Any] | RowFault:
        config = self._config
        if self._render is not None:
            try:
                return self._prompt(self._render(row))
            except Exception as error:  # noqa: BLE001 - a template is foreign code: what it raises is this row's fault
                said = str(error) or type(error).__name__
                return RowFault(Code.INVALID_CHAT_TEMPLATE_INPUT, f"--prompt-template failed on this row: {said}")
        if config.prompt_column is not None:
            return self._prompt(row.get(config.prompt_column))
        messages = row[config.messages_column]
        if config.system_prompt is None or not isinstance(messages, list) or _begins_with_system(messages):
            return {"messages": messages}
        return {"messages": [{"role": "system", "content": config.system_prompt}, *messages]}

    def _prompt(self, prompt: Any) -> dict[str, Any]:
        """A bare prompt is a completion; with a system prompt it is a chat's user message."""
        if self._config.system_prompt is None:
            return {"prompt": prompt}
        roles = {"system": self._config.system_prompt, "user": prompt}
        return {"messages": [{"role": role, "content": content} for role, content in roles.items()]}


def _envelope(names: Collection[str]) -> frozenset[str]:
    return _MESSAGE_ENVELOPE if "params" in names and "body" not in names else _ENVELOPE


def _begins_with_system(messages: list[Any]) -> bool:
    return bool(messages) and isinstance(messages[0], dict) and messages[0].get("role") in {"system", "developer"}


def _template(source: str) -> Callable[[Mapping[str, Any]], str]:
    from jinja2 import StrictUndefined, TemplateError

    from batchgen.sandbox import BoundedEnvironment

    environment = BoundedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True)
    try:
        return environment.from_string(source).render
    except TemplateError as error:
        raise UsageError(f"--prompt-template is not valid Jinja: {error}") from error


def _merged(sampling: Mapping[str, Any], body: Mapping[str, Any]) -> dict[str, Any]:
    own = {name for name, value in body.items() if value is not None}
    if own & _LIMITS:
        own |= _LIMITS
    return {**body, **{name: value for name, value in sampling.items() if name not in own}}
