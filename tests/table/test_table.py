"""One job over a table of lines, good, odd and hostile: what becomes of each, and that none harms another."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from openai.types import Completion, CreateEmbeddingResponse
from openai.types.chat import ChatCompletion
from typer.testing import CliRunner

from batchgen.cli.main import app
from tests.table.batches import BATCHES
from tests.table.calls import CALLS
from tests.table.case import Case
from tests.table.constraints import CONSTRAINTS
from tests.table.envelopes import ENVELOPES
from tests.table.outputs import EMBEDDINGS, PENALTIES, SCORES
from tests.table.parameters import LIMITS, OTHERS, SAMPLING, STOPS
from tests.table.prompts import CHATS, PROMPTS
from tests.tiny_model import TEMPLATE
from tests.tiny_tokenizers import byte_level

CASES = [
    *ENVELOPES,
    *CHATS,
    *PROMPTS,
    *SAMPLING,
    *LIMITS,
    *STOPS,
    *OTHERS,
    *PENALTIES,
    *SCORES,
    *EMBEDDINGS,
    *CONSTRAINTS,
    *CALLS,
    *BATCHES,
]
GOOD = [case for case in CASES if case.code is None]
TYPES: Mapping[str, Any] = {
    "chat.completion": ChatCompletion,
    "text_completion": Completion,
    "list": CreateEmbeddingResponse,
}
TOOLS = (
    "{# <tool_call> #}{% for t in tools or [] %}{{ t.function.name }}{% endfor %}"
    "{% for d in documents or [] %}{{ d.text }}{% endfor %}"
)
OPTIONS = "--max-model-len 128 --kv-cache-memory 4MiB --threads 1 --max-num-batched-tokens 64 --max-num-seqs 16 --quiet"

Row = dict[str, Any]


@pytest.fixture(scope="module")
def model(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with an end token, which grammars need, and no token that it has no row for."""
    folder = shutil.copytree(tiny_model, tmp_path_factory.mktemp("model") / "tiny")
    config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"eos_token": "</s>"}), encoding="utf-8")
    byte_level(vocab_size=307).save(str(folder / "tokenizer.json"))
    return folder


def run(command: str, model: Path, cases: list[Case], folder: Path, *options: str) -> tuple[int, str]:
    """Exit code and standard output of a command over these lines."""
    folder.mkdir(exist_ok=True)
    source = folder / "in.jsonl"
    source.write_bytes(b"".join(case.line + b"\n" for case in cases))
    template = ("--chat-template", TOOLS + TEMPLATE)
    done = CliRunner().invoke(app, [command, str(source), "--model", str(model), *template, *options])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stdout


def answered(model: Path, cases: list[Case], folder: Path, options: str = OPTIONS) -> list[Row]:
    """Rows of the output of one job."""
    code, said = run("run-batch", model, cases, folder, "-o", str(folder / "out"), *options.split())
    assert code == 0, said
    assert json.loads(said.splitlines()[-1])["request_counts"]["total"] == len(cases)
    shards = sorted((folder / "out").glob("part-*.arrow"))
    return [row for shard in shards for row in pa.ipc.open_stream(shard.read_bytes()).read_all().to_pylist()]


@pytest.fixture(scope="module")
def rows(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Row]:
    """The row of each case, by its name."""
    found = answered(model, CASES, tmp_path_factory.mktemp("table"))
    assert [row["line"] for row in found] == list(range(1, len(CASES) + 1)), "no row is lost, none is made up"
    return {case.name: row for case, row in zip(CASES, found, strict=True)}


def test_the_table_is_as_large_as_it_should_be() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
    assert len(CASES) > 250
    assert min(len(GOOD), len(CASES) - len(GOOD)) > 100


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name[:60])
def test_a_line_has_its_row(case: Case, rows: Mapping[str, Row]) -> None:
    row = rows[case.name]
    assert (row["custom_id"], row["status_code"]) == (case.custom_id, case.status)
    if case.code is not None:
        refused_as_expected(case, row)
        return
    assert row["error"] is None
    body = json.loads(row["response"])
    if case.parses:
        TYPES[body["object"]].model_validate(body)
    if case.choices is not None:
        choices = body["choices"]
        assert [choice["index"] for choice in choices] == list(range(case.choices))
        assert {choice["finish_reason"] for choice in choices} <= {"stop", "length", "tool_calls"}
    assert body["usage"].get("completion_tokens", 0) == row["completion_tokens"]
    expected = {
        "finish_reason": case.finish,
        "text": case.text,
        "completion_tokens": case.tokens,
        "prompt_tokens": case.prompt_tokens,
    }
    assert {name: row[name] for name, value in expected.items() if value is not None} == {
        name: value for name, value in expected.items() if value is not None
    }
    assert (row["text"] or "").startswith(case.starts)
    assert case.check is None or case.check(body), body
    assert case.effective.items() <= body.get("batchgen", {}).get("effective", {}).items()


def refused_as_expected(case: Case, row: Row) -> None:
    error = row["error"]
    assert (error["code"], error["line"]) == (case.code, row["line"])
    assert case.param in {None, error["param"]}
    assert case.words in error["message"]
    assert len(error["message"]) < 600 or len(case.line) > 1000
    assert row["text"] is row["finish_reason"] is row["completion_tokens"] is None
    assert (row["response"] is None) == (case.code == "invalid_json_line")
    if row["response"] is not None:
        assert json.loads(row["response"])["error"]["code"] == case.code


def bits(row: Row) -> Any:
    """What an answer is, without what tells jobs and places apart."""
    body = {key: value for key, value in json.loads(row["response"]).items() if key not in {"id", "created", "usage"}}
    for choice in body.get("choices", []):
        for call in choice.get("message", {}).get("tool_calls") or []:
            del call["id"]
    return body, row["text"], row["finish_reason"], row["prompt_tokens"], row["completion_tokens"]


def test_good_lines_do_not_notice_the_others(model: Path, rows: Mapping[str, Row], tmp_path: Path) -> None:
    settings = OPTIONS.replace("--max-num-batched-tokens 64 --max-num-seqs 16", "--max-num-seqs 7 --block-size 4")
    alone = answered(model, GOOD[::-1], tmp_path, settings + " --window 20")
    for case, row in zip(GOOD[::-1], alone, strict=True):
        assert bits(row) == bits(rows[case.name]), case.name


def test_validate_finds_what_the_job_refuses(model: Path, rows: Mapping[str, Row], tmp_path: Path) -> None:
    code, said = run("validate", model, CASES, tmp_path, "--max-model-len", "128", "--format", "json", "--quiet")
    *faults, summary = map(json.loads, said.splitlines())
    assert (code, summary["lines"], summary["invalid_lines"]) == (4, len(CASES), len(CASES) - len(GOOD))
    first = {fault["line"]: fault for fault in reversed(faults)}
    for row in rows.values():
        error, fault = row["error"], first.get(row["line"])
        assert (error is None) == (fault is None)
        if error is not None and fault is not None:
            assert (error["code"], error["param"], error["message"]) == (
                fault["code"],
                fault["field"],
                fault["message"],
            )
            assert row["custom_id"] == fault["custom_id"]
