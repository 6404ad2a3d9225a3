"""What an answer must look like: the shapes in which a request may say so, and the one form that they become."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

import orjson
from pydantic import BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from batchgen.protocol.messages import Shape, inconsistent

__all__ = ["Constraint", "ConstraintBody"]

_COMPACT = ""
_ANY_OBJECT = '{"type":"object"}'


@dataclass(frozen=True, slots=True)
class Constraint:
    """A grammar for an answer. Those that differ in `param` alone are the same grammar."""

    kind: Literal["json", "regex", "choice", "grammar"]
    text: str
    """A JSON schema; a regular expression for the whole answer; a JSON list of strings; a grammar in the notation of
    Lark or GBNF."""
    param: str
    """Path of the field that holds it."""
    strict: bool = False
    """Refuse a schema with keywords that generation can't keep to; else they are checked afterwards."""
    whitespace: str | None = None
    """A regular expression for what stands between JSON tokens; None: one space after colons and commas."""
    answer_schema: str | None = None
    """The JSON schema of answers without tool calls, where `text` is a grammar of both."""

    @property
    def schema(self) -> str | None:
        """The JSON schema that an answer has to keep to, None where there is none."""
        return self.text if self.kind == "json" else self.answer_schema


def _schema_text(value: Any) -> str:
    """A schema, sent as an object or as its JSON text, as text."""
    try:
        parsed = orjson.loads(value) if isinstance(value, str) else value
        if not isinstance(parsed, Mapping):
            raise PydanticCustomError("schema_type", "must be a JSON schema: an object, or the text of one")
        return orjson.dumps(parsed).decode()
    except (orjson.JSONDecodeError, TypeError) as error:
        raise PydanticCustomError("json_schema", "is not JSON: {said}", {"said": str(error)}) from error


Text = Annotated[str, Field(min_length=1)]
Choices = Annotated[list[Text], Field(min_length=1)]
Schema = Annotated[str, BeforeValidator(_schema_text)]


class JsonSchema(Shape):
    """The `json_schema` of a response format."""

    name: Text
    schema_text: Annotated[Schema, Field(alias="schema")]
    strict: bool | None = None


class ResponseFormat(Shape):
    """OpenAI's way to say it."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.type == "json_schema" and self.json_schema is None:
            raise inconsistent("json_schema", "is missing; the type json_schema needs it")
        return self


class StructuredOutputs(Shape):
    """vLLM's way to say it."""

    model_config = ConfigDict(extra="forbid")

    schema_text: Annotated[Schema | None, Field(alias="json")] = None
    json_object: bool = False
    regex: Text | None = None
    choice: Choices | None = None
    grammar: Text | None = None
    whitespace_pattern: Text | None = None
    disable_any_whitespace: bool = False


class ConstraintBody(Shape):
    """The fields of a body that constrain the answer: one of them at most."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | None = None
    guided_regex: Text | None = None
    guided_choice: Choices | None = None
    guided_grammar: Text | None = None
    guided_whitespace_pattern: Text | None = None

    @model_validator(mode="after")
    def _one_constraint(self) -> Self:
        found = list(self._constraints())
        if len(found) > 1:
            fields = " and ".join(constraint.param.removeprefix("body.") for constraint in found)
            raise inconsistent(fields.partition(" ")[0], f"is one constraint too many: {fields} exclude each other")
        if self.structured_outputs is not None and not found:
            raise inconsistent("structured_outputs", "needs one of json, json_object, regex, choice and grammar")
        return self

    @property
    def constraint(self) -> Constraint | None:
        """The grammar of the answer, None where it is free."""
        return next(self._constraints(), None)

    def _constraints(self) -> Iterator[Constraint]:
        if (sent := self.response_format) is not None:
            if sent.type == "json_object":
                yield Constraint("json", _ANY_OBJECT, "body.response_format")
            elif sent.type == "json_schema" and (schema := sent.json_schema) is not None:
                path = "body.response_format.json_schema.schema"
                yield Constraint("json", schema.schema_text, path, strict=schema.strict is True)
        if (wanted := self.structured_outputs) is not None:
            spaces = _COMPACT if wanted.disable_any_whitespace else wanted.whitespace_pattern
            schema_text = _ANY_OBJECT if wanted.json_object else wanted.schema_text
            path = "body.structured_outputs."
            yield from _kinds(path, (schema_text, wanted.regex, wanted.choice, wanted.grammar), spaces)
        older = (self.guided_json, self.guided_regex, self.guided_choice, self.guided_grammar)
        yield from _kinds("body.guided_", older, self.guided_whitespace_pattern)


def _kinds(
    path: str, sent: tuple[str | None, str | None, list[str] | None, str | None], spaces: str | None
) -> Iterator[Constraint]:
    schema_text, regex, choice, grammar = sent
    if schema_text is not None:
        yield Constraint("json", schema_text, f"{path}json", whitespace=spaces)
    if regex is not None:
        yield Constraint("regex", regex, f"{path}regex")
    if choice is not None:
        yield Constraint("choice", orjson.dumps(choice).decode(), f"{path}choice")
    if grammar is not None:
        yield Constraint("grammar", grammar, f"{path}grammar")
