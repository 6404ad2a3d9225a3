"""Every way to say what an answer must look like becomes one form."""

from __future__ import annotations

from typing import Any

import pytest

from batchgen.protocol.constraints import Constraint
from batchgen.protocol.faults import Code, RowFault
from batchgen.protocol.parse import Parser
from batchgen.protocol.request import RawRow

SCHEMA = {"type": "object"}
TEXT = '{"type":"object"}'


def parse(**body: Any) -> Constraint | RowFault | None:
    data = {"custom_id": "a", "url": "/v1/completions", "body": {"prompt": "x", **body}}
    parsed = Parser().parse(RawRow(1, data))
    if parsed.request is None:
        assert len(parsed.faults) == 1
        return parsed.faults[0]
    return parsed.request.constraint


def schema_format(schema: Any, **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, **more}}


OPENAI = "body.response_format.json_schema.schema"
VLLM = "body.structured_outputs"


@pytest.mark.parametrize(
    ("body", "constraint"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, Constraint("json", TEXT, "body.response_format")),
        ({"response_format": schema_format(SCHEMA)}, Constraint("json", TEXT, OPENAI)),
        ({"response_format": schema_format(SCHEMA, strict=False)}, Constraint("json", TEXT, OPENAI)),
        ({"response_format": schema_format(SCHEMA, strict=True)}, Constraint("json", TEXT, OPENAI, strict=True)),
        ({"structured_outputs": {"json": SCHEMA}}, Constraint("json", TEXT, f"{VLLM}.json")),
        ({"structured_outputs": {"json": ' {"type": "object"}'}}, Constraint("json", TEXT, f"{VLLM}.json")),
        ({"structured_outputs": {"json_object": True}}, Constraint("json", TEXT, f"{VLLM}.json")),
        ({"structured_outputs": {"regex": "a+", "json": None}}, Constraint("regex", "a+", f"{VLLM}.regex")),
        ({"structured_outputs": {"choice": ["a", "é"]}}, Constraint("choice", '["a","é"]', f"{VLLM}.choice")),
        ({"structured_outputs": {"grammar": "start: X"}}, Constraint("grammar", "start: X", f"{VLLM}.grammar")),
        (
            {"structured_outputs": {"json": SCHEMA, "whitespace_pattern": " "}},
            Constraint("json", TEXT, f"{VLLM}.json", whitespace=" "),
        ),
        (
            {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}},
            Constraint("json", TEXT, f"{VLLM}.json", whitespace=""),
        ),
        ({"guided_json": TEXT}, Constraint("json", TEXT, "body.guided_json")),
        ({"guided_regex": "a"}, Constraint("regex", "a", "body.guided_regex")),
        ({"guided_choice": ["a"]}, Constraint("choice", '["a"]', "body.guided_choice")),
        ({"guided_grammar": "start: X"}, Constraint("grammar", "start: X", "body.guided_grammar")),
        (
            {"guided_json": SCHEMA, "guided_whitespace_pattern": "\\n", "guided_decoding_backend": "auto"},
            Constraint("json", TEXT, "body.guided_json", whitespace="\\n"),
        ),
    ],
)
def test_forms(body: dict[str, Any], constraint: Constraint | None) -> None:
    assert parse(**body) == constraint


@pytest.mark.parametrize(
    ("body", "code", "param", "said"),
    [
        ({"response_format": "json"}, Code.INVALID_TYPE, "body.response_format", "an object"),
        ({"response_format": {"type": "xml"}}, Code.INVALID_VALUE, "body.response_format.type", "'json_object'"),
        ({"response_format": {"type": "json_schema"}}, Code.INVALID_VALUE,
         "body.response_format.json_schema", "missing"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}}, Code.MISSING_REQUIRED_FIELD,
         OPENAI, "missing"),
        ({"response_format": schema_format("{")}, Code.INVALID_JSON_SCHEMA, OPENAI, "is not JSON"),
        ({"response_format": schema_format([])}, Code.INVALID_TYPE, OPENAI, "must be a JSON schema"),
        ({"response_format": schema_format(SCHEMA, strict=1)}, Code.INVALID_TYPE,
         "body.response_format.json_schema.strict", "true or false"),
        ({"structured_outputs": {}}, Code.INVALID_VALUE, VLLM, "needs one of json"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, Code.INVALID_VALUE, f"{VLLM}.regex",
         "structured_outputs.regex and structured_outputs.choice exclude each other"),
        ({"structured_outputs": {"structural_tag": "x"}}, Code.UNSUPPORTED_PARAMETER, f"{VLLM}.structural_tag",
         "not supported"),
        ({"structured_outputs": {"choice": []}}, Code.INVALID_VALUE, f"{VLLM}.choice", "not be empty"),
        ({"structured_outputs": {"choice": ["a", ""]}}, Code.INVALID_VALUE, f"{VLLM}.choice[1]", "not be empty"),
        ({"guided_regex": 5}, Code.INVALID_TYPE, "body.guided_regex", "a string"),
        ({"guided_json": "no"}, Code.INVALID_JSON_SCHEMA, "body.guided_json", "is not JSON"),
        ({"guided_regex": "a", "response_format": {"type": "json_object"}}, Code.INVALID_VALUE, "body.response_format",
         "exclude each other"),
    ],
)  # fmt: skip
def test_faults(body: dict[str, Any], code: Code, param: str, said: str) -> None:
    fault = parse(**body)
    assert isinstance(fault, RowFault)
    assert (fault.code, fault.param) == (code, param)
    assert said in fault.message
