"""A request after its line was read and checked, before defaults, template and tokenizer were applied."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from batchgen.protocol.constraints import Constraint
from batchgen.protocol.faults import RowFault

__all__ = [
    "ChatPrompt",
    "EmbeddingRequest",
    "Endpoint",
    "GenRequest",
    "Prompt",
    "RawRow",
    "SamplingRequest",
    "TextPrompt",
    "TokenPrompt",
    "ToolUse",
]


class Endpoint(StrEnum):
    """The urls that a line may name."""

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"
    EMBEDDINGS = "/v1/embeddings"


@dataclass(frozen=True, slots=True)
class RawRow:
    """One row of the input as a reader found it."""

    line: int
    """1-based line or row of the input; the first row of a file without line structure is 1."""
    data: Mapping[str, Any] | None
    """The request object, in batch form; beside a fault, what could be read of it, None where that is nothing."""
    fault: RowFault | None = None
    """Why the row is no request, as far as the reader can tell."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Columns of the input that are passed through to the result."""


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Tools that the model may or must call."""

    definitions: tuple[Mapping[str, Any], ...]
    """In the request format's shape, `{"type": "function", "function": {...}}`; at least one."""
    mode: Literal["none", "auto", "required"] = "auto"
    name: str | None = None
    """The function that must be called; None: any. Only with `required`."""
    parallel: bool = True
    """Whether one answer may hold several calls."""


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """Messages for the model's chat template."""

    messages: tuple[Mapping[str, Any], ...]
    tools: ToolUse | None = None
    """None where the request brings none."""
    documents: tuple[Mapping[str, Any], ...] = ()
    variables: Mapping[str, Any] = field(default_factory=dict)
    """Further names for the template."""
    add_generation_prompt: bool = True
    """End where the assistant's answer begins."""
    continue_final_message: bool = False
    """End where the last message ends, without closing it, so that the answer continues it."""


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """Text, tokenised with the model's special tokens as its tokenizer adds them."""

    text: str


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """Token ids, used as they are."""

    ids: tuple[int, ...]


Prompt = ChatPrompt | TextPrompt | TokenPrompt


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRequest:
    """Sampling settings as the request sent them; None is "not sent", so that the model's defaults can apply."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    """0 and -1 mean all, as in vLLM."""
    min_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token id, what is added to its logit); no id twice."""
    min_tokens: int = 0
    logprobs: int | None = None
    """How many of the most probable tokens to show beside each generated one; None: no log-probabilities."""
    prompt_logprobs: int | None = None
    """The same for the tokens of the prompt."""
    prompt_logprobs_start: int = 0
    """Tokens of the prompt for which they are not wanted, at its beginning."""


@dataclass(frozen=True, slots=True)
class EmbeddingRequest:
    """How an embedding is to be written."""

    dimensions: int | None = None
    """Keep so many of the first values; None: all."""
    base64: bool = False
    """As the base64 of little-endian float32 values instead of a list of numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenRequest:
    """One checked request."""

    custom_id: str
    line: int
    """1-based line of the input."""
    endpoint: Endpoint
    model: str | None
    """The model that the line names, None where it names none."""
    prompts: tuple[Prompt, ...]
    """At least one; a chat request has exactly one."""
    n: int = 1
    """Answers to each prompt. Choice index = prompt index * n + answer index."""
    best_of: int | None = None
    """Make so many and show the n most probable ones; None: make n."""
    echo: bool = False
    """Begin each answer with its prompt."""
    sampling: SamplingRequest = SamplingRequest()
    constraint: Constraint | None = None
    """What each answer must look like; None: anything."""
    embedding: EmbeddingRequest | None = None
    """The prompts are to be embedded; None: continued. An embedding generates nothing: `sampling.max_tokens` is 0."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Pass-through columns of the input row."""

    @property
    def samples(self) -> int:
        """Samples to make of each prompt."""
        return self.n if self.best_of is None else self.best_of
