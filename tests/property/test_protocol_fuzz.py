"""Whatever stands in a file: no exception, one outcome for each line that is not blank, no harm to its neighbours."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from batchgen.config import InputConfig
from batchgen.io.readers import count_rows, open_rows
from batchgen.io.schema import passed_through, result_schema, rows_to_batch
from batchgen.protocol.faults import RowFault
from batchgen.protocol.parse import Parsed, Parser, custom_id_of
from batchgen.protocol.request import ChatPrompt, RawRow, TextPrompt, TokenPrompt
from batchgen.protocol.response import Responder

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
NUMBERS = st.one_of(
    st.integers(-(2**63), 2**64 - 1), st.integers(-3, 3), st.floats(allow_nan=False, allow_infinity=False)
)
SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS, TEXT)
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3))

ROLES = st.sampled_from(["system", "user", "assistant", "tool"])
PARTS = st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": TEXT}), max_size=3)
MESSAGES = st.lists(
    st.fixed_dictionaries({"role": ROLES, "content": TEXT | PARTS | st.none()}, optional={"name": TEXT, "x": JSON}),
    min_size=1,
    max_size=3,
)
IDS = st.lists(st.integers(0, 2**31), min_size=1, max_size=4)
PROMPTS = TEXT | st.lists(TEXT, min_size=1, max_size=3) | IDS | st.lists(IDS, min_size=1, max_size=3)
STOPS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=3)
SHARES = st.floats(0, 1) | st.integers(0, 1)
PARAMETERS: dict[str, st.SearchStrategy[Any]] = {
    "model": TEXT,
    "max_tokens": st.integers(1, 2**40),
    "max_completion_tokens": st.integers(1, 2**40),
    "temperature": st.floats(0, 2) | st.integers(0, 2),
    "top_p": SHARES,
    "top_k": st.integers(-1, 1000),
    "min_p": SHARES,
    "seed": st.integers(-(2**63), 2**63 - 1),
    "n": st.integers(1, 128),
    "stop": STOPS | st.lists(STOPS, max_size=4),
    "stop_token_ids": st.lists(st.integers(0, 2**31), max_size=3),
    "ignore_eos": st.booleans(),
    "include_stop_str_in_output": st.booleans(),
    "skip_special_tokens": st.booleans(),
    "user": TEXT,
    "frequency_penalty": st.sampled_from([0, 0.0]),
    "stream": st.just(False),
}
OPTIONAL = {name: st.none() | values for name, values in PARAMETERS.items()}


def requests(url: str, prompt: str, prompts: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    body = st.fixed_dictionaries({prompt: prompts}, optional=OPTIONAL)
    required = {"custom_id": TEXT | st.integers(-(2**63), 2**63), "url": st.just(url), "body": body}
    return st.fixed_dictionaries(required, optional={"method": st.sampled_from([None, "POST"])})


GOOD = requests("/v1/chat/completions", "messages", MESSAGES) | requests("/v1/completions", "prompt", PROMPTS)


@st.composite
def damaged(draw: st.DrawFn) -> Any:
    """A good request in which one value, somewhere, is replaced by anything."""
    row = draw(GOOD)
    place: Any = row
    while True:
        key = draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
        inner = place[key]
        if not isinstance(inner, dict | list) or not inner or draw(st.booleans()):
            place[key] = draw(JSON)
            return row
        place = inner


def parsed_alone(row: RawRow) -> Parsed:
    return Parser().parse(RawRow(0, row.data, row.fault, row.extra))


def read(data: bytes, **settings: Any) -> list[RawRow]:
    """Rows of a file with this content; every one is parsed, and becomes a row of the output."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "in.jsonl"
        path.write_bytes(data)
        config = InputConfig(input_file=str(path), **settings)
        rows = list(open_rows(config))
        assert count_rows(config) == len(rows)
        schema = result_schema("json", passed_through(config))
    responder = Responder("run", 0)
    refused = []
    for row in rows:
        for lenient in (False, True):
            parsed = Parser(lenient).parse(row)
            assert (parsed.request is None) == bool(parsed.faults)
        fault = next(iter(parsed_alone(row).faults), None)
        if fault is not None:
            assert isinstance(fault, RowFault)
            assert len(fault.message) < 2000
            refused.append(responder.refused(row.line, custom_id_of(row), fault, row.extra))
    if refused:
        assert rows_to_batch(refused, schema).num_rows == len(refused)
    return rows


@given(st.lists(st.binary(max_size=40) | JSON.map(orjson.dumps) | damaged().map(orjson.dumps), max_size=8))
def test_any_lines(lines: list[bytes]) -> None:
    data = b"\n".join(lines)
    rows = read(data)
    filled = [number for number, line in enumerate(data.split(b"\n"), 1) if line.strip()]
    if data.startswith(b"\xef\xbb\xbf") and not data.split(b"\n")[0][3:].strip():
        filled.remove(1)
    assert [row.line for row in rows] == filled


@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    read(data)


@given(st.lists(damaged(), min_size=1, max_size=5))
def test_damaged_requests(damaged_rows: list[Any]) -> None:
    rows = read(b"\n".join(map(orjson.dumps, damaged_rows)))
    assert len(rows) == len(damaged_rows)


@given(GOOD, st.binary(max_size=60).filter(lambda line: b"\n" not in line), GOOD)
def test_a_bad_neighbour_harms_nobody(first: dict[str, Any], bad: bytes, last: dict[str, Any]) -> None:
    rows = read(orjson.dumps(first) + b"\n" + bad + b"\n" + orjson.dumps(last))
    for sent, found in ((first, rows[0]), (last, rows[-1])):
        assert parsed_alone(found) == Parser().parse(RawRow(0, sent))
        assert parsed_alone(found).faults == ()


@given(GOOD)
def test_good_requests_come_through_as_they_are(sent: dict[str, Any]) -> None:
    (row,) = read(orjson.dumps(sent))
    request = Parser().parse(row).request
    assert request is not None
    body = {name: value for name, value in sent["body"].items() if value is not None}
    assert request.custom_id == str(sent["custom_id"])
    assert request.endpoint == sent["url"]
    assert (request.model, request.n) == (body.get("model"), body.get("n", 1))
    match request.prompts:
        case (ChatPrompt(messages),):
            assert list(messages) == body["messages"]
        case (TextPrompt(text),) if isinstance(body["prompt"], str):
            assert text == body["prompt"]
        case (TokenPrompt(ids),) if isinstance(body["prompt"][0], int):
            assert list(ids) == body["prompt"]
        case prompts:
            assert [p.text if isinstance(p, TextPrompt) else list(p.ids) for p in prompts] == body["prompt"]  # type: ignore[union-attr]
    sampling = request.sampling
    assert sampling.max_tokens == body.get("max_completion_tokens", body.get("max_tokens"))
    for name in ("temperature", "top_p", "top_k", "min_p", "seed"):
        assert getattr(sampling, name) == body.get(name)
    stop = body.get("stop", [])
    assert sampling.stop == ((stop,) if isinstance(stop, str) else tuple(stop))
    assert sampling.stop_token_ids == tuple(body.get("stop_token_ids", []))
    assert sampling.ignore_eos is body.get("ignore_eos", False)
    assert sampling.include_stop_str_in_output is body.get("include_stop_str_in_output", False)
    assert sampling.skip_special_tokens is body.get("skip_special_tokens", True)


@given(
    st.lists(st.dictionaries(st.sampled_from(["messages", "body", "q", "custom_id", "id", "text"]), JSON), max_size=5),
    st.sampled_from(
        [
            {},
            {"prompt_column": "q"},
            {"prompt_template": "{{ q }}{{ id.x }}", "system_prompt": "s"},
            {"id_column": "id"},
        ]
    ),
)
def test_any_columns(table: list[dict[str, Any]], settings: dict[str, Any]) -> None:
    rows = read(b"\n".join(map(orjson.dumps, table)), **settings)
    assert len(rows) == len(table)
