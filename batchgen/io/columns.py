"""Rows that are not in batch form: columns become the body of a request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import orjson

from batchgen.config import InputConfig
from batchgen.errors import UsageError
from batchgen.protocol.faults import Code, RowFault
from batchgen.protocol.request import Endpoint, RawRow

__all__ = ["RowShaper"]

_ENVELOPE = frozenset({"custom_id", "method", "url", "body"})


class RowShaper:
    """Makes a `RawRow` of a row's columns."""

    def __init__(self, config: InputConfig) -> None:
        self._config = config
        self._render = _template(config.prompt_template) if config.prompt_template is not None else None

    def shape(self, line: int, row: Mapping[str, Any]) -> RawRow:
        """A row in batch form as it is, with its further columns passed through; else the columns that the settings
        name, and all columns passed through."""
        if self._render is None and self._config.prompt_column is None and "body" in row:
            return self._batch_form(line, row)
        body, fault = self._body(row)
        if fault is not None:
            return RawRow(line, None, fault)
        if body is None:
            # Judged as a batch line, so that its faults say what is missing.
            return RawRow(line, row)
        custom_id = row.get(self._config.id_column or "custom_id", f"row-{line}")
        url = Endpoint.CHAT if "messages" in body else Endpoint.COMPLETIONS
        data = {"custom_id": custom_id, "method": "POST", "url": url.value, "body": body}
        return RawRow(line, data, extra={name: value for name, value in row.items() if name != "custom_id"})

    def _batch_form(self, line: int, row: Mapping[str, Any]) -> RawRow:
        data = {name: row[name] for name in _ENVELOPE if name in row}
        if self._config.id_column is not None:
            data["custom_id"] = row.get(self._config.id_column)
        if isinstance(data["body"], str):
            try:
                data["body"] = orjson.loads(data["body"])
            except orjson.JSONDecodeError as error:
                return RawRow(line, None, RowFault(Code.INVALID_JSON_LINE, f"body is not JSON: {error}", "body"))
        return RawRow(line, data, extra={name: value for name, value in row.items() if name not in _ENVELOPE})

    def _body(self, row: Mapping[str, Any]) -> tuple[dict[str, Any] | None, RowFault | None]:
        config = self._config
        if self._render is not None:
            try:
                return self._prompt(self._render(row)), None
            except Exception as error:  # noqa: BLE001 - a template is foreign code: what it raises is this row's fault
                message = f"--prompt-template failed on this row: {error}"
                return None, RowFault(Code.INVALID_CHAT_TEMPLATE_INPUT, message)
        if config.prompt_column is not None:
            if (prompt := row.get(config.prompt_column)) is None:
                message = f"there is no {config.prompt_column!r} in this row; --prompt-column names it"
                return None, RowFault(Code.MISSING_REQUIRED_FIELD, message, config.prompt_column)
            return self._prompt(prompt), None
        messages = row.get(config.messages_column)
        if not isinstance(messages, list):
            return None, None
        system = [{"role": "system", "content": config.system_prompt}] if config.system_prompt is not None else []
        return {"messages": [*system, *messages]}, None

    def _prompt(self, prompt: Any) -> dict[str, Any]:
        """A bare prompt is a completion; with a system prompt it is a chat's user message."""
        if self._config.system_prompt is None:
            return {"prompt": prompt}
        return {
            "messages": [
                {"role": "system", "content": self._config.system_prompt},
                {"role": "user", "content": prompt},
            ]
        }


def _template(source: str) -> Callable[[Mapping[str, Any]], str]:
    from jinja2 import StrictUndefined, TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    try:
        template = ImmutableSandboxedEnvironment(undefined=StrictUndefined).from_string(source)
    except TemplateError as error:
        raise UsageError(f"--prompt-template is not valid Jinja: {error}") from error
    return lambda row: template.render(**row)
