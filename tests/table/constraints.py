"""What an answer must look like."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tests.table.case import Case, bad, chat, completion

SEVEN: Mapping[str, Any] = {"const": 7}
ROOMY: Mapping[str, Any] = {"max_tokens": 40}


def matching(pattern: str) -> dict[str, Any]:
    """The whole first answer matches, and has ended by itself."""

    def check(body: Mapping[str, Any]) -> bool:
        choice = body["choices"][0]
        text = choice["text"] if "text" in choice else choice["message"]["content"]
        return re.fullmatch(pattern, text) is not None

    return {"check": check, "finish": "stop"}


def schema(value: Any, **more: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": value, **more}}}


def outputs(**kind: Any) -> dict[str, Any]:
    return {"structured_outputs": kind}


def kept(name: str, body: Mapping[str, Any], **expected: Any) -> Case:
    return completion(name, {**ROOMY, **body}, **expected)


def refused(name: str, body: Mapping[str, Any], code: str, param: str | None = None) -> Case:
    return chat(name, body, **bad(code, param))


CONSTRAINTS = [
    chat("a free answer", {"response_format": {"type": "text"}}, finish="length"),
    kept("a constant", schema(SEVEN), text="7", finish="stop"),
    kept("a constant in strict words", schema(SEVEN, strict=True), text="7"),
    kept("one of two, drawn", {**schema({"enum": [1, 2]}), "temperature": 1.5, "n": 4}, choices=4, **matching("[12]")),
    kept("an object with one key", schema({"type": "object", "properties": {"a": SEVEN}, "required": ["a"],
         "additionalProperties": False}), **matching(r'\{"a": ?7\}')),
    kept("a schema as text", outputs(json='{"const": 7}'), text="7"),
    kept("digits", outputs(regex="[0-9]{3}"), **matching("[0-9]{3}")),
    kept("a choice", outputs(choice=["yes", "no"]), **matching("yes|no")),
    kept("a choice of one", outputs(choice=["größe"]), text="größe"),
    kept("a grammar", outputs(grammar='root ::= "a" | "b"'), **matching("a|b")),
    kept("older words for digits", {"guided_regex": "[0-9]"}, **matching("[0-9]")),
    kept("older words for a choice", {"guided_choice": ["yes", "no"]}, **matching("yes|no")),
    kept("older words for a schema", {"guided_json": SEVEN}, text="7"),
    kept("older words for a grammar", {"guided_grammar": 'root ::= "a"'}, text="a"),
    completion("an object that is cut off", {"response_format": {"type": "json_object"}}, finish="length", starts="{"),
    completion("digits that are cut off", outputs(regex="[0-9]{9}"), finish="length", tokens=4),
    kept("a stop within a constraint", {**outputs(regex="[0-9]{2}x[0-9]"), "stop": "x"}, **matching("[0-9]{2}")),
    refused("a form of no kind", {"response_format": {"type": "xml"}}, "invalid_value", "body.response_format.type"),
    refused("a form in words", {"response_format": "json"}, "invalid_type", "body.response_format"),
    refused("no schema", {"response_format": {"type": "json_schema"}}, "invalid_value"),
    refused("a schema without name", {"response_format": {"type": "json_schema", "json_schema": {"schema": SEVEN}}},
            "missing_required_field", "body.response_format.json_schema.name"),
    refused("a schema is a number", schema(5), "invalid_type"),
    refused("a schema of no type", schema({"type": "wat"}), "invalid_json_schema"),
    refused("a schema that refers to nothing", schema({"$ref": "#/$defs/x"}), "invalid_json_schema"),
    refused("a schema that nothing fits", schema({"type": "string", "minLength": 5, "maxLength": 2}),
            "invalid_json_schema"),
    refused("a keyword that can't be kept to", schema({"type": "array", "uniqueItems": True}, strict=True),
            "invalid_json_schema"),
    refused("no regular expression", outputs(regex="[0-9"), "invalid_json_schema", "body.structured_outputs.regex"),
    refused("an empty expression", outputs(regex=""), "invalid_value", "body.structured_outputs.regex"),
    refused("no grammar", outputs(grammar="root ::= ("), "invalid_json_schema", "body.structured_outputs.grammar"),
    refused("no choices", outputs(choice=[]), "invalid_value", "body.structured_outputs.choice"),
    refused("a choice of numbers", outputs(choice=[1]), "invalid_type", "body.structured_outputs.choice[0]"),
    refused("no constraint", outputs(), "invalid_value", "body.structured_outputs"),
    refused("two constraints", {**outputs(regex="a"), "guided_choice": ["a"]}, "invalid_value"),
    refused("a constraint of no kind", outputs(xml="x"), "unsupported_parameter", "body.structured_outputs.xml"),
]  # fmt: skip
