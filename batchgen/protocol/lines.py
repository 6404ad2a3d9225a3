"""Result rows as lines of JSON: in the shapes of OpenAI's batch output, of `vllm run-batch`, of Anthropic's results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import orjson

from batchgen.protocol.anthropic_response import error_result, message_result
from batchgen.protocol.response import row_id

__all__ = ["LINES", "AnsweredRow", "LineFormat"]

LineFormat = Literal["openai", "anthropic", "vllm"]


@dataclass(frozen=True, slots=True)
class AnsweredRow:
    """What a line is made of."""

    run_id: str
    line: int
    custom_id: str | None
    status_code: int
    response: str | bytes | None
    """The response body as JSON; None for a line that is no request at all."""
    error: Mapping[str, Any] | None
    """With `code`, `message` and `param`; None for an answer."""

    @property
    def name(self) -> str:
        """What the ids of the line are made of."""
        return row_id(self.run_id, self.line, self.custom_id)

    @property
    def body(self) -> orjson.Fragment | None:
        """The response body, which needs no second reading."""
        return None if self.response is None else orjson.Fragment(self.response)


def _openai(row: AnsweredRow) -> dict[str, Any]:
    shaped: dict[str, Any] = {
        "id": f"batch_req_{row.name}",
        "custom_id": row.custom_id,
        "response": None,
        "error": None,
    }
    if row.body is not None:
        shaped["response"] = {"status_code": row.status_code, "request_id": f"req_{row.name}", "body": row.body}
    elif row.error is not None:
        shaped["error"] = {"code": row.error["code"], "message": row.error["message"]}
    return shaped


_VLLM_TYPES: Mapping[int, str] = {
    400: "BadRequestError",
    404: "NotFoundError",
    422: "UnprocessableEntityError",
    500: "InternalServerError",
}


def _vllm(row: AnsweredRow) -> dict[str, Any]:
    """A failed request has a response without body, and the server's whole error answer beside it."""
    error = None
    if row.error is not None:
        error = {
            "message": row.error["message"],
            "type": _VLLM_TYPES[row.status_code],
            "param": row.error["param"],
            "code": row.status_code,
        }
    response = {
        "status_code": row.status_code,
        "request_id": f"vllm-batch-{row.name}",
        "body": row.body if error is None else None,
    }
    return {
        "id": f"vllm-{row.name}",
        "custom_id": row.custom_id,
        "response": response,
        "error": None if error is None else {"error": error},
    }


def _anthropic(row: AnsweredRow) -> dict[str, Any]:
    """An answer that is not one message, such as an embedding or several choices, keeps OpenAI's shape."""
    result: dict[str, Any] | None
    if row.error is not None:
        result = error_result(row.status_code, row.error["message"], f"req_{row.name}")
    else:
        result = message_result(orjson.loads(row.response or "{}"), f"msg_{row.name}")
    return _openai(row) if result is None else {"custom_id": row.custom_id, "result": result}


LINES: Mapping[LineFormat, Callable[[AnsweredRow], dict[str, Any]]] = MappingProxyType(
    {"openai": _openai, "anthropic": _anthropic, "vllm": _vllm}
)
"""The line of a row, for each format."""
