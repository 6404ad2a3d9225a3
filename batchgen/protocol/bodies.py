"""Shapes and ranges of the request bodies. Strict: a string is no number and a bool is no integer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from batchgen.protocol.constraints import ConstraintBody
from batchgen.protocol.messages import (
    MESSAGE_TAGS,
    Document,
    Message,
    Shape,
    TemplateVariables,
    Tool,
    ToolChoice,
    inconsistent,
)

__all__ = ["TAGS", "ChatBody", "CompletionBody", "EmbeddingBody", "SamplingBody"]

_TEXT, _TEXTS, _IDS, _ID_LISTS, _KEY = "<text>", "<texts>", "<ids>", "<id lists>", "[key]"
TAGS = frozenset({_TEXT, _TEXTS, _IDS, _ID_LISTS, _KEY}) | MESSAGE_TAGS
"""Which form a value has, or that it is a key. They stand in the location of an error, beside the names of fields."""


def _form_of_prompt(value: Any) -> str | None:
    match value:
        case str():
            return _TEXT
        case [] | [str(), *_]:
            return _TEXTS
        case [list(), *_]:
            return _ID_LISTS
        case list():
            return _IDS
        case _:
            return None


def _text_or(form: str, wanted: str) -> Discriminator:
    def form_of(value: Any) -> str | None:
        return _TEXT if isinstance(value, str) else form if isinstance(value, list) else None

    return Discriminator(form_of, custom_error_type="form_type", custom_error_message=wanted)


def _unless_false(value: Any) -> Any:
    # What a chat means by false, a completion says with null.
    return None if value is False else value


TokenId = Annotated[int, Field(ge=0)]
# Of a list that a program made the first fault is enough: a long one could have millions.
Ids = Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]
StopString = Annotated[str, Field(min_length=1)]
Limit = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Top = Annotated[int, Field(ge=0, le=20)]
"""How many of the most probable tokens."""
Samples = Annotated[int, Field(ge=1, le=128)]
Bias = dict[Annotated[str, Field(pattern=r"^(0|[1-9]\d{0,9})$")], Annotated[float, Field(ge=-100, le=100)]]


class SamplingBody(ConstraintBody):
    """What both kinds of body share. None: not sent."""

    model: str | None = None
    max_completion_tokens: Limit | None = None
    max_tokens: Limit | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Share | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Share | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    n: Samples = 1
    stop: (
        Annotated[
            Annotated[StopString, Tag(_TEXT)]
            | Annotated[Annotated[list[StopString], Field(max_length=16)], Tag(_TEXTS)],
            _text_or(_TEXTS, "must be a string or a list of strings"),
        ]
        | None
    ) = None
    stop_token_ids: list[TokenId] = Field(default_factory=list, fail_fast=True)
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    frequency_penalty: Penalty = 0.0
    presence_penalty: Penalty = 0.0
    repetition_penalty: Annotated[float, Field(gt=0)] | None = None
    logit_bias: Bias = Field(default_factory=dict)
    min_tokens: Annotated[int, Field(ge=0)] = 0
    prompt_logprobs: Top | None = None
    prompt_logprobs_start: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _limits_agree(self) -> Self:
        if self.limit is not None and self.min_tokens > self.limit:
            raise inconsistent("min_tokens", f"must be at most the limit of tokens, {self.limit}")
        if self.prompt_logprobs_start and self.prompt_logprobs is None:
            raise inconsistent("prompt_logprobs_start", "needs prompt_logprobs, whose beginning it is")
        return self

    def _demand_output(self) -> None:
        if self.limit == 0:
            name = "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"
            raise inconsistent(name, "must be at least 1, found 0; 0 is for completions with echo, to score a prompt")

    @property
    def limit(self) -> int | None:
        """Tokens to generate at most: the newer name wins where both were sent."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())


class ChatBody(SamplingBody):
    """The body of /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1)]
    tools: list[Tool] = Field(default_factory=list)
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool = True
    documents: list[Document] = Field(default_factory=list)
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    chat_template_kwargs: TemplateVariables = Field(default_factory=dict)
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    logprobs: bool = False
    top_logprobs: Top | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        self._demand_output()
        if self.continue_final_message and self.add_generation_prompt:
            raise inconsistent("continue_final_message", "excludes add_generation_prompt; send one of the two")
        if self.tool_choice not in (None, "none", "auto") and not self.tools:
            raise inconsistent("tool_choice", "needs tools to choose from; send some under tools")
        if self.named_tool is not None and self.named_tool not in {tool.function.name for tool in self.tools}:
            raise inconsistent("tool_choice", f"names {self.named_tool!r}, which is none of the tools")
        if self.top_logprobs and not self.logprobs:
            raise inconsistent("top_logprobs", "needs logprobs to be true")
        return self

    @property
    def wanted_logprobs(self) -> int | None:
        """How many of the most probable tokens to show beside each one; None: no log-probabilities."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def named_tool(self) -> str | None:
        """The function that must be called, None where the choice names none."""
        return self.tool_choice["function"]["name"] if isinstance(self.tool_choice, Mapping) else None


Prompts = Annotated[
    Annotated[str, Tag(_TEXT)]
    | Annotated[Annotated[list[str], Field(min_length=1, fail_fast=True)], Tag(_TEXTS)]
    | Annotated[Ids, Tag(_IDS)]
    | Annotated[Annotated[list[Ids], Field(fail_fast=True)], Tag(_ID_LISTS)],
    Discriminator(
        _form_of_prompt,
        custom_error_type="form_type",
        custom_error_message="must be a string, a list of strings, a list of token ids or a list of such lists",
    ),
]


class EmbeddingBody(Shape):
    """The body of /v1/embeddings."""

    model: str | None = None
    input: Prompts
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, Field(ge=1)] | None = None


class CompletionBody(SamplingBody):
    """The body of /v1/completions."""

    prompt: Prompts
    echo: bool = False
    logprobs: Annotated[Top | None, BeforeValidator(_unless_false)] = None
    best_of: Samples | None = None

    @model_validator(mode="after")
    def _samples_and_output(self) -> Self:
        if not self.echo:
            self._demand_output()
        if self.prompt_logprobs_start and self.echo and self.logprobs is not None:
            raise inconsistent("prompt_logprobs_start", "excludes logprobs with echo, which are of the whole prompt")
        if self.best_of is not None and self.best_of < self.n:
            raise inconsistent("best_of", f"must be at least n, {self.n}")
        return self

    @property
    def wanted_logprobs(self) -> int | None:
        """How many of the most probable tokens to show beside each one; None: no log-probabilities."""
        return self.logprobs
