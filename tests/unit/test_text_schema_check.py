"""What a grammar can't express is checked afterwards, and no schema can make that take for ever."""

from __future__ import annotations

import json
from typing import Any

import pytest

from batchgen.text.schema_check import SchemaChecks


def mismatch(schema: Any, answer: Any) -> str | None:
    return SchemaChecks().mismatch(json.dumps(schema), json.dumps(answer))


def doubling(levels: int) -> dict[str, Any]:
    """A schema that asks for the same thing 2**levels times."""
    rules: dict[str, Any] = {f"r{i}": {"allOf": [{"$ref": f"#/$defs/r{i + 1}"}] * 2} for i in range(levels)}
    return {"$defs": rules | {f"r{levels}": {"type": "string"}}, "$ref": "#/$defs/r0"}


def nested(levels: int) -> list[Any]:
    return [nested(levels - 1)] if levels else []


@pytest.mark.parametrize(
    ("schema", "answer"),
    [
        ({"type": "array", "uniqueItems": True}, [1, 2]),
        ({"$defs": {"n": {"type": "integer"}}, "type": "array", "items": {"$ref": "#/$defs/n"}}, [1, 2]),
        # The grammar's business, in the grammar's words.
        ({"type": "string", "pattern": "^\\p{L}+$"}, "é1"),
        ({"patternProperties": {"^(a+)+$": {}}, "additionalProperties": False}, {"a" * 40 + "!": 1}),
        ({"properties": {"a": {}}, "additionalProperties": {"type": "integer"}}, {"a": "x", "b": 1}),
        (doubling(10), "x"),
    ],
)
def test_answers_that_keep_to_their_schema(schema: Any, answer: Any) -> None:
    assert mismatch(schema, answer) is None


@pytest.mark.parametrize(
    ("schema", "answer", "said"),
    [
        ({"properties": {"a": {"type": "array", "uniqueItems": True}}}, {"a": [1, 1]}, "at $.a: [1, 1] has non-unique"),
        ({"oneOf": [{"type": "integer"}, {"minimum": 3}]}, 5, "at $: 5 is valid under each of"),
        ({"not": {"type": "null"}}, None, "at $: None should not be valid"),
        ({"properties": {"a": {}}, "additionalProperties": False}, {"b": 1}, "'b' was unexpected"),
        ({"type": "string", "maxLength": 3}, "x" * 1000, "..."),
        ({"$ref": "https://example.com/a.json"}, 1, "could not be checked"),
        ({"$ref": "#/$defs/none"}, 1, "could not be checked"),
        (doubling(40), "x", "takes more than 100000 references"),
        ({"items": {"$ref": "#"}}, nested(500), "could not be checked"),
    ],
)
def test_answers_that_do_not(schema: Any, answer: Any, said: str) -> None:
    found = mismatch(schema, answer)
    assert found is not None
    assert said in found
    assert len(found) < 300
