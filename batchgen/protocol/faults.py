"""Faults of one row: what is wrong with it, where, and what to change. Data, never an exception that ends a job."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Code", "RowFault"]


class Code(StrEnum):
    """The codes of the `error` column."""

    INVALID_JSON_LINE = "invalid_json_line"
    MISSING_REQUIRED_FIELD = "missing_required_field"
    INVALID_TYPE = "invalid_type"
    INVALID_VALUE = "invalid_value"
    DUPLICATE_CUSTOM_ID = "duplicate_custom_id"
    UNSUPPORTED_URL = "unsupported_url"
    UNSUPPORTED_METHOD = "unsupported_method"
    MODEL_MISMATCH = "model_mismatch"
    STREAM_NOT_SUPPORTED = "stream_not_supported"
    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
    INVALID_CHAT_TEMPLATE_INPUT = "invalid_chat_template_input"
    INVALID_JSON_SCHEMA = "invalid_json_schema"
    UNSUPPORTED_PARAMETER = "unsupported_parameter"
    INTERNAL_ERROR = "internal_error"

    @property
    def status(self) -> int:
        """The HTTP status that the hosted service would answer with: 500 for our own fault, 404 for a model that is
        not there, 422 for what is not a request at all, else 400."""
        match self:
            case Code.INTERNAL_ERROR:
                return 500
            case Code.MODEL_MISMATCH:
                return 404
            case Code.INVALID_JSON_LINE:
                return 422
            case _:
                return 400

    @property
    def retryable(self) -> bool:
        """Whether the same request could succeed another time."""
        return self is Code.INTERNAL_ERROR


@dataclass(frozen=True, slots=True)
class RowFault:
    """Why a row has no answer."""

    code: Code
    message: str
    """What was found and what to change."""
    param: str | None = None
    """Path of the field, such as `body.messages[0].role`; None where no field is to blame."""
