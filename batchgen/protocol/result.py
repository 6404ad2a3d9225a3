"""What becomes of a request: a completion, and the row that is written for it."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from batchgen.protocol.faults import RowFault
from batchgen.protocol.request import GenRequest

__all__ = ["Choice", "Completion", "Embeddings", "PromptScores", "ResultRow", "ScoredToken", "ToolCall"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool."""

    name: str
    arguments: str
    """JSON text of an object."""


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """A token with its log-probability."""

    token_id: int
    data: bytes
    """What the token stands for, in UTF-8; a character may be spread over several tokens."""
    logprob: float | None
    """Natural logarithm, perhaps minus infinity; None for the first token of a prompt, which follows nothing."""
    rank: int = 1
    """1 for the most probable token."""
    top: tuple[ScoredToken, ...] = ()
    """The most probable tokens at its place, in falling order."""

    @property
    def text(self) -> str:
        """The token as text; bytes that are no whole character are written as \\x escapes."""
        return self.data.decode("utf-8", "backslashreplace")


@dataclass(frozen=True, slots=True)
class PromptScores:
    """What an answer repeats of its prompt, and what is said of its tokens."""

    text: str = ""
    """Before the answer's own text."""
    echoed: tuple[ScoredToken, ...] = ()
    """Before the answer's own tokens, where log-probabilities are shown."""
    tokens: tuple[ScoredToken, ...] | None = None
    """The prompt's tokens, where `prompt_logprobs` asks for them."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One generated answer."""

    index: int
    text: str | None
    """None where the answer is tool calls alone."""
    finish_reason: str
    """stop, length or tool_calls."""
    completion_tokens: int
    stop_reason: str | int | None = None
    """The stop string or the token of `stop_token_ids` that ended it; None for the model's own end."""
    tool_calls: tuple[ToolCall, ...] = ()
    logprobs: tuple[ScoredToken, ...] | None = None
    """Of its tokens, where the request asks for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """All answers to one request."""

    request: GenRequest
    model: str
    """Name of the model that answered."""
    choices: tuple[Choice, ...]
    """In index order."""
    prompts: tuple[PromptScores, ...] = ()
    """One for each prompt where something of the prompts is shown; else empty."""
    prompt_tokens: int
    """Over all prompts, each counted once."""
    completion_tokens: int
    """Over all samples, those included that are not shown."""
    cached_tokens: int
    """Prompt tokens found in the cache, counted for the first sample of each prompt."""
    effective: Mapping[str, Any] = field(default_factory=dict)
    """Values that differ from what was sent."""
    warnings: tuple[str, ...] = ()
    """What a reader should know of the answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Embeddings:
    """The answer to a request for embeddings."""

    request: GenRequest
    model: str
    """Name of the model that answered."""
    vectors: tuple[array[float], ...]
    """One for each prompt, float32, of length 1."""
    prompt_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultRow:
    """One row of the output; the columns of `batchgen.io.schema`."""

    custom_id: str | None
    """None only for a line in which no custom_id could be found."""
    line: int
    status_code: int
    text: str | None = None
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    error: RowFault | None = None
    response: Mapping[str, Any] | None = None
    """The whole response body in the shape of the endpoint; for a refused request the error body."""
    extra: Mapping[str, Any] = field(default_factory=dict)
