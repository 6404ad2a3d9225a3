"""Constrained and free requests in one batch: each constrained answer fits, the free ones don't notice."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion

from batchgen.checkpoint.types import Checkpoint
from batchgen.config import ModelConfig
from batchgen.job import run_job
from tests.tiny_tokenizers import byte_level
from tests.unit.test_job import Silent, job, line, write

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "maximum": 150, "minimum": 0},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


def schema_format(schema: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, **more}}


LONG: dict[str, Any] = {"max_tokens": 60}
FREE = [
    line("free", chat=True, temperature=0),
    line("drawn", temperature=0.9, n=2, seed=5),
    line("long", chat=True, temperature=0.5, max_tokens=30),
]
CONSTRAINED = [
    line("person", chat=True, temperature=0, response_format=schema_format(PERSON, strict=True), **LONG),
    line("people", n=3, response_format=schema_format(PERSON), **LONG),
    line("plain", structured_outputs={"regex": "[0-9]{3}-[0-9]{4}"}, **LONG),
    line("chosen", guided_choice=["yes", "no", "perhaps"], n=2, min_p=0.1, **LONG),
    line("grammar", structured_outputs={"grammar": 'root ::= "SELECT " ("a" | "b")'}, ignore_eos=True, **LONG),
    line("cut", response_format=schema_format(PERSON), temperature=0, max_tokens=4),
    line("unique", response_format=schema_format(
        {"type": "array", "items": {"const": 7}, "minItems": 2, "maxItems": 2, "uniqueItems": True}), **LONG),
]  # fmt: skip
REFUSED = line("refused", response_format=schema_format({"type": "array", "uniqueItems": True}, strict=True))


def fits(custom_id: str, text: str) -> bool:
    match custom_id:
        case "person" | "people":
            jsonschema.validate(json.loads(text), PERSON)
            return True
        case "plain":
            return re.fullmatch("[0-9]{3}-[0-9]{4}", text) is not None
        case "chosen":
            return text in {"yes", "no", "perhaps"}
        case "grammar":
            return text in {"SELECT a", "SELECT b"}
        case _:
            return bool(json.loads(text) == [7, 7])


def answers(rows: list[dict[str, Any]], model: str, home: Path, folder: Path) -> dict[str, Any]:
    """Response bodies by custom_id."""
    folder.mkdir()
    source = write(folder / "in.jsonl", [json.dumps(row) for row in rows])
    target = folder / "out.jsonl"
    config = job(Path(model), source, target)
    engine = replace(config.engine, kv_cache_memory=64 << 20)
    run_job(replace(config, model=ModelConfig(model=model), engine=engine), home, Silent())
    results = [json.loads(text) for text in target.read_text(encoding="utf-8").splitlines()]
    return {row["custom_id"]: row["response"]["body"] for row in results}


def texts(body: Mapping[str, Any]) -> list[str]:
    return [choice["message"]["content"] if "message" in choice else choice["text"] for choice in body["choices"]]


def check_mixed(model: str, home: Path, tmp_path: Path) -> None:
    rows = [*CONSTRAINED[:2], FREE[0], *CONSTRAINED[2:4], FREE[1], REFUSED, *CONSTRAINED[4:], FREE[2]]
    bodies = answers(rows, model, home, tmp_path / "mixed")
    for name, body in answers(FREE, model, home, tmp_path / "free").items():
        assert bodies[name]["choices"] == body["choices"], name
    for row in CONSTRAINED:
        name = row["custom_id"]
        body = bodies[name]
        (ChatCompletion if name == "person" else Completion).model_validate(body)
        if name == "cut":
            assert body["choices"][0]["finish_reason"] == "length"
            assert texts(body)[0].startswith('{"')
            continue
        assert all(choice["finish_reason"] == "stop" for choice in body["choices"])
        assert all(fits(name, text) for text in texts(body)), texts(body)
        assert ("warnings" in body.get("batchgen", {})) == (name == "unique")
    assert "non-unique" in bodies["unique"]["batchgen"]["warnings"][0]
    assert bodies["refused"]["error"]["code"] == "invalid_json_schema"


@pytest.fixture
def ending_model(tiny_model: Path, tmp_path: Path) -> Path:
    """The tiny model with an end token, a row for each of its tokens, and a template of Hermes's kind."""
    model = shutil.copytree(tiny_model, tmp_path / "tiny")
    config = json.loads((model / "tokenizer_config.json").read_text(encoding="utf-8"))
    config |= {"eos_token": "</s>", "chat_template": "{# tools: <tool_call> #}" + config["chat_template"]}
    (model / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    byte_level(vocab_size=307).save(str(model / "tokenizer.json"))
    return model


def test_on_a_tiny_model(ending_model: Path, tmp_path: Path) -> None:
    check_mixed(str(ending_model), tmp_path, tmp_path)


def test_tool_calls(ending_model: Path, tmp_path: Path) -> None:
    age = {"properties": {"age": {"enum": [1, 2]}}, "required": ["age"], "additionalProperties": False}
    tools = [{"type": "function", "function": {"name": "greet", "parameters": {"type": "object", **age}}}]
    named = {"type": "function", "function": {"name": "greet"}}
    once = {"tool_choice": "required", "parallel_tool_calls": False}
    rows = [
        line("must", chat=True, tools=tools, n=2, max_tokens=99, **once),
        line("named", chat=True, tools=tools, tool_choice=named, max_tokens=99),
        line("cut", chat=True, tools=tools, tool_choice=named, max_tokens=5),
        line("may", chat=True, tools=tools, max_tokens=5),
        line("none", chat=True, tools=tools, tool_choice="none", max_tokens=5),
    ]
    found = answers(rows, str(ending_model), tmp_path, tmp_path / "first")
    bodies = {name: ChatCompletion.model_validate(body) for name, body in found.items()}
    called = [*bodies["must"].choices, *bodies["named"].choices]
    ids = []
    for choice in called:
        assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
        assert choice.message.tool_calls is not None
        (call,) = choice.message.tool_calls
        assert call.type == "function"
        assert call.function.name == "greet"
        jsonschema.validate(json.loads(call.function.arguments), age)
        ids.append(call.id)
    assert len(set(ids)) == len(called)
    for name in ("cut", "may", "none"):
        (choice,) = bodies[name].choices
        assert (choice.finish_reason, choice.message.tool_calls) == ("length", None)
    assert (bodies["cut"].choices[0].message.content or "").startswith("<tool")


def test_a_model_that_cannot_be_constrained_says_so(tiny_model: Path, tmp_path: Path) -> None:
    body = answers([CONSTRAINED[2]], str(tiny_model), tmp_path, tmp_path / "none")["plain"]
    assert "no end token" in body["error"]["message"]


@pytest.mark.slow
def test_on_smollm2(smollm2: Checkpoint, model_home: Path, tmp_path: Path) -> None:
    check_mixed(smollm2.name, model_home, tmp_path)
