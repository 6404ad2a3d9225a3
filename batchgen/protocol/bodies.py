"""Shapes and ranges of the request bodies. Strict: a string is no number and a bool is no integer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

__all__ = ["IGNORED", "NEUTRAL", "ChatBody", "CompletionBody", "SamplingBody"]

# Tags are marked, so that they can be told from field names in the location of an error.
_TEXT, _TEXTS, _IDS, _ID_LISTS, _PARTS = "<text>", "<texts>", "<ids>", "<id lists>", "<parts>"


def _kind_of_prompt(value: Any) -> str | None:
    if isinstance(value, str):
        return _TEXT
    if not isinstance(value, list):
        return None
    first = value[0] if value else ""
    return _TEXTS if isinstance(first, str) else _ID_LISTS if isinstance(first, list) else _IDS


def _text_or(kind: str) -> Discriminator:
    return Discriminator(lambda value: _TEXT if isinstance(value, str) else kind if isinstance(value, list) else None)


TokenId = Annotated[int, Field(ge=0)]
Ids = Annotated[list[TokenId], Field(min_length=1)]
StopString = Annotated[str, Field(min_length=1)]


class _Model(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class TextPart(_Model):
    """A part of a message's content. Only text is supported."""

    type: Literal["text"]
    text: str


class Message(_Model):
    """A chat message. Further keys are kept for the template."""

    model_config = ConfigDict(strict=True, extra="allow")

    role: Annotated[str, Field(min_length=1)]
    content: Annotated[Annotated[str, Tag(_TEXT)] | Annotated[list[TextPart], Tag(_PARTS)], _text_or(_PARTS)] | None = (
        None
    )


class SamplingBody(_Model):
    """What both kinds of body share. None: not sent."""

    model: str | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    n: Annotated[int, Field(ge=1, le=128)] = 1
    stop: (
        Annotated[
            Annotated[StopString, Tag(_TEXT)]
            | Annotated[Annotated[list[StopString], Field(max_length=4)], Tag(_TEXTS)],
            _text_or(_TEXTS),
        ]
        | None
    ) = None
    stop_token_ids: list[TokenId] = Field(default_factory=list)
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True

    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())


class ChatBody(SamplingBody):
    """The body of /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None

    @model_validator(mode="after")
    def _first_limit_wins(self) -> Self:
        if self.max_completion_tokens is not None:
            self.max_tokens = self.max_completion_tokens
        return self


class CompletionBody(SamplingBody):
    """The body of /v1/completions."""

    prompt: Annotated[
        Annotated[str, Tag(_TEXT)]
        | Annotated[Annotated[list[str], Field(min_length=1)], Tag(_TEXTS)]
        | Annotated[Ids, Tag(_IDS)]
        | Annotated[Annotated[list[Ids], Field(min_length=1)], Tag(_ID_LISTS)],
        Discriminator(_kind_of_prompt),
    ]


NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "add_generation_prompt": (True,),
    "best_of": (1,),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "min_tokens": (0,),
    "modalities": (["text"],),
    "parallel_tool_calls": (True, False),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
}
"""Parameters of the format that are not supported yet, and the values of theirs that change nothing."""

IGNORED = frozenset(
    {"metadata", "prompt_cache_key", "safety_identifier", "service_tier", "store", "stream_options", "user"}
)
"""Parameters that never change an answer."""
