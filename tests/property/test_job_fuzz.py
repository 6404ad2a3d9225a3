"""Whole jobs over anything: good lines keep their answers to the bit whatever is beside them; no row is lost."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchgen.config import EngineConfig, InputConfig, JobConfig, ModelConfig, OutputConfig
from batchgen.job import LoadedEngine, open_engine, run_job
from batchgen.job import alone as crew_of_one
from batchgen.protocol.lines import LineFormat
from tests.property.test_protocol_fuzz import JSON, damaged
from tests.unit.test_job import Silent

MESSAGES = [{"role": "user", "content": "the sea"}]
FORMATS: tuple[LineFormat, ...] = ("openai", "anthropic", "vllm")


def request(name: str, url: str, **body: Any) -> dict[str, Any]:
    return {"custom_id": name, "url": url, "body": {"max_tokens": 5, **body}}


GOOD = [
    request("a good greedy chat", "/v1/chat/completions", messages=MESSAGES, temperature=0),
    request("a good drawn chat", "/v1/chat/completions", messages=MESSAGES, seed=3, n=2, top_p=0.9),
    request("a good prompt", "/v1/completions", prompt=["the sea", "the hat"], stop=["e"]),
    request("a good list of ids", "/v1/completions", prompt=[5, 6, 7, 5, 6], temperature=1.5, min_p=0.01),
    {"custom_id": "a good message", "params": {"max_tokens": 5, "messages": MESSAGES, "top_k": 5}},
]
LINES = [orjson.dumps(row) for row in GOOD]
NAMES = [str(row["custom_id"]) for row in GOOD]


class Kept(LoadedEngine):
    """An engine that outlives its jobs."""

    def close(self) -> None:
        """Not yet."""


FEWER = settings(max_examples=settings().max_examples // 3)
"""A job takes longer than a line."""

Run = Callable[[list[bytes], LineFormat], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def run(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Runs lines as a job; gives the rows of its JSON output. All jobs share one loaded model."""
    model = ModelConfig(model=str(tiny_model))
    engine = EngineConfig(
        max_model_len=32, kv_cache_memory=1 << 20, threads=1, max_num_batched_tokens=24, max_num_seqs=6
    )
    home = tmp_path_factory.mktemp("home")
    loaded = open_engine(model, engine, home)
    kept = Kept(**{field.name: getattr(loaded, field.name) for field in fields(loaded)})

    def run_lines(lines: list[bytes], line_format: LineFormat) -> list[dict[str, Any]]:
        with tempfile.TemporaryDirectory() as folder:
            source, target = Path(folder) / "in.jsonl", Path(folder) / "out.jsonl"
            source.write_bytes(b"\n".join(lines))
            config = JobConfig(
                model=model,
                engine=engine,
                input=InputConfig(input_file=str(source), window=4),
                output=OutputConfig(output_file=str(target), line_format=line_format),
            )
            run_job(config, home, Silent())
            return [json.loads(line) for line in target.read_bytes().splitlines()]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(crew_of_one, "load_engine", lambda *_: kept)
        yield run_lines
    loaded.close()


def answer(row: dict[str, Any]) -> Any:
    """What a row says, without what tells runs and places apart."""
    if "result" in row:
        message = row["result"]["message"]
        return message["content"], message["stop_reason"], message["stop_sequence"]
    return row["response"]["body"]["choices"], row["response"]["body"].get("batchgen")


@pytest.fixture(scope="module")
def alone(run: Run) -> dict[LineFormat, dict[str, Any]]:
    """The answer to each good line when there is no other line, by format and name."""
    return {
        form: {name: answer(run([line], form)[0]) for name, line in zip(NAMES, LINES, strict=True)} for form in FORMATS
    }


@st.composite
def broken(draw: st.DrawFn) -> bytes:
    """The bytes of a good line, with some of them changed, added or taken away."""
    line = draw(st.sampled_from(LINES)).replace(b"a good", b"an odd")
    start = draw(st.integers(0, len(line)))
    end = draw(st.integers(start, min(len(line), start + 5)))
    return line[:start] + draw(st.binary(max_size=5)) + line[end:]


OTHERS = st.one_of(
    st.binary(max_size=60),
    broken(),
    JSON.map(orjson.dumps),
    damaged().map(orjson.dumps),
)


@FEWER
@given(
    others=st.lists(st.tuples(st.integers(0, len(GOOD)), OTHERS), max_size=6),
    order=st.permutations(range(len(GOOD))),
    form=st.sampled_from(FORMATS),
)
def test_good_lines_keep_their_answers_beside_anything(
    run: Run,
    alone: dict[LineFormat, dict[str, Any]],
    others: list[tuple[int, bytes]],
    order: list[int],
    form: LineFormat,
) -> None:
    lines = [LINES[number] for number in order]
    for place, other in others:
        lines.insert(place, other)
    rows = run(lines, form)
    data = b"\n".join(lines).removeprefix(b"\xef\xbb\xbf")
    assert len(rows) == sum(1 for line in data.split(b"\n") if line.strip())
    found = {str(row["custom_id"]): row for row in rows}
    assert {name: answer(found[name]) for name in NAMES} == alone[form]


@FEWER
@given(st.lists(OTHERS, max_size=4))
def test_any_lines_have_their_rows(run: Run, lines: list[bytes]) -> None:
    data = b"\n".join(lines).removeprefix(b"\xef\xbb\xbf")
    assert len(run(lines, "openai")) == sum(1 for line in data.split(b"\n") if line.strip())
