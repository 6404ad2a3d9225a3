"""Shapes of chat messages and tools. Keys beyond these are the chat template's business."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

__all__ = ["MESSAGE_TAGS", "Document", "Message", "Shape", "TemplateVariables", "Tool", "ToolChoice", "inconsistent"]

_TEXT, _PARTS, _STRING, _OBJECT, _REFUSAL = "<content text>", "<content parts>", "<string>", "<object>", "<refusal>"
MESSAGE_TAGS = frozenset({_TEXT, _PARTS, _STRING, _OBJECT, _REFUSAL})
"""Which form a content or a part has. They stand in the location of an error, beside the names of fields."""

_RESERVED = ("messages", "tools", "documents", "add_generation_prompt", "continue_final_message")
"""Names under which a template finds what the body says elsewhere."""
_TRUSTED = ("chat_template", "tokenize")
"""Names that would change how a prompt is made, which only the command line may."""


class Shape(BaseModel):
    """Strict: a string is no number and a bool is no integer."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


def inconsistent(field: str, words: str) -> PydanticCustomError:
    """A fault of fields together, blamed on one of them."""
    return PydanticCustomError("inconsistent", "{words}", {"field": field, "words": words})


def _form_of_content(value: Any) -> str | None:
    return _TEXT if isinstance(value, str) else _PARTS if isinstance(value, list) else None


def _form_of_part(value: Any) -> str | None:
    if isinstance(value, Mapping):
        return _REFUSAL if value.get("type") == "refusal" else _OBJECT
    return _STRING if isinstance(value, str) else None


def _is_text(kind: str) -> str:
    if kind not in {"text", "input_text", "output_text"}:
        raise PydanticCustomError("part", "must be 'text', the only kind of content that is supported")
    return kind


class TextPart(Shape):
    """A part of a message's content."""

    type: Annotated[str, AfterValidator(_is_text)]
    text: str


class RefusalPart(Shape):
    """A part of an assistant's content."""

    type: Literal["refusal"]
    refusal: str


Part = Annotated[
    Annotated[str, Tag(_STRING)] | Annotated[TextPart, Tag(_OBJECT)] | Annotated[RefusalPart, Tag(_REFUSAL)],
    Discriminator(_form_of_part, custom_error_type="form_type", custom_error_message="must be a text part"),
]


class Function(Shape):
    """A function that was called."""

    name: Annotated[str, Field(min_length=1)]
    arguments: str | dict[str, Any] | None = None
    """JSON text, or the object itself."""


class ToolCall(Shape):
    """A call in an assistant's message."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: Function


class Message(Shape):
    """A chat message."""

    role: Annotated[str, Field(min_length=1)]
    content: (
        Annotated[
            Annotated[str, Tag(_TEXT)] | Annotated[list[Part], Tag(_PARTS)],
            Discriminator(
                _form_of_content,
                custom_error_type="form_type",
                custom_error_message="must be a string or a list of text parts",
            ),
        ]
        | None
    ) = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None


class FunctionDefinition(Shape):
    """A function that the model may call."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,256}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """JSON schema of the arguments; None: no arguments."""
    strict: bool | None = None


class Tool(Shape):
    """A tool of a request."""

    type: Literal["function"]
    function: FunctionDefinition


def _tool_choice(value: Any) -> Any:
    match value:
        case "none" | "auto" | "required":
            return value
        case {"type": "function", "function": {"name": str()}}:
            return value
        case _:
            raise PydanticCustomError(
                "choice",
                "must be 'none', 'auto', 'required' or {wanted}",
                {"wanted": '{"type": "function", "function": {"name": …}}'},
            )


ToolChoice = Annotated[str | dict[str, Any], BeforeValidator(_tool_choice)]
Document = dict[str, Any]


def _template_variables(variables: dict[str, Any]) -> dict[str, Any]:
    for name in _RESERVED:
        if name in variables:
            raise PydanticCustomError("reserved", "must not hold {name}: the body has a field for it", {"name": name})
    for name in _TRUSTED:
        if name in variables:
            raise PydanticCustomError("reserved", "must not hold {name}, which no request may set", {"name": name})
    return variables


TemplateVariables = Annotated[dict[str, Any], AfterValidator(_template_variables)]
