"""What `Engine.generate` gives for each input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Result", "ResultError"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultError:
    """Why an input has no answer."""

    code: str
    """One of the codes of an output's `error` column, such as `context_length_exceeded`."""
    message: str
    """What was found and what to change."""
    param: str | None
    """Path of the field, such as `body.messages[0].role`; None where no field is to blame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The answer to one input, or why there is none."""

    index: int
    """Place of the input among the inputs, counted from 0."""
    custom_id: str
    """As the input names itself; else `row-N`, N counted from 1, as `run-batch` names a row."""
    text: str | None
    """The first answer. None beside an error, for an embedding, and where the answer is tool calls alone."""
    finish_reason: str | None
    """Of the first answer: `stop`, `length` or `tool_calls`; None where nothing was generated."""
    prompt_tokens: int | None
    """Tokens of all prompts of the input; None beside an error, as are the other counts."""
    completion_tokens: int | None
    """Tokens generated, over all answers."""
    cached_tokens: int | None
    """Prompt tokens that were found in the cache. Depends on what ran before; the answer does not."""
    error: ResultError | None
    """None where there is an answer."""
    response: dict[str, Any] | None
    """The whole body of an OpenAI response: all choices, log-probabilities, tool calls, or
    `response["data"][i]["embedding"]`; beside an error the error body."""
